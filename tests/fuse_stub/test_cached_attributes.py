"""The kernel caches attributes: after each change it shows what the file system below shows."""

import fcntl
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dedupd_core import failpoint, native
from dedupd_core.format.stub import Flag
from dedupd_core.system.files import opened
from fuse_stub.files.attributes import shown_blocks
from tests.fuse_stub.test_busy_files import NAME, POLICY, SIZE, Guest
from tests.fuse_stub.test_deleted import PLENTY, deleted
from tests.fuse_stub.test_ranges import MODES, fallocate
from tests.support.lab import noise, stop_at, write_out
from tests.support.mounts import (
    ALICE,
    BOB,
    GROUP_OBJ,
    MASK,
    OTHER,
    USER,
    USER_OBJ,
    MountedLab,
    Nursery,
    acl,
    mounted_lab,
    serve_ageless,
)

pytestmark = pytest.mark.root

CONTENT = noise(100_000) + bytes(100_000) + noise(100_000, 1)

NOT_DUMPED = 0x40


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[MountedLab]:
    with mounted_lab(tmp_path, {"keep_deleted": "7d", **PLENTY}) as lab:
        yield lab


def seen(path: Path) -> tuple[int, ...]:
    """The attributes of an inode. Not the access time: what the kernel has cached is read without
    the mount. Nor the time of change, which jobs do not move for users (test_change_times.py)."""
    status = path.stat(follow_symlinks=False)
    blocks = shown_blocks(status.st_mode, status.st_size, status.st_blocks)
    owner = (status.st_mode, status.st_uid, status.st_gid, status.st_nlink)
    return (*owner, status.st_size, blocks, status.st_mtime_ns)


def changed_ns(path: Path) -> int:
    return path.stat(follow_symlinks=False).st_ctime_ns


def paths_of(lab: MountedLab) -> list[Path]:
    return [path.relative_to(lab.data) for path in [lab.data, *lab.data.rglob("*")]]


def differences(lab: MountedLab) -> list[str]:
    """The files that look otherwise through the mount than below. The kernel has all cached now."""
    paths = paths_of(lab)
    assert all(changed_ns(lab.view / path) <= changed_ns(lab.data / path) for path in paths)
    return [str(path) for path in paths if seen(lab.view / path) != seen(lab.data / path)]


def all_shown(lab: MountedLab, change: Callable[[Path], object], path: Path) -> None:
    """A user's change moves the time of change for users, too."""
    before = {known: changed_ns(lab.data / known) for known in paths_of(lab)}
    change(path)
    assert differences(lab) == [], change
    moved = [known for known in paths_of(lab) if changed_ns(lab.data / known) != before.get(known)]
    assert all(changed_ns(lab.view / known) == changed_ns(lab.data / known) for known in moved)


def set_flags(path: Path) -> None:
    with opened(os.open(path, os.O_RDONLY)) as fd:
        fcntl.ioctl(fd, native.mount.SET_FLAGS, struct.pack("<Q", NOT_DUMPED | flags_of(fd)))


def flags_of(fd: int) -> int:
    answer = bytearray(8)
    fcntl.ioctl(fd, native.mount.GET_FLAGS, answer)
    (flags,) = struct.unpack("<Q", answer)
    return int(flags)


def set_acl(path: Path) -> None:
    path.chmod(0o2770)
    value = acl((USER_OBJ, 7, 0), (USER, 5, ALICE), (GROUP_OBJ, 5, 0), (MASK, 5, 0), (OTHER, 0, 0))
    os.setxattr(path, "system.posix_acl_access", value)


def write(path: Path) -> None:
    path.chmod(0o6755)
    with opened(os.open(path, os.O_RDWR)) as fd:
        os.pwrite(fd, b"new", 150_000)


def change_ranges(path: Path) -> None:
    with opened(os.open(path, os.O_RDWR)) as fd:
        for mode in MODES:
            fallocate(fd, mode, 50_000, 260_000)


