"""What users have left behind, and what root's `undelete` makes of it; ids that users forge."""

import errno
import json
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess, run
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from dedupd.cli.undelete import command
from dedupd_core.deleted.log import DeletionId, DeletionLogs
from dedupd_core.deleted.writer import DeletionWriter
from dedupd_core.format.deletion import (
    HEAD_BYTES,
    LOG_HEADER_BYTES,
    Cause,
    Deletion,
    decode_header,
    encode_deletion,
)
from dedupd_core.system.files import opened
from dedupd_core.units import KIB
from dedupd_core.volume.volume import Volume
from tests.support import crash
from tests.support.deletions import unproven_deletion, unproven_header
from tests.support.lab import RAW_SOCKETS, REPOSITORY, let_others_pass, noise, prose, run_cli
from tests.support.mounts import (
    ALICE,
    BOB,
    GROUP_OBJ,
    MASK,
    NOBODY,
    OTHER,
    TEAM,
    USER,
    USER_OBJ,
    MountedLab,
    acl,
    as_user,
    mounted_lab,
)

pytestmark = pytest.mark.root


class Result(NamedTuple):
    """Of a command."""

    returncode: int
    stdout: str
    stderr: str


POLICY = {"keep_deleted": "7d", "space_low": "0", "space_critical": "0", "reserve": "0"}
UNDELETE = "user.dedupd.undelete"
BLOCK = 4 * KIB
SMALL = "small-with-a-longer-name"


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[MountedLab]:
    with mounted_lab(tmp_path, POLICY) as one:
        (one.view / "shared").mkdir()
        (one.view / "shared").chmod(0o777)
        yield one
        one.unmount()
        one.verify_clean()


def deleted(path: Path) -> dict[str, dict[str, Any]]:
    """The deletions below a path by the paths of the files."""
    result = run_cli("deleted", path, "--json")
    assert result.returncode == 0, result.stderr
    return {row["path"]: row for row in json.loads(result.stdout)}


def undelete(*arguments: str | Path) -> CompletedProcess[str]:
    return run_cli("undelete", *arguments)


def removed(lab: MountedLab, name: str, uid: int, mode: int = 0o644, gid: int = -1) -> Path:
    """A stub of a user's that was removed."""
    path = lab.make_stub(name, noise(20 * KIB, len(name)))
    os.chown(path, uid, uid if gid < 0 else gid)
    path.chmod(mode)
    path.unlink()
    return path


def undelete_as(uid: int, *arguments: str | Path, groups: tuple[int, ...] = ()) -> Result:
    """The command, as a user runs it who cannot read this program's files."""
    read_fd, write_fd = os.pipe()

    def act() -> None:
        found = CliRunner().invoke(command, [os.fsdecode(one) for one in arguments])
        os.write(write_fd, json.dumps([found.exit_code, found.stdout, found.stderr]).encode())

    as_user(uid, act, groups=groups)
    os.close(write_fd)
    with os.fdopen(read_fd, "rb") as output:
        return Result(*json.loads(output.read()))


def test_privileges_come_back_if_root_asks_for_them_alone(lab: MountedLab) -> None:
    path = lab.make_stub("tool", noise(20 * KIB))
    path.chmod(0o6755)
    os.setxattr(path, "security.capability", RAW_SOCKETS)
    os.setxattr(path, "user.colour", b"blue")
    path.unlink()
    result = undelete(path)
    assert "without set-user-ID bits and capabilities" in result.stdout
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    assert os.listxattr(path) == ["user.colour"]


def test_with_privileges_everything_comes_back(lab: MountedLab) -> None:
    path = lab.make_stub("tool", noise(20 * KIB))
    path.chmod(0o6755)
    os.setxattr(path, "security.capability", RAW_SOCKETS)
    path.unlink()
    lab.unmount()
    below = lab.root / "tool"
    assert undelete(below, "--privileges").returncode == 0
    lab.mount()
    assert stat.S_IMODE(path.stat().st_mode) == 0o6755
    assert os.getxattr(path, "security.capability") == RAW_SOCKETS
    path.unlink()
    assert undelete(path, "--privileges").returncode == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o6755
    assert os.getxattr(path, "security.capability") == RAW_SOCKETS
    assert path.read_bytes() == noise(20 * KIB)


