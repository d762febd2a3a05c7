"""Extents that are allocated but were never written (``FS_IOC_FIEMAP``).

They read as zeros, and ``SEEK_DATA`` reports them as holes. After a program reads them, or the
kernel reads ahead into them, their pages are in the cache and ``SEEK_DATA`` reports data (seen on
ext4 and XFS). ``fallocate`` makes such extents, and ext4 and XFS leave them if the machine stops
between the allocation and the write of a block. In a stub they have to be holes.

Native code reads the extent map itself (``native/src/system/extents.rs``).
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
    """Return whether blocks below ``end`` are allocated but not yet written on disk."""
    return bool(native.system.unwritten_ranges(fd, end, sync=False))


def written_ranges(fd: int, end: int) -> list[tuple[int, int]]:
    """Return (start, end) ranges below ``end`` that were written, and not only allocated.

    For readers; a caller that may change the file uses :func:`drop_unwritten`.
    """
    if os.fstat(fd).st_blocks == 0 or not has_unwritten(fd, end):
        return native.system.present_ranges(fd, 0, end)
    # Dirty pages count as written, but the map shows this only when they are on disk.
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
    """Return the extent size hint of a file in bytes; 0 without a hint.

    XFS has these hints, and ``qemu-img`` sets one of 1 MiB for each image that it makes. If a block
    is written into a hole, XFS then also allocates the blocks around it, unwritten.
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