def copy(path: Path) -> None:
    with open(path, "rb") as source, open(path.with_name("copy"), "wb") as target:
        os.copy_file_range(source.fileno(), target.fileno(), 1 << 20)


def set_and_remove(path: Path) -> None:
    os.setxattr(path, "user.a", b"1")
    os.removexattr(path, "user.a")


CHANGES: list[Callable[[Path], object]] = [
    set_flags,
    lambda path: os.setxattr(path, "user.colour", b"blue"),
    set_and_remove,
    set_acl,
    lambda path: os.chown(path, ALICE, BOB),
    lambda path: path.chmod(0o600),
    lambda path: os.utime(path, ns=(1, 1)),
    write,
    lambda path: os.truncate(path, 120_000),
    lambda path: os.truncate(path, 400_000),
    change_ranges,
    copy,
    lambda path: os.link(path, path.with_name("link")),
    lambda path: path.rename(path.with_name("renamed")),
    lambda path: path.unlink(),
]


@pytest.mark.parametrize("kind", ["plain", "stub"])
def test_what_users_change_is_shown(lab: MountedLab, kind: str) -> None:
    for number, change in enumerate(CHANGES):
        path = lab.view / f"{number}/f"
        path.parent.mkdir()
        path.write_bytes(CONTENT)
        if kind == "stub":
            lab.make_stub(f"{number}/f", CONTENT)
        write_out(lab.data)
        assert differences(lab) == []
        all_shown(lab, change, path)
        all_shown(lab, set_flags, path.parent)


def test_what_is_undeleted_is_shown(lab: MountedLab) -> None:
    path = lab.make_stub("f", CONTENT)
    os.chown(path, ALICE, BOB)
    path.unlink()
    (row,) = deleted(lab.view)
    path.touch()
    assert differences(lab) == []
    with pytest.raises(OSError):
        os.setxattr(path, "user.dedupd.undelete", b"7-7")
    assert differences(lab) == []
    os.setxattr(path, "user.dedupd.undelete", row["id"].encode())
    assert path.read_bytes() == CONTENT
    assert differences(lab) == []


def test_what_settling_a_stub_changes_is_shown(lab: MountedLab) -> None:
    (lab.view / "f").write_bytes(CONTENT)
    lab.unmount()
    with stop_at("commit.durable"):
        lab.optimize()
    stub = lab.stub("f")
    assert stub is not None and stub.flags & Flag.COMMITTING
    lab.mount()
    assert differences(lab) == []
    with opened(os.open(lab.view / "f", os.O_RDONLY)) as fd:
        before = changed_ns(lab.data / "f")
        # After a read the kernel would ask for all attributes, for the access time.
        assert os.lseek(fd, 0, os.SEEK_DATA) == 0
    assert changed_ns(lab.data / "f") != before
    assert differences(lab) == []


def test_what_jobs_change_is_shown_at_each_of_their_steps(
    lab: MountedLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        (lab.view / name).write_bytes(CONTENT + name.encode())
    lab.make_stub("stub", CONTENT[::-1])
    (lab.view / "three").write_bytes(CONTENT)
    steps = list[str]()

    def look(step: str) -> None:
        steps.append(step)
        assert differences(lab) == [], step

    monkeypatch.setattr(failpoint, "hook", look)
    jobs: list[Callable[[], object]] = [lab.optimize, lab.collect, lab.compact, lab.unoptimize]
    for job in jobs:
        job()
        look("the end")
    assert len(steps) > len(jobs)
    assert lab.stub("one") is None


def test_what_a_commit_in_parts_changes_is_shown_at_each_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mounted_lab(tmp_path, POLICY, Nursery(serve_ageless)) as lab, Guest(lab) as guest:
        steps = list[str]()

        def look(step: str) -> None:
            steps.append(step)
            assert differences(lab) == [], step

        assert len(guest.content) == SIZE
        assert differences(lab) == []
        monkeypatch.setattr(failpoint, "hook", look)
        lab.optimize()
        assert steps
        assert lab.stub(NAME) is not None
        assert differences(lab) == []