def test_root_puts_no_file_into_the_directory_of_another_user(lab: MountedLab) -> None:
    path = removed(lab, "home/.profile", ALICE)
    os.chown(lab.view / "home", BOB, BOB)
    deep = removed(lab, "deep/a/b", ALICE)
    deep.parent.rmdir()
    os.chown(lab.view / "deep", BOB, BOB)
    for one in (path, deep):
        result = undelete(one)
        assert result.returncode == 1
        assert f"the directory belongs to user {BOB}, the file to user {ALICE}" in result.stderr
    assert list((lab.view / "home").iterdir()) == list((lab.view / "deep").iterdir()) == []
    assert undelete(path, "--to", lab.view / "shared").returncode == 0
    assert (lab.view / "shared/.profile").stat().st_uid == ALICE
    assert undelete(deep, "--force").returncode == 0
    assert deep.stat().st_uid == deep.parent.stat().st_uid == ALICE
    assert (lab.view / "deep").stat().st_uid == BOB, "it is as it was"


def test_directories_are_made_for_the_owner_of_the_file(lab: MountedLab) -> None:
    path = removed(lab, "x/y/z/file", ALICE, gid=BOB)
    for directory in (path.parent, path.parent.parent, path.parent.parent.parent):
        directory.rmdir()
    assert undelete(path).returncode == 0
    for directory in (path.parent, path.parent.parent, path.parent.parent.parent):
        status = directory.stat()
        assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (ALICE, BOB, 0o700)
    assert sorted(os.listdir(lab.view)) == ["shared", "x"], "nothing private is left"


def test_a_user_gets_no_group_by_undeleting(lab: MountedLab) -> None:
    path = removed(lab, "shared/plan", ALICE, 0o674, gid=TEAM)
    one_id = deleted(lab.view)["shared/plan"]["id"]

    def alice() -> None:
        with opened(os.open(path, os.O_CREAT | os.O_RDWR, 0o600)) as fd:
            os.setxattr(fd, UNDELETE, one_id.encode())
        status = path.stat()
        assert (status.st_uid, status.st_gid) == (ALICE, ALICE)
        assert stat.S_IMODE(status.st_mode) == 0o644, "her group is not the one that could write"
        path.unlink()

    as_user(ALICE, alice)
    assert path.exists() is False
    lab.make_stub("shared/plan", noise(20 * KIB, 7))
    os.chown(path, ALICE, TEAM)
    path.chmod(0o674)
    path.unlink()
    assert undelete_as(ALICE, path, groups=(TEAM,)).returncode == 0
    status = path.stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (ALICE, TEAM, 0o674)


@pytest.mark.parametrize("mode", [0o644, 0o444, 0o000])
def test_a_file_that_a_user_has_back_bears_no_note(lab: MountedLab, mode: int) -> None:
    """Not even where the user may not write to it."""
    path = removed(lab, "shared/plan", ALICE, mode)
    assert undelete_as(ALICE, path).returncode == 0
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert [name for name in os.listxattr(path) if "unfinished" in name] == []


def test_an_acl_that_names_another_group_does_not_come_back_to_a_user(lab: MountedLab) -> None:
    path = lab.make_stub("shared/plan", noise(20 * KIB))
    os.chown(path, ALICE, TEAM)
    entries = [(USER_OBJ, 6, NOBODY), (USER, 6, BOB), (GROUP_OBJ, 6, NOBODY)]
    value = acl(*entries, (MASK, 6, NOBODY), (OTHER, 0, NOBODY))
    os.setxattr(path, "system.posix_acl_access", value)
    path.unlink()
    assert undelete_as(ALICE, path).returncode == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "system.posix_acl_access" not in os.listxattr(path)
    assert undelete_as(BOB, path, "--force").returncode == 2


