"""Extents that are allocated but were never written (``FS_IOC_FIEMAP``).

They read as zeros, and ``SEEK_DATA`` calls them holes, until somebody reads them, or the kernel
reads ahead into them: then their pages are in the cache and ``SEEK_DATA`` calls them data (seen on
ext4 and XFS). ext4 and XFS leave such extents behind when the machine stops between the allocation
and the write of a block, and ``fallocate`` makes them. In a stub they have to be holes.
"""

import errno
import fcntl
import os
import struct

from dedupd import native
from dedupd.byte_ranges import missing_ranges
from dedupd.system.disk import Disk

_FSGETXATTR = 0x801C_581F
_FSXATTR = struct.Struct("<IIIII8x")
_HAS_EXTENT_SIZE = 0x800


def has_unwritten(fd: int, end: int) -> bool:
    """Whether blocks below ``end`` are allocated and not written on disk yet."""
    return bool(native.system.unwritten_ranges(fd, end, sync=False))


def written_ranges(fd: int, end: int) -> list[tuple[int, int]]:
    """(start, end) ranges below ``end`` that somebody wrote, whatever was only allocated or read.

    For those who may not, or need not, :func:`drop_unwritten`.
    """
    if os.fstat(fd).st_blocks == 0 or not has_unwritten(fd, end):
        return native.system.present_ranges(fd, 0, end)
    # What is only in memory yet counts as written, so it has to be on disk to tell.
    unwritten = native.system.unwritten_ranges(fd, end, sync=True)
    return [
        part
        for start, stop in native.system.present_ranges(fd, 0, end)
        for part in missing_ranges(unwritten, start, stop)
    ]


def drop_unwritten(fd: int, size: int, disk: Disk) -> None:
    """Turn what was allocated but never written into holes.

    What is only in memory yet is written first, by the very call that then tells, and stays. Nobody
    else may write meanwhile.
    """
    if not has_unwritten(fd, size):
        return
    for start, end in native.system.unwritten_ranges(fd, size, sync=True):
        disk.punch(fd, start, end - start)


def extent_size_hint(fd: int) -> int:
    """The pieces in which a file is to get its blocks, in bytes; 0 where it gets what it needs.

    XFS has such hints, and ``qemu-img`` sets one of 1 MiB for each image that it makes: a block
    written into a hole brings the blocks around it along, allocated and unwritten.
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
