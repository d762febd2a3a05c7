"""Root restores into directories that users change at the same time, and gives no user more than
the copy says."""

import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from dedupd_core.errors import UsageError
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import opened
from dedupd_core.system.tree.takeover import Rights
from jobs.backup.restore import Restore, RestoreReport
from jobs.backup.source import BackupSource
from jobs.backup.tree.nodes import Node
from jobs.backup.tree.tree_writer import TreeWriter
from jobs.frame.run import Findings, JobRun
from tests.support.lab import Lab, let_others_pass, new_lab, run_cli
from tests.support.mounts import ALICE, BOB, as_user

pytestmark = pytest.mark.root

PREFIX = ".dedupd-unfinished-"
MARK = "trusted.dedupd.unfinished"
RAW_SOCKETS = bytes.fromhex("0100000200200000000000000000000000000000")

Owner = tuple[int, int]


@pytest.fixture
def hers(tmp_path: Path) -> Path:
    """A directory of a user's, in which one of another user's lies, and one of root's."""
    let_others_pass(tmp_path)
    path = tmp_path / "hers"
    for one, uid in ((path, ALICE), (path / "his", BOB), (path / "roots", 0)):
        one.mkdir()
        one.chmod(0o755 if one is path else 0o700)
        os.chown(one, uid, uid)
    (path / "roots/secret").write_bytes(b"of root")
    return path


def node(
    mode: int, uid: int = ALICE, *, inode: int = 1, links: int = 1, target: bytes = b""
) -> Node:
    return Node(mode, uid, uid, 0, inode, links, 0, 10**18, 10**18, 0, target)


def writes(target: Path, disk: Disk | None = None, *, force: bool = False) -> Iterator[TreeWriter]:
    with opened(os.open(target, os.O_RDONLY | os.O_DIRECTORY)) as fd:
        made = TreeWriter(fd, disk or Disk(), Findings(), Rights.ROOT, force=force)
        with closing(made) as writer:
            yield writer


def owned(path: Path) -> Owner:
    status = path.lstat()
    return status.st_uid, stat.S_IMODE(status.st_mode)


def workshop_in(directory: Path) -> Path:
    (found,) = directory.glob(f"{PREFIX}*")
    return found


class RacingDisk(Disk):
    """A user does something after the first effect of a kind."""

    def __init__(self, effect: str, action: Callable[[], None], uid: int = ALICE) -> None:
        done = getattr(super(), effect)
        pending = [action]

        def with_race(*arguments: object) -> object:
            result = done(*arguments)
            if pending:
                as_user(uid, pending.pop())
            return result

        setattr(self, effect, with_race)


# --- directories ------------------------------------------------------------------------------


def test_a_directory_that_is_exchanged_before_it_has_its_owner_gives_nothing_away(
    hers: Path,
) -> None:
    def exchange() -> None:
        os.rename(hers / "new", hers / "away")
        os.rename(hers / "his", hers / "new")

    for writer in writes(hers, RacingDisk("rename_new", exchange)):
        writer.make_directory(b"new", node(0o040755))
        writer.make_file(b"new/file", node(0o100644))
        writer.make_directory(b"new/sub", node(0o040755, BOB))
        writer.finish_directory(b"new/sub", node(0o040755, BOB))
        writer.finish_directory(b"new", node(0o040755))
    assert owned(hers / "new") == (BOB, 0o700)
    assert os.listdir(hers / "new") == []
    assert owned(hers / "away") == (ALICE, 0o755)
    assert owned(hers / "away/file") == (ALICE, 0o644)
    assert owned(hers / "away/sub") == (BOB, 0o755)
    assert sorted(os.listdir(hers)) == ["away", "new", "roots"]


@pytest.mark.parametrize("other", ["his", "link", "hers", "roots"])
def test_what_is_put_in_place_of_the_private_directory_is_given_to_nobody(
    hers: Path, other: str
) -> None:
    def exchange() -> None:
        private = workshop_in(hers)
        os.rename(private, hers / "away")
        if other == "link":
            private.symlink_to(hers / "his")
        elif other == "hers":
            private.mkdir(0o700)
        else:
            os.rename(hers / other, private)

    before = owned(hers / "his"), owned(hers / "roots")
    for writer in writes(hers, RacingDisk("make_dir", exchange)):
        with pytest.raises((UsageError, OSError)):
            writer.make_directory(b"new", node(0o040755))
    for name, status in zip(("his", "roots"), before, strict=True):
        place = workshop_in(hers) if other == name else hers / name
        assert owned(place) == status
    roots = workshop_in(hers) if other == "roots" else hers / "roots"
    assert (roots / "secret").read_bytes() == b"of root"