def test_only_root_asks_for_privileges(lab: MountedLab) -> None:
    path = removed(lab, "shared/tool", ALICE, 0o4755)
    one_id = deleted(lab.view)["shared/tool"]["id"]
    for option in ("--privileges", "--force"):
        result = undelete_as(ALICE, path, option)
        assert (result.returncode, "only root" in result.stderr) == (2, True)

    def alice() -> None:
        with opened(os.open(path, os.O_CREAT | os.O_RDWR, 0o600)) as fd:
            for words in ("privileges", "force", "privileges force"):
                with pytest.raises(PermissionError):
                    os.setxattr(fd, UNDELETE, f"{one_id} {words}".encode())
            for value in (f"{one_id} other", f"{one_id} force force", "", "1", f"{one_id} "):
                with pytest.raises(FileNotFoundError):
                    os.setxattr(fd, UNDELETE, value.encode())
            assert os.fstat(fd).st_size == 0
            os.setxattr(fd, UNDELETE, one_id.encode())
            assert stat.S_IMODE(os.fstat(fd).st_mode) == 0o755

    as_user(ALICE, alice)


def forgeries(lab: MountedLab, one: Deletion, offsets: range) -> Iterator[bytes]:
    """A deletion as a user can write it, who knows all that is public; one for each offset."""
    with Volume.open(str(lab.root)) as volume:
        public = decode_header(unproven_header(1, volume.space.volume_id), "").seed
    for offset in offsets:
        yield encode_deletion(one, public, offset)
        yield unproven_deletion(one, public)


def evil_deletion(lab: MountedLab, name: str) -> Deletion:
    """Of a program of root, with the content of a file that a user has."""
    stub = lab.stub(name)
    assert stub is not None
    now_ns = os.stat(lab.view / name).st_mtime_ns
    return Deletion(
        *(Cause.REMOVED, now_ns, 7 * 86400, b"bin/tool0", 0o104755, 0, 0, 1, 1, stub.covered),
        *(now_ns, now_ns, stub),
    )


def log_end(lab: MountedLab) -> int:
    with Volume.open(str(lab.root)) as volume:
        logs = DeletionLogs(volume)
        return logs.size_bytes(logs.numbers()[-1])


def test_an_id_within_ones_own_attribute_names_nothing(lab: MountedLab) -> None:
    path = lab.make_stub("shared/hers", noise(20 * KIB))
    evil = evil_deletion(lab, "shared/hers")._replace(uid=ALICE)
    value = b"".join(forgeries(lab, evil, range(LOG_HEADER_BYTES, 3 * KIB, 256)))[: 3 * KIB]
    os.setxattr(path, "user.x", value)
    os.chown(path, ALICE, ALICE)
    path.unlink()
    log, _, start = deleted(lab.view)["shared/hers"]["id"].partition("-")
    end = log_end(lab)

    def alice() -> None:
        with opened(os.open(path, os.O_CREAT | os.O_RDWR, 0o600)) as fd:
            for offset in range(end + 8):
                if offset != int(start):
                    with pytest.raises(FileNotFoundError):
                        os.setxattr(fd, UNDELETE, f"{log}-{offset}".encode())
            os.setxattr(fd, UNDELETE, f"{log}-{start}".encode())

    as_user(ALICE, alice)


def fill(path: Path) -> None:
    """Write until the disk is full."""
    with opened(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)) as fd:
        for size in (256 * KIB, BLOCK, 1):
            with suppress(OSError):
                while True:
                    os.write(fd, bytes(size))


@contextmanager
def lab_on_a_small_disk(directory: Path, block_bytes: int) -> Iterator[MountedLab]:
    options = ("-b", str(block_bytes), "-m", "0")  # no blocks that users leave to the log
    with crash.tmpfs(directory, 100) as memory, crash.ext4(memory, 64, options) as disk:
        for place in (memory, disk):
            let_others_pass(place)
        with mounted_lab(disk, POLICY) as lab:
            yield lab
            lab.unmount()
            lab.verify_clean()


