"""Users exchange files and directories while root reads them: what is copied has the owner and mode
of the file that was read."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from dedupd_core.system.disk import Disk
from dedupd_core.system.files import opened
from jobs.backup.restore import Restore
from jobs.backup.source import BackupSource
from jobs.backup.tree.nodes import VisitedNode, walk_nodes
from jobs.frame.run import JobRun
from jobs.importing import Import, ImportReport
from tests.support.lab import Lab, let_others_pass, new_lab
from tests.support.mounts import ALICE, BOB, as_user, mounted_lab
from tests.support.streams import sent

pytestmark = pytest.mark.root

SECRET = b"of another user, or of root"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A user's directory, with a file of another user's and a directory of root's in it."""
    let_others_pass(tmp_path)
    root = tmp_path / "source"
    fill(root)
    return root


def fill(root: Path) -> None:
    for path, uid, mode in ((root, ALICE, 0o755), (root / "public", ALICE, 0o755)):
        path.mkdir(exist_ok=True)
        os.chown(path, uid, uid)
        os.chmod(path, mode)
    (root / "roots").mkdir(mode=0o700)
    (root / "roots/file").write_bytes(SECRET)
    (root / "file").write_bytes(b"public".ljust(len(SECRET)))
    (root / "his").write_bytes(SECRET)
    for name, uid, mode in (("file", ALICE, 0o644), ("his", BOB, 0o600)):
        os.chown(root / name, uid, uid)
        os.chmod(root / name, mode)


def opens_after(monkeypatch: pytest.MonkeyPatch, action: Callable[[], None]) -> None:
    """A user acts after a walk has met the first file, and before that is opened."""
    pending, real = [action], VisitedNode.open

    def late(met: VisitedNode, flags: int) -> int:
        if pending and met.path.endswith(b"file"):
            as_user(ALICE, pending.pop())
        return real(met, flags)

    monkeypatch.setattr(VisitedNode, "open", late)


def assert_closed(root: Path) -> None:
    """Each file that has the secret is its owner's alone."""
    found = [path for path in root.rglob("*") if path.is_file() and path.read_bytes() == SECRET]
    assert found
    for path in found:
        status = path.stat()
        is_roots = path.parent.name == "roots"
        expected = (0, 0o644) if is_roots else (BOB, 0o600)
        assert (status.st_uid, stat.S_IMODE(status.st_mode)) == expected
        if is_roots:
            assert (path.parent.stat().st_uid, path.parent.stat().st_mode & 0o777) == (0, 0o700)


def imported(lab: Lab, source: Path, folder: bytes = b"", **options: bool) -> ImportReport:
    with lab.opened() as volume, volume.job_lock():
        return Import(volume, JobRun("import"), str(source), folder, **options).run()


def restored(lab: Lab, target: Path) -> Path:
    target.mkdir()
    with BackupSource.found(str(lab.root)) as volume:
        report = Restore(volume, JobRun("restore"), str(target)).run([b""])
    assert report.messages == []
    return target