def test_no_user_reaches_a_directory_before_it_is_finished(hers: Path) -> None:
    def look() -> None:
        for path in (hers / "new", workshop_in(hers)):
            with pytest.raises(PermissionError):
                os.listdir(path)

    for writer in writes(hers):
        writer.make_directory(b"new", node(0o040777))
        writer.make_directory(b"new/sub", node(0o040777))
        writer.make_file(b"new/sub/file", node(0o100666))
        writer.finish_directory(b"new/sub", node(0o040777))
        assert os.listxattr(hers / "new") == [MARK]
        os.mkdir(hers / f"{PREFIX}1", 0o700)
        as_user(ALICE, look)
        writer.finish_directory(b"new", node(0o040777))
    assert owned(hers / "new/sub/file") == (ALICE, 0o666)
    assert os.listxattr(hers / "new") == []


def test_what_exists_keeps_its_owner_and_mode(hers: Path) -> None:
    for writer in writes(hers, force=True):
        writer.make_directory(b"his", node(0o040755, ALICE))
        writer.finish_directory(b"his", node(0o040755, ALICE))
        writer.make_directory(b"roots", node(0o040755, ALICE))
        writer.finish_directory(b"roots", node(0o040755, ALICE))
        findings = Findings()
        writer.properties._findings = findings
        writer.properties.report()
    assert owned(hers / "his") == (BOB, 0o700)
    assert owned(hers / "roots") == (0, 0o700)
    assert findings.messages[0].startswith("2 directories existed with a different owner or mode")


def test_a_run_that_was_killed_is_continued_and_a_directory_of_root_is_not_given_away(
    hers: Path,
) -> None:
    for writer in writes(hers):
        writer.make_directory(b"new", node(0o040755))
        writer.make_file(b"new/one", node(0o100644))
    assert owned(hers / "new") == (0, 0o700)
    (hers / "unmarked").mkdir(0o700)
    for writer in writes(hers):
        for name in (b"new", b"unmarked"):
            writer.make_directory(name, node(0o040755))
            writer.finish_directory(name, node(0o040755))
    assert owned(hers / "new") == (ALICE, 0o755)
    assert owned(hers / "unmarked") == (0, 0o700)
    assert os.listxattr(hers / "new") == []


# --- other nodes ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [stat.S_IFIFO, stat.S_IFLNK])
def test_a_link_or_pipe_has_its_owner_before_users_reach_it(hers: Path, kind: int) -> None:
    """The name of a new one would be another file's by the time of the change of owner."""

    def exchange() -> None:
        with pytest.raises(PermissionError):
            os.rename(workshop_in(hers) / "node", hers / "taken")
        with pytest.raises(PermissionError):
            os.rename(hers / "his", workshop_in(hers) / "node")

    effect = "make_symlink" if kind == stat.S_IFLNK else "make_node"
    for writer in writes(hers, RacingDisk(effect, exchange)):
        target = b"target" if kind == stat.S_IFLNK else b""
        assert writer.make_other(b"other", node(kind | 0o640, target=target))
    assert (hers / "other").lstat().st_uid == ALICE
    assert owned(hers / "his") == (BOB, 0o700)
    assert sorted(os.listdir(hers)) == ["his", "other", "roots"]


def test_a_file_that_was_exchanged_gets_no_second_name(hers: Path) -> None:
    (hers / "his/private").write_bytes(b"of another user")
    linked = node(0o100644, inode=7, links=2)

    def exchange() -> None:
        os.unlink(hers / "one")
        (hers / "one").symlink_to("roots/secret")

    for writer in writes(hers, force=True):
        writer.make_file(b"one", linked)
        as_user(ALICE, exchange)
        assert not writer.make_link(b"two", linked)
        os.unlink(hers / "one")
        os.link(hers / "his/private", hers / "one")
        assert not writer.make_link(b"two", linked)
    assert not (hers / "two").exists()