def test_no_user_forges_a_deletion_by_a_full_disk(tmp_path: Path) -> None:
    """A failed append writes up to the end of a block; then a short one lies over its start."""
    with lab_on_a_small_disk(tmp_path, BLOCK) as lab:
        forge_by_a_full_disk(lab)
        assert undelete(lab.view, "--since", "1h").returncode == 0
        assert not (lab.view / "bin/tool0").exists()


def test_undelete_on_a_full_disk_leaves_nothing_half_done(tmp_path: Path) -> None:
    """What has no room is named, and comes back once there is some."""
    with lab_on_a_small_disk(tmp_path, KIB) as lab:
        folder = lab.view / "d"
        paths = [folder / f"{number:03d}{'n' * 240}" for number in range(40)]
        folder.mkdir()
        for number, path in enumerate(paths):
            path.write_bytes(noise(5 * KIB, number))
            os.setxattr(path, "user.x", noise(700, number))
        lab.optimize()
        for path in paths:
            path.unlink()
        folder.rmdir()
        fill(lab.view / "filling")
        result = undelete(folder)
        assert result.returncode == 1
        assert result.stderr.count("No space left") > 10
        assert not list(lab.view.rglob(".dedupd*"))
        (lab.view / "filling").unlink()
        assert undelete(folder).returncode == 0
        for number, path in enumerate(paths):
            assert path.read_bytes() == noise(5 * KIB, number)


def forge_by_a_full_disk(lab: MountedLab) -> None:
    shared = lab.view / "shared"
    shared.mkdir()
    (lab.view / "bin").mkdir()
    shared.chmod(0o777)
    for number, name in enumerate(("first", "b", SMALL)):
        lab.make_stub(f"shared/{name}", noise(20 * KIB, number))
        os.chown(shared / name, ALICE, ALICE)
    as_user(ALICE, (shared / "first").unlink)
    end = log_end(lab)
    short = HEAD_BYTES + len(f"shared/{SMALL}")
    start = (end + short + 7) // 8 * 8
    evil = evil_deletion(lab, "shared/b")
    room = end // BLOCK * BLOCK + BLOCK - start
    value = b"".join(
        forgery for forgery in forgeries(lab, evil, range(start, start + room, 160)) if room > 0
    )
    before = end + HEAD_BYTES + len("shared/b") + 6 + len("user.x")
    padded = (bytes(start - before) + value).ljust(3800, b"\xff")[:3800]

    def prepare() -> None:
        os.setxattr(shared / "b", "user.x", padded)
        fill(shared / "filling")
        (shared / "b").unlink()

    def finish() -> None:
        (shared / "filling").unlink()
        (shared / SMALL).unlink()

    as_user(ALICE, prepare)
    assert log_end(lab) == end, "the append has failed, and nothing is left of it"
    as_user(ALICE, finish)
    rows = deleted(lab.view)
    assert rows.keys() == {"shared/first", f"shared/{SMALL}"}
    assert rows[f"shared/{SMALL}"]["id"] == str(DeletionId(1, end))


def test_deletions_of_an_earlier_version_come_back_for_root_by_force(lab: MountedLab) -> None:
    path = lab.make_stub("shared/old", noise(20 * KIB))
    evil = evil_deletion(lab, "shared/old")._replace(path=b"tool", inode=1)
    with Volume.open(str(lab.root)) as volume:
        header = unproven_header(1, volume.space.volume_id)
        log = Path(lab.base) / "deleted/00000001.log"
    log.parent.mkdir()
    seed = decode_header(header, "").seed
    hers = evil._replace(uid=ALICE, path=b"shared/hers")
    log.write_bytes(header + unproven_deletion(evil, seed) + unproven_deletion(hers, seed))
    rows = deleted(lab.view)
    assert rows.keys() == {"tool", "shared/hers"}

    def alice() -> None:
        with opened(os.open(path.parent / "new", os.O_CREAT | os.O_RDWR, 0o600)) as fd:
            with pytest.raises(OSError) as caught:
                os.setxattr(fd, UNDELETE, rows["shared/hers"]["id"].encode())
            assert caught.value.errno == errno.ENOENT

    as_user(ALICE, alice)
    result = undelete(lab.view / "tool")
    assert result.returncode == 1
    assert "without proof of the file's owner" in result.stderr
    assert "`dedupd undelete --force`" in result.stderr
    assert undelete(lab.view / "tool", "--force").returncode == 0
    assert stat.S_IMODE((lab.view / "tool").stat().st_mode) == 0o755
    path.unlink()
    assert deleted(lab.view)["shared/old"]["id"] == str(DeletionId(2, LOG_HEADER_BYTES))


