"""Flags of inodes, as ``lsattr`` shows and ``chattr`` sets them: those of the file system below."""

import errno
import fcntl
import os
import struct

from dedupd_core import native
from dedupd_core.system.files import opened

IMMUTABLE, APPEND_ONLY = 0x10, 0x20
PROTECTING = IMMUTABLE | APPEND_ONLY
"""With these no file can be opened for writing any more."""

_SETTABLE = PROTECTING | sum(
    (
        0x1,  # removed securely
        0x2,  # to be had back
        0x4,  # compressed
        0x8,  # synced
        0x40,  # not dumped
        0x80,  # without access times
        0x400,  # not compressed
        0x8000,  # without tails
        0x1_0000,  # directories synced
        0x2_0000,  # top of a hierarchy
        0x80_0000,  # without copy on write
        0x2000_0000,  # the project of the directory
    )
)
"""Not among them: upper and lower case the same (the kernel keeps names of the mount apart), and
data in the journal (docs/design/crash-safety.md says nothing of it)."""

_KEPT = sum(
    (
        0x800,  # encrypted
        0x1000,  # directory with an index
        0x4_0000,  # huge file
        0x8_0000,  # extents
        0x10_0000,  # verity
        0x1000_0000,  # data in the inode
    )
)
"""Set by the file system below itself, and kept by every change. A program that clears all flags
(``chattr =``, or an ioctl with 0) does not know them. ext4 ignores that for all but extents: it
would go back to its old maps of blocks, which belong to the allocation of the file system."""

_PROTECTING_EXTENDED = 0x08 | 0x10
_SETTABLE_EXTENDED = _PROTECTING_EXTENDED | sum(
    (
        0x20,  # synced
        0x40,  # without access times
        0x80,  # not dumped
        0x200,  # the project of the directory
    )
)
"""The flags above that a structure with a project has, under its numbers. Not among them: sizes of
extents, which belong to the allocation of the file system below, and DAX."""

_SHOWN_ONLY = 0x02 | 0x8000_0000
"""Set by the file system itself, which ignores what a change says of them: space was allocated in
advance, and there are extended attributes."""

_FLAGS = struct.Struct("<I")

_EXTENDED = struct.Struct("<5I8x")
"""``struct fsxattr``: flags, size of extents, their number, project, size of extents for copy on
write."""


def read_flags(path: bytes, command: int, length: int) -> bytes:
    """The answer to an ioctl, of a ``length``, by which flags are asked for. Raises OSError."""
    with opened(_open(path)) as fd:
        answer = bytearray(max(length, 8))
        fcntl.ioctl(fd, command, answer)
        return bytes(answer[:length])


def set_flags(path: bytes, data: bytes) -> bool:
    """Set the flags in ``data``; returns whether they protect the inode. Raises OSError."""
    (flags,) = _FLAGS.unpack_from(data)
    with opened(_open(path)) as fd:
        answer = bytearray(8)
        fcntl.ioctl(fd, native.mount.GET_FLAGS, answer)
        (before,) = _FLAGS.unpack_from(answer)
        flags |= before & _KEPT
        if (before ^ flags) & ~_SETTABLE:
            raise _unsupported()
        fcntl.ioctl(fd, native.mount.SET_FLAGS, _FLAGS.pack(flags) + bytes(4))
    return bool(flags & PROTECTING)


def set_extended(path: bytes, data: bytes) -> bool:
    """As :func:`set_flags`, with a project, both from a ``struct fsxattr``.

    The kernel has checked that the caller owns the inode or has ``CAP_FOWNER``, and that a new
    project comes from the first user namespace, as file systems on disks demand.
    """
    flags, extent_bytes, _, _, copy_bytes = _EXTENDED.unpack(data)
    with opened(_open(path)) as fd:
        answer = bytearray(_EXTENDED.size)
        fcntl.ioctl(fd, native.mount.GET_EXTENDED, answer)
        before, extent_bytes_before, _, _, copy_bytes_before = _EXTENDED.unpack(answer)
        sizes_change = (extent_bytes, copy_bytes) != (extent_bytes_before, copy_bytes_before)
        if sizes_change or (before ^ flags) & ~(_SETTABLE_EXTENDED | _SHOWN_ONLY):
            raise _unsupported()
        fcntl.ioctl(fd, native.mount.SET_EXTENDED, data)
    return bool(flags & _PROTECTING_EXTENDED)


def _unsupported() -> OSError:
    return OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))


def _open(path: bytes) -> int:
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
