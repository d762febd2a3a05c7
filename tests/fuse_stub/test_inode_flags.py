"""Flags and projects of inodes, set by ``FS_IOC_FSSETXATTR`` as xfs_io and ``chattr -p`` do."""

import errno
import fcntl
import os
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from dedupd_core import native
from dedupd_core.system.files import opened
from tests.conftest import MakeFileSystem
from tests.support.lab import noise
from tests.support.mounts import ALICE, BOB, MountedLab, as_user, mounted_lab

pytestmark = pytest.mark.root

IMMUTABLE, APPEND, SYNCED, NO_ACCESS_TIMES, NOT_DUMPED = 0x08, 0x10, 0x20, 0x40, 0x80
INHERITED, EXTENT_SIZE, DAX = 0x200, 0x800, 0x8000
"""Flags of ``struct fsxattr``."""

CONTENT = noise(50_000)


class Extended(NamedTuple):
    """``struct fsxattr``."""

    flags: int
    extent_bytes: int = 0
    extents: int = 0
    project: int = 0
    copy_bytes: int = 0


_EXTENDED = struct.Struct("<5I8x")


def extended(path: Path) -> Extended:
    with opened(os.open(path, os.O_RDONLY)) as fd:
        answer = bytearray(_EXTENDED.size)
        fcntl.ioctl(fd, native.mount.GET_EXTENDED, answer)
    return Extended(*_EXTENDED.unpack(answer))


def set_extended(path: Path, **values: int) -> None:
    """Change some values, as programs do: those that were read stay."""
    changed = extended(path)._replace(**values)
    with opened(os.open(path, os.O_RDONLY)) as fd:
        fcntl.ioctl(fd, native.mount.SET_EXTENDED, _EXTENDED.pack(*changed))


INODE_IMMUTABLE, INODE_NO_ACCESS_TIMES, EXTENTS = 0x10, 0x80, 0x8_0000
"""Flags of ``FS_IOC_SETFLAGS``."""


def inode_flags(path: Path) -> int:
    with opened(os.open(path, os.O_RDONLY)) as fd:
        answer = bytearray(8)
        fcntl.ioctl(fd, native.mount.GET_FLAGS, answer)
    return int.from_bytes(answer[:4], "little")


def set_inode_flags(path: Path, flags: int) -> None:
    with opened(os.open(path, os.O_RDONLY)) as fd:
        fcntl.ioctl(fd, native.mount.SET_FLAGS, struct.pack("<Q", flags))


def refused(action: Callable[[], object], number: int) -> None:
    with pytest.raises(OSError) as refusal:
        action()
    assert refusal.value.errno == number


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[MountedLab]:
    with mounted_lab(tmp_path) as lab:
        lab.make_stub("stub", CONTENT)
        (lab.view / "plain").write_bytes(CONTENT)
        (lab.view / "folder").mkdir()
        yield lab


@pytest.fixture
def xfs_lab(loop_fs: MakeFileSystem) -> Iterator[MountedLab]:
    """XFS has projects without quotas."""
    with mounted_lab(loop_fs("xfs")) as lab:
        lab.make_stub("stub", CONTENT)
        (lab.view / "plain").write_bytes(CONTENT)
        (lab.view / "folder").mkdir()
        yield lab


@pytest.mark.parametrize("name", ["stub", "plain", "folder"])
def test_flags_are_set_below_and_the_change_shows(lab: MountedLab, name: str) -> None:
    path, below = lab.view / name, lab.data / name
    before = path.stat().st_ctime_ns
    set_extended(path, flags=SYNCED | NOT_DUMPED | NO_ACCESS_TIMES)
    shown = NOT_DUMPED | NO_ACCESS_TIMES | SYNCED
    assert extended(path).flags & shown == extended(below).flags & shown == shown
    assert path.stat().st_ctime_ns == below.stat().st_ctime_ns > before
    set_extended(path, flags=0)
    assert extended(below).flags & shown == 0


