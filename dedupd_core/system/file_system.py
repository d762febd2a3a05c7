"""The file system of a descriptor: its type, options and identity, and protected files.

``/proc/self/mountinfo`` has no line for a detached mount, and a subvolume of btrfs has another
device number than its line. So the kernel is asked for the type if no line is found.
"""

import errno
import fcntl
import os
import struct
from contextlib import suppress
from dataclasses import dataclass

from dedupd_core import native
from dedupd_core.system import mount_table

_GETFLAGS = 0x8008_6601
"""``FS_IOC_GETFLAGS``, with its number on 64-bit machines."""
_SETFLAGS = 0x4008_6602
_IMMUTABLE, _APPEND_ONLY, _IGNORES_CASE = 0x10, 0x20, 0x4000_0000

_TITLES = [row.title for row in native.system.file_systems() if row.is_supported]
SUPPORTED = f"{', '.join(_TITLES[:-1])} or {_TITLES[-1]}"
"""The file systems to use, for messages."""

_XFS_GEOMETRY = 0x8100_587E
_XFS_GEOMETRY_BYTES = 256
_XFS_UUID = slice(64, 80)
_XFS_FLAGS_AT = 92
_XFS_IGNORES_CASE = 0x1000

_BTRFS_INFO = 0x8400_941F
_BTRFS_INFO_BYTES = 1024
_BTRFS_FLAGS_AT = 48
_BTRFS_UUID = slice(16, 32)
_BTRFS_METADATA_UUID = slice(64, 80)
_BTRFS_ASK_METADATA_UUID = 4


_EXT = frozenset(("ext2", "ext3", "ext4"))


@dataclass(frozen=True, slots=True)
class FileSystem:
    """A mounted file system. ``options`` are those of the file system, not of one of its mounts;
    for ext4 they include default options."""

    kind: str
    options: frozenset[str]

    @property
    def is_ext(self) -> bool:
        """True for ext4, and for ext2 and ext3, which the same driver mounts."""
        return self.kind in _EXT

    @property
    def data_mode(self) -> str:
        """The data mode of ext4, for example ``ordered``; empty without a journal."""
        modes = [one for one in self.options if one.startswith("data=")]
        return modes[0].removeprefix("data=") if modes else ""


def file_system_of(fd: int) -> FileSystem:
    """Return the file system of an open file. Raises OSError."""
    device = os.fstat(fd).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    kind, options = mount_table.file_system(_mount_id(fd), number) or (_kind_by_magic(fd), set())
    if kind in _EXT:
        options |= _ext4_options(number)
    return FileSystem(kind, frozenset(options))


def _mount_id(fd: int) -> str:
    with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name == "mnt_id":
                return value.strip()
    return ""


def _kind_by_magic(fd: int) -> str:
    row = native.system.file_system_kind(fd)
    return row.name or f"a file system of type {row.magic:#x}"


def _ext4_options(number: str) -> set[str]:
    """Return the active options, including those from the superblock; empty if the kernel hides
    them."""
    with suppress(OSError):
        name = os.path.basename(os.readlink(f"/sys/dev/block/{number}"))
        with open(f"/proc/fs/ext4/{name}/options", encoding="utf-8") as file:
            return set(file.read().split())
    return set()


def file_system_id(fd: int) -> str:
    """Return name and number of the file system of ``fd``.

    Both are equal with every kernel, and for snapshots and block by block copies. XFS and btrfs
    report their uuid, ext4 a number derived from it. For btrfs it is the uuid in its metadata: the
    other uuid is random if two copies are mounted at once. Raises OSError.
    """
    row = native.system.file_system_kind(fd)
    kind = row.name
    if kind == "xfs":
        return f"xfs:{_ioctl(fd, _XFS_GEOMETRY, bytearray(_XFS_GEOMETRY_BYTES))[_XFS_UUID].hex()}"
    if kind == "btrfs":
        return f"btrfs:{_btrfs_uuid(fd).hex()}"
    name = kind if kind == "ext4" else f"{row.magic:x}"
    return f"{name}:{os.fstatvfs(fd).f_fsid & 0xFFFF_FFFF_FFFF_FFFF:016x}"


def _btrfs_uuid(fd: int) -> bytes:
    asked = bytearray(_BTRFS_INFO_BYTES)
    struct.pack_into("<Q", asked, _BTRFS_FLAGS_AT, _BTRFS_ASK_METADATA_UUID)
    info = _ioctl(fd, _BTRFS_INFO, asked)
    (flags,) = struct.unpack_from("<Q", info, _BTRFS_FLAGS_AT)
    return info[_BTRFS_METADATA_UUID if flags & _BTRFS_ASK_METADATA_UUID else _BTRFS_UUID]


def _ioctl(fd: int, request: int, buffer: bytearray) -> bytes:
    fcntl.ioctl(fd, request, buffer)
    return bytes(buffer)


def is_protected(fd: int) -> bool:
    """Return whether a file or directory is immutable or append-only, and cannot be renamed."""
    try:
        flags = _ioctl(fd, _GETFLAGS, bytearray(8))
    except OSError as error:
        if error.errno in (errno.ENOTTY, errno.EOPNOTSUPP, errno.EINVAL):
            return False  # this file system has no such flags
        raise
    return bool(struct.unpack_from("=I", flags)[0] & (_IMMUTABLE | _APPEND_ONLY))


def may_ignore_case(fd: int) -> bool:
    """Return whether directories of a file system may ignore the case of names.

    ``fd``: a directory that is not empty. ext4 does not report its feature ``casefold``. With the
    feature, it refuses the flag for a directory with entries by a different error than without it,
    so this call changes nothing. Raises OSError.
    """
    if native.system.file_system_kind(fd).name == "xfs":
        geometry = _ioctl(fd, _XFS_GEOMETRY, bytearray(_XFS_GEOMETRY_BYTES))
        return bool(struct.unpack_from("=I", geometry, _XFS_FLAGS_AT)[0] & _XFS_IGNORES_CASE)
    try:
        flags = struct.unpack_from("=I", _ioctl(fd, _GETFLAGS, bytearray(8)))[0]
        if not flags & _IGNORES_CASE:
            _ioctl(fd, _SETFLAGS, bytearray(struct.pack("=Ixxxx", flags | _IGNORES_CASE)))
    except OSError as error:
        if error.errno in (errno.ENOTTY, errno.EOPNOTSUPP, errno.EINVAL, errno.EROFS, errno.EPERM):
            return False
        if error.errno != errno.ENOTEMPTY:
            raise
    return True


def block_bytes_of(fd: int) -> int:
    """Return the unit of storage of the file system or of the page cache."""
    return max(os.fstatvfs(fd).f_bsize, os.sysconf("SC_PAGE_SIZE"))


def rotates(fd: int) -> bool:
    """Return whether a descriptor's file is on a rotating disk. True if the kernel does not report
    it: for file systems of several devices, or of none."""
    device = os.fstat(fd).st_dev
    block = f"/sys/dev/block/{os.major(device)}:{os.minor(device)}"
    for place in ("queue", "../queue"):  # a partition has the value of its disk
        with suppress(OSError), open(f"{block}/{place}/rotational") as file:
            return file.read().strip() != "0"
    return True