def test_a_file_that_a_user_has_put_there_gets_no_second_name_elsewhere(tmp_path: Path) -> None:
    """What that user writes to it would be in the other place, too."""
    linked = node(0o100755, 0, inode=7, links=2)
    for writer in writes(tmp_path):
        (tmp_path / "one").touch()
        os.utime(tmp_path / "one", ns=(10**18, 10**18))
        os.chown(tmp_path / "one", ALICE, ALICE)
        assert writer.is_there(b"one", linked)
        assert not writer.make_link(b"two", linked)
        os.chown(tmp_path / "one", 0, 0)
        assert writer.is_there(b"one", linked)
        assert writer.make_link(b"two", linked)


def test_a_file_comes_into_a_directory_of_root_or_of_its_owner(hers: Path) -> None:
    for writer in writes(hers):
        refused = partial(pytest.raises, UsageError, match=rf"to user {ALICE}, .*--force")
        with refused():
            writer.make_file(b"file", node(0o100644, BOB))
        with refused():
            writer.make_other(b"link", node(0o120777, BOB, target=b"x"))
        with refused():
            writer.make_directory(b"directory", node(0o040755, BOB))
        with refused():
            writer.make_file(b"of-root", node(0o100644, 0))
        writer.make_file(b"her-file", node(0o100644, ALICE))
    assert sorted(os.listdir(hers)) == ["her-file", "his", "roots"]
    for writer in writes(hers, force=True):
        writer.make_file(b"file", node(0o100644, BOB))
    assert owned(hers / "file") == (BOB, 0o644)


def test_the_default_acl_of_the_target_gives_no_other_user_access(hers: Path) -> None:
    subprocess.run(["setfacl", "-d", "-m", f"u:{BOB}:rwx", hers], check=True)
    for writer in writes(hers):
        writer.make_file(b"file", node(0o100660))
        writer.make_other(b"pipe", node(stat.S_IFIFO | 0o660))
        writer.make_directory(b"new", node(0o040770))
        writer.make_file(b"new/file", node(0o100660))
        writer.make_directory(b"new/sub", node(0o040770))
        writer.finish_directory(b"new/sub", node(0o040770))
        writer.finish_directory(b"new", node(0o040770))
    made = ("file", "pipe", "new", "new/file", "new/sub")
    assert [os.listxattr(hers / name) for name in made] == [[]] * len(made)


# --- names that users have chosen -------------------------------------------------------------


def test_nothing_is_removed_for_its_name(hers: Path) -> None:
    chosen = [".dedupd-unfinished", f"{PREFIX}0123456789abcdef", f"{PREFIX}x"]
    (hers / chosen[0]).write_bytes(b"mine")
    (hers / chosen[1]).write_bytes(b"mine")
    (hers / chosen[2]).mkdir(0o700)
    (hers / chosen[2] / "node").write_bytes(b"of root, and not marked")
    for writer in writes(hers):
        for name in (".dedupd-unfinished", "other"):
            writer.make_directory(b"new", node(0o040755))
            writer.make_file(b"new/" + name.encode(), node(0o100644))
        writer.make_other(b"pipe", node(stat.S_IFIFO | 0o600))
        writer.finish_directory(b"new", node(0o040755))
    assert sorted(os.listdir(hers)) == sorted([*chosen, "his", "new", "pipe", "roots"])
    assert (hers / chosen[0]).read_bytes() == (hers / chosen[1]).read_bytes() == b"mine"
    assert (hers / chosen[2] / "node").exists()
    assert sorted(os.listdir(hers / "new")) == [".dedupd-unfinished", "other"]


def test_the_private_directory_of_a_killed_run_is_removed_and_that_of_a_live_run_stays(
    hers: Path,
) -> None:
    for live in writes(hers):
        live.make_file(b"one", node(0o100644))
        works = workshop_in(hers)
        left = hers / f"{PREFIX}left"
        shutil.copytree(works, left)
        os.setxattr(left, MARK, os.getxattr(works, MARK))
        (left / "node").write_bytes(b"half a file")
        moved = hers / f"{PREFIX}moved"
        for other in writes(hers):
            other.make_directory(b"unfinished", node(0o040755))
        (hers / "unfinished").rename(moved)
        (moved / "content").write_bytes(b"restored")
        for other in writes(hers):
            other.make_file(b"two", node(0o100644))
        assert works.exists() and not left.exists()
        assert (moved / "content").read_bytes() == b"restored"
        live.make_file(b"three", node(0o100644))
    assert sorted(os.listdir(hers)) == sorted(["his", "roots", "one", "two", "three", moved.name])