@pytest.mark.parametrize("name", ["stub", "plain", "folder"])
def test_a_change_of_all_flags_keeps_those_of_the_file_system(
    loop_fs: MakeFileSystem, name: str
) -> None:
    """A program that clears all flags does not know that ext4 marks files with extents."""
    with mounted_lab(loop_fs("ext4")) as lab:
        lab.make_stub("stub", CONTENT)
        (lab.view / "plain").write_bytes(CONTENT)
        (lab.view / "folder").mkdir()
        path, below = lab.view / name, lab.data / name
        before = inode_flags(below)
        assert before & EXTENTS
        set_inode_flags(path, INODE_IMMUTABLE)
        assert inode_flags(below) == before | INODE_IMMUTABLE
        set_inode_flags(path, 0)
        assert inode_flags(below) == inode_flags(path) == before
        subprocess.run(["chattr", "=A", path], check=True)
        assert inode_flags(below) == before | INODE_NO_ACCESS_TIMES
        if path.is_file():
            assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("flag", [IMMUTABLE, APPEND])
@pytest.mark.parametrize("name", ["stub", "plain"])
def test_a_file_that_is_protected_so_is_left_alone(lab: MountedLab, name: str, flag: int) -> None:
    path = lab.view / name
    with opened(os.open(path, os.O_RDWR)) as fd:
        os.pwrite(fd, b"y", 0)  # part of a block: the mount keeps a stub open for writing
        set_extended(path, flags=flag)
        try:
            refused(lambda: os.pwrite(fd, b"x", 0), errno.EPERM)
            refused(path.unlink, errno.EPERM)
            assert lab.optimize().files_optimized == (name == "stub")  # the other file
        finally:
            set_extended(path, flags=0)
        os.pwrite(fd, b"x", 0)
    assert path.read_bytes() == b"x" + CONTENT[1:]
    assert lab.optimize().files_optimized == 1


def test_only_root_protects_and_only_owners_change(lab: MountedLab) -> None:
    os.chown(lab.view / "plain", ALICE, ALICE)
    as_user(ALICE, lambda: set_extended(lab.view / "plain", flags=NOT_DUMPED))
    as_user(ALICE, lambda: refused(lambda: _immutable(lab.view / "plain"), errno.EPERM))
    as_user(BOB, lambda: refused(lambda: _clear(lab.view / "plain"), errno.EPERM))
    assert extended(lab.data / "plain").flags & (NOT_DUMPED | IMMUTABLE) == NOT_DUMPED


def _immutable(path: Path) -> None:
    set_extended(path, flags=IMMUTABLE)


def _clear(path: Path) -> None:
    set_extended(path, flags=0)


def test_what_belongs_to_the_file_system_below_is_refused(xfs_lab: MountedLab) -> None:
    path = xfs_lab.view / "folder"
    for values in ({"flags": DAX}, {"flags": 0x1000, "extent_bytes": 1 << 16}):
        with pytest.raises(OSError) as refusal:
            set_extended(path, **values)
        assert refusal.value.errno == errno.EOPNOTSUPP
    assert extended(path) == extended(xfs_lab.data / "folder")


@pytest.mark.parametrize("name", ["stub", "plain", "folder"])
def test_a_project_is_set_by_the_owner(xfs_lab: MountedLab, name: str) -> None:
    path, below = xfs_lab.view / name, xfs_lab.data / name
    os.chown(path, ALICE, ALICE)
    subprocess.run(["chattr", "-p", "7", path], check=True)
    assert extended(path).project == extended(below).project == 7
    as_user(ALICE, lambda: set_extended(path, project=8))
    assert extended(below).project == 8
    as_user(BOB, lambda: refused(lambda: set_extended(path, project=9), errno.EPERM))
    assert extended(below).project == 8
    assert (xfs_lab.view / "stub").read_bytes() == CONTENT
    assert xfs_lab.stub("stub") is not None


def test_a_user_namespace_sets_no_project(xfs_lab: MountedLab) -> None:
    """As on the file systems themselves: its root owns the file, and projects are the machine's."""
    path = xfs_lab.view / "plain"
    for where in (path, xfs_lab.data / "plain"):
        alone = ["unshare", "--user", "--map-root-user", "chattr", "-p", "7", str(where)]
        assert subprocess.run(alone, capture_output=True, check=False).returncode != 0
        assert extended(where).project == 0


def test_a_directory_hands_its_project_on(xfs_lab: MountedLab) -> None:
    folder = xfs_lab.view / "folder"
    set_extended(folder, project=7, flags=INHERITED)
    (folder / "file").write_bytes(CONTENT)
    (folder / "inner").mkdir()
    for name in ("file", "inner"):
        assert extended(xfs_lab.data / "folder" / name).project == 7
    refused(lambda: os.rename(xfs_lab.view / "plain", folder / "moved"), errno.EXDEV)
    assert xfs_lab.optimize().files_optimized == 2
    assert extended(folder / "file").project == 7