def test_import_gives_a_file_the_owner_that_it_had_when_it_was_read(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = new_lab(tmp_path / "volume")
    opens_after(monkeypatch, lambda: os.rename(source / "his", source / "file"))
    assert imported(lab, source, b"in").messages == []
    assert (lab.data / "in/file").exists()
    assert_closed(restored(lab, tmp_path / "out"))


def test_restore_does_the_same_with_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    let_others_pass(tmp_path)
    lab = new_lab(tmp_path / "volume")
    fill(lab.data)
    for path in (lab.root, lab.base):
        os.chmod(path, 0o711)
    opens_after(monkeypatch, lambda: os.rename(lab.data / "his", lab.data / "file"))
    assert_closed(restored(lab, tmp_path / "out"))


def test_send_does_the_same_with_a_mounted_volume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_others_pass(tmp_path)
    replica = new_lab(tmp_path / "replica")
    with mounted_lab(tmp_path) as lab:
        (lab.view / "top").mkdir()
        fill(lab.view / "top")
        exchange = lambda: os.rename(lab.view / "top/his", lab.view / "top/file")  # noqa: E731
        opens_after(monkeypatch, exchange)
        sent(lab, replica)
    assert (replica.data / "top/file").exists()
    assert_closed(restored(replica, tmp_path / "out"))


def test_a_directory_that_was_exchanged_is_not_entered(source: Path) -> None:
    """The mode of the first one would open the files of the second one to all users."""
    errors: list[tuple[bytes, str]] = []

    def exchange() -> None:
        os.rename(source / "public", source / "away")
        os.rename(source / "roots", source / "public")

    with opened(os.open(source, os.O_RDONLY)) as fd:
        seen = []
        for met in walk_nodes(fd, b"", b"", lambda path, error: errors.append((path, str(error)))):
            seen.append(met.path)
            if met.path == b"public" and not met.is_end:
                as_user(ALICE, exchange)
    assert b"public/file" not in seen
    assert seen.count(b"public") == 2
    assert [path for path, _ in errors] == [b"public"]


def test_a_directory_that_is_exchanged_while_it_is_read_is_read_to_its_end(source: Path) -> None:
    for name in ("public/a/x", "public/b", "public/file"):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_bytes(b"mine")
    errors: list[bytes] = []

    def exchange() -> None:
        os.rename(source / "public", source / "away")
        os.rename(source / "roots", source / "public")

    contents = {}
    with opened(os.open(source, os.O_RDONLY)) as fd:
        for met in walk_nodes(fd, b"", b"", lambda path, error: errors.append(path)):
            if met.path == b"public/a/x":
                as_user(ALICE, exchange)
            if met.node.is_file and met.path.startswith(b"public/"):
                with opened(met.open(os.O_RDONLY)) as file:
                    contents[met.path] = os.read(file, 100)
    assert contents == {b"public/a/x": b"mine", b"public/b": b"mine", b"public/file": b"mine"}
    assert errors == []


# --- where it comes to ------------------------------------------------------------------------


@pytest.mark.parametrize("is_mounted", [False, True])
def test_import_into_a_folder_of_a_user_needs_a_request(
    tmp_path: Path, source: Path, is_mounted: bool
) -> None:
    def try_it(lab: Lab, tree: Path) -> None:
        (tree / "hers").mkdir()
        os.chown(tree / "hers", ALICE, ALICE)
        report = imported(lab, source, b"hers")
        assert sorted(os.listdir(tree / "hers")) == ["file", "public"]
        assert sum("--force" in message for message in report.messages) == 2
        assert imported(lab, source, b"hers", force=True).messages == []
        assert sorted(os.listdir(tree / "hers")) == ["file", "his", "public", "roots"]
        assert (tree / "hers").stat().st_uid == ALICE

    if is_mounted:
        with mounted_lab(tmp_path) as mounted:
            try_it(mounted, mounted.view)
    else:
        lab = new_lab(tmp_path / "volume")
        try_it(lab, lab.data)


def test_a_directory_that_import_has_made_is_not_exchanged_for_another_one(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mounted_lab(tmp_path) as lab:
        hers = lab.view / "hers"
        hers.mkdir()
        os.chown(hers, ALICE, ALICE)
        (hers / "bobs").mkdir(mode=0o700)
        os.chown(hers / "bobs", BOB, BOB)

        def exchange() -> None:
            os.rename(hers / "public", hers / "away")
            os.rename(hers / "bobs", hers / "public")

        real, pending = Disk.rename_new, [exchange]

        def racing(disk: Disk, from_fd: int, old: bytes, to_fd: int, new: bytes) -> None:
            real(disk, from_fd, old, to_fd, new)
            if new == b"public" and pending:
                as_user(ALICE, pending.pop())

        monkeypatch.setattr(Disk, "rename_new", racing)
        os.chown(source / "public", ALICE, ALICE)
        os.chmod(source / "public", 0o777)
        imported(lab, source, b"hers")
        assert not pending
        status = (hers / "public").stat()
        assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (BOB, 0o700)
        assert stat.S_IMODE((hers / "away").stat().st_mode) == 0o777


def test_import_takes_no_privileges_and_no_attribute_of_a_stub(
    tmp_path: Path, source: Path
) -> None:
    lab = new_lab(tmp_path / "volume")
    os.chmod(source / "file", 0o4755)
    os.setxattr(source / "his", "trusted.dedupd", bytes(64))
    report = imported(lab, source, b"in")
    assert [message.partition(";")[0] for message in report.messages] == [
        "in/his: restored without its attribute trusted.dedupd: only stubs can have it",
        "1 name without privileges: 1 set-user-ID or set-group-ID bit skipped",
    ]
    assert report.without_privileges == 1
    assert stat.S_IMODE((lab.data / "in/file").stat().st_mode) == 0o755
    assert lab.read("in/his") == SECRET
    report = imported(lab, source, b"again", privileges=True)
    assert len(report.messages) == 1
    assert stat.S_IMODE((lab.data / "again/file").stat().st_mode) == 0o4755
    assert lab.read("again/his") == SECRET


def test_a_folder_that_import_makes_is_open_to_no_user_by_an_old_mark(
    tmp_path: Path, source: Path
) -> None:
    lab = new_lab(tmp_path / "volume")
    assert imported(lab, source, b"new/folder").messages == []
    for name, owner, mode in (("new", 0, 0o700), ("new/folder", ALICE, 0o755)):
        status = (lab.data / name).stat()
        assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (owner, mode)
        assert os.listxattr(lab.data / name) == []