# --- the command ------------------------------------------------------------------------------


def restored(lab: Lab, target: Path, *, privileges: bool = False) -> RestoreReport:
    target.mkdir(exist_ok=True)
    with BackupSource.found(str(lab.root)) as volume:
        run = JobRun("restore")
        return Restore(volume, run, str(target), privileges=privileges).run([b""])


@pytest.fixture
def privileged(tmp_path: Path) -> Lab:
    """A volume with all that gives rights."""
    lab = new_lab(tmp_path / "volume")
    for name in ("set-id", "capable", "attribute", "labelled", "plain"):
        os.chown(lab.put(name, name.encode()), ALICE, ALICE)
    os.chmod(lab.data / "set-id", 0o6755)
    os.setxattr(lab.data / "capable", "security.capability", RAW_SOCKETS)
    os.setxattr(lab.data / "attribute", "trusted.overlay.opaque", b"y")
    os.setxattr(lab.data / "attribute", "user.mine", b"kept")
    os.setxattr(lab.data / "labelled", "security.selinux", b"a_label")
    os.mknod(lab.data / "device", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    (lab.data / "shared").mkdir()
    os.chmod(lab.data / "shared", 0o3777)
    return lab


def test_what_gives_rights_stays_behind_and_is_counted(tmp_path: Path, privileged: Lab) -> None:
    out = tmp_path / "out"
    report = restored(privileged, out)
    assert report.messages == [
        "4 names without privileges: 1 other attribute, 1 capability, 1 device, 1 set-user-ID or"
        " set-group-ID bit skipped; if you trust the owners, use --privileges, as root and into an"
        " empty directory"
    ]
    assert report.without_privileges == 4
    assert owned(out / "set-id") == (ALICE, 0o755)
    assert os.listxattr(out / "capable") == []
    assert os.listxattr(out / "attribute") == ["user.mine"]
    assert not (out / "device").exists()
    assert owned(out / "shared") == (0, 0o3777)


def test_root_restores_it_on_request(tmp_path: Path, privileged: Lab) -> None:
    out = tmp_path / "out"
    report = restored(privileged, out, privileges=True)
    assert (report.messages, report.without_privileges) == ([], 0)
    assert owned(out / "set-id") == (ALICE, 0o6755)
    assert os.getxattr(out / "capable", "security.capability") == RAW_SOCKETS
    assert os.getxattr(out / "attribute", "trusted.overlay.opaque") == b"y"
    assert (out / "device").lstat().st_rdev == os.makedev(1, 3)


def test_the_command_has_the_options(tmp_path: Path, privileged: Lab) -> None:
    out = tmp_path / "out"
    out.mkdir()
    os.chown(out, BOB, BOB)
    done = run_cli("restore", "--from", privileged.root, "set-id", "--to", out)
    assert (done.returncode, os.listdir(out)) == (1, [])
    assert f"belongs to user {BOB}, the file to user {ALICE}" in done.stderr
    done = run_cli("restore", "--from", privileged.root, "set-id", "--to", out, "--force")
    assert done.returncode == 1
    assert (
        "1 set-user-ID or set-group-ID bit skipped; if you trust the owners, use --privileges"
        in done.stderr
    )
    (out / "set-id").unlink()
    options = "--force", "--privileges"
    done = run_cli("restore", "--from", privileged.root, "set-id", "--to", out, *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert owned(out / "set-id") == (ALICE, 0o6755)


def test_directories_above_several_paths_are_made_once(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "volume")
    for name in ("a/b/one", "a/c/two", "a-b/three"):
        lab.put(name, b"x")
    for name in ("a", "a/b", "a/c", "a-b"):
        os.chown(lab.data / name, ALICE, ALICE)
        os.chmod(lab.data / name, 0o751)
        os.utime(lab.data / name, ns=(10**18, 10**18))
    out = tmp_path / "out"
    out.mkdir()
    with BackupSource.found(str(lab.root)) as volume:
        paths = [b"a/c/two", b"a/b/one", b"a-b/three"]
        report = Restore(volume, JobRun("restore"), str(out)).run(paths)
    assert (report.files, report.messages) == (3, [])
    for name in ("a", "a/b", "a/c", "a-b"):
        assert owned(out / name) == (ALICE, 0o751)
        assert (out / name).stat().st_mtime_ns == 10**18
    assert not list(out.rglob(f"{PREFIX}*"))
