"""Extents that are allocated but were never written (``FS_IOC_FIEMAP``).

They read as zeros, and ``SEEK_DATA`` calls them holes until a program reads them, or the kernel
reads ahead into them: then their pages are in the cache and ``SEEK_DATA`` calls them data (seen on
ext4 and XFS). ext4 and XFS leave such extents when the machine stops between the allocation and the
write of a block, and ``fallocate`` makes them. In a stub they have to be holes.

The extent map itself is read by native code (``native/src/system/extents.rs``).
"""

import errno
import fcntl
import os
import struct

from dedupd_core import native
from dedupd_core.byte_ranges import missing_ranges
from dedupd_core.system.disk import Disk

_FSGETXATTR = 0x801C_581F
_FSXATTR = struct.Struct("<IIIII8x")
_HAS_EXTENT_SIZE = 0x800


def has_unwritten(fd: int, end: int) -> bool:
    """Whether blocks below ``end`` are allocated and not written on disk yet."""
    return bool(native.system.unwritten_ranges(fd, end, sync=False))


def written_ranges(fd: int, end: int) -> list[tuple[int, int]]:
    """(start, end) ranges below ``end`` that were written, and not just allocated.

    For readers; a caller that may change the file uses :func:`drop_unwritten`.
    """
    if os.fstat(fd).st_blocks == 0 or not has_unwritten(fd, end):
        return native.system.present_ranges(fd, 0, end)
    # Dirty pages count as written, and show as such only once they are on the disk.
    unwritten = native.system.unwritten_ranges(fd, end, sync=True)
    return [
        part
        for present in native.system.present_ranges(fd, 0, end)
        for part in missing_ranges(unwritten, *present)
    ]


def drop_unwritten(fd: int, size: int, disk: Disk) -> None:
    """Turn extents that were allocated but never written into holes.

    The call that lists them writes dirty pages first, so these stay. No other writer may be active.
    """
    if not has_unwritten(fd, size):
        return
    for start, end in native.system.unwritten_ranges(fd, size, sync=True):
        disk.punch(fd, start, end - start)


def extent_size_hint(fd: int) -> int:
    """The size of the extents that a file is to get, in bytes; 0 where it has no such hint.

    XFS has these hints, and ``qemu-img`` sets one of 1 MiB for each image that it makes: with a
    block that is written into a hole, XFS allocates the blocks around it, unwritten.
    """
    buffer = bytearray(_FSXATTR.size)
    try:
        fcntl.ioctl(fd, _FSGETXATTR, buffer)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.ENOTTY):
            return 0
        raise
    flags, size_bytes, *_ = _FSXATTR.unpack(buffer)
    return size_bytes if flags & _HAS_EXTENT_SIZE else 0
