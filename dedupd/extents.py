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
from collections.abc import Iterator

from dedupd import native
from dedupd.disk import Disk
from dedupd.ranges import missing_ranges

_FIEMAP = 0xC020_660B
_HEAD = struct.Struct("<QQIIII")
_EXTENT = struct.Struct("<QQQQQIIII")
_LAST = 0x1
_UNWRITTEN = 0x800
_EXTENTS_PER_CALL = 256
_SYNC_FIRST = 0x1

_FSGETXATTR = 0x801C_581F
_FSXATTR = struct.Struct("<IIIII8x")
_HAS_EXTENT_SIZE = 0x800


def unwritten_ranges(fd: int, end: int) -> Iterator[tuple[int, int]]:
    """(start, end) ranges below ``end`` whose blocks are allocated and not written on disk yet.

    None on a file system that can't tell, which is one that does not outlive the machine (tmpfs).
    """
    return _unwritten(fd, end, 0)


def _unwritten(fd: int, end: int, flags: int) -> Iterator[tuple[int, int]]:
    position = 0
    while position < end:
        buffer = bytearray(_HEAD.size + _EXTENTS_PER_CALL * _EXTENT.size)
        _HEAD.pack_into(buffer, 0, position, end - position, flags, 0, _EXTENTS_PER_CALL, 0)
        try:
            fcntl.ioctl(fd, _FIEMAP, buffer)
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.ENOTTY):
                return
            raise
        count = _HEAD.unpack_from(buffer)[3]
        if count == 0:
            return
        for at in range(count):
            start, _, length, _, _, kind, *_ = _EXTENT.unpack_from(
                buffer, _HEAD.size + at * _EXTENT.size
            )
            if kind & _UNWRITTEN and start < end:
                yield start, start + length
            position = start + length
            if kind & _LAST:
                return


def written_ranges(fd: int, end: int) -> list[tuple[int, int]]:
    """(start, end) ranges below ``end`` that somebody wrote, whatever was only allocated or read.

    For those who may not, or need not, :func:`drop_unwritten`.
    """
    if os.fstat(fd).st_blocks == 0 or next(unwritten_ranges(fd, end), None) is None:
        return native.present_ranges(fd, 0, end)
    # What is only in memory yet counts as written, so it has to be on disk to tell.
    unwritten = list(_unwritten(fd, end, _SYNC_FIRST))
    return [
        part
        for start, stop in native.present_ranges(fd, 0, end)
        for part in missing_ranges(unwritten, start, stop)
    ]


def drop_unwritten(fd: int, size: int, disk: Disk) -> None:
    """Turn what was allocated but never written into holes.

    What is only in memory yet is written first, by the very call that then tells, and stays. Nobody
    else may write meanwhile.
    """
    if next(unwritten_ranges(fd, size), None) is None:
        return
    for start, end in list(_unwritten(fd, size, _SYNC_FIRST)):
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