def replace_recipes(lab: MountedLab, broken: set[bytes]) -> None:
    """Have the log say of some files that their content is a recipe that there is not."""
    with Volume.open(str(lab.root)) as volume:
        logs = DeletionLogs(volume)
        rows = [one for number in logs.numbers() for _, one in logs.read(number)]
        for number in logs.numbers():
            logs.remove(number, volume.disk)
        writer = DeletionWriter(volume)
        for one in rows:
            lost = replace(one.stub, recipe=one.stub.recipe + (1 << 40))
            writer.append(one._replace(stub=lost) if one.path in broken else one)
        writer.close()


def undelete_with_broken_recipes(lab: MountedLab, count: int) -> None:
    """One file of a hundred cannot come back, and all others do."""

    def name(number: int) -> str:
        return f"{number % 7}/{number}"

    def content(number: int) -> bytes:
        return prose(3 * KIB, number) + noise(2 * KIB, number)

    for number in range(count):
        path = lab.view / name(number)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content(number))
    lab.optimize()
    for number in range(count):
        (lab.view / name(number)).unlink()
    lab.unmount()
    broken = {number for number in range(count) if number % 100 == 42}
    replace_recipes(lab, {os.fsencode(name(number)) for number in broken})
    lab.mount()
    program = [sys.executable, "-m", "dedupd.cli.main", "undelete"]
    result = run(
        [*program, "--since", "1h", lab.view],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert len(result.stdout.splitlines()) == count - len(broken)
    lines = result.stderr.splitlines()
    assert lines[-1].endswith(f"{count - len(broken)} files restored, {len(broken)} not restored")
    named = {line.split(": ")[1] for line in lines[:-1]}
    assert named == {name(number) for number in broken}
    assert all(len(line.split(": ", 2)[2]) > 10 for line in lines[:-1]), "each with its reason"
    for number in range(count):
        path = lab.view / name(number)
        assert path.exists() is (number not in broken)
        if number % 50 == 0:
            assert path.read_bytes() == content(number)
    assert not list(lab.view.rglob(".dedupd*"))
    again = run_cli("undelete", lab.view, "--json")
    assert again.returncode == 1
    rows = json.loads(again.stdout)
    assert {row["path"] for row in rows} == named
    assert all(row["error"] for row in rows)


def test_files_that_cannot_come_back_stop_no_other(lab: MountedLab) -> None:
    undelete_with_broken_recipes(lab, 600)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_hundred_of_ten_thousand_files_cannot_come_back(lab: MountedLab) -> None:
    undelete_with_broken_recipes(lab, 10_000)


def test_what_came_back_is_printed_as_it_comes(lab: MountedLab) -> None:
    """Even if the mount ends in the middle, the list says what has come back."""
    for number in range(3):
        lab.make_stub(f"{number}", noise(20 * KIB, number)).unlink()
    lab.make_stub("other", noise(20 * KIB, 9)).unlink()
    (lab.view / "other").mkdir()
    (lab.view / "1").mkdir()
    result = undelete(lab.view / "0", lab.view / "1", lab.view / "2")
    lines = result.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == ["0", "1", "2"]
    assert "1: restored as 1.deleted-" in lines[1]
    assert undelete(lab.view / "other", lab.view / "none").returncode == 2
    assert os.listdir(lab.view / "other") == [], "all files were looked for first"
