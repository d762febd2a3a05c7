"""Extents that are allocated but were never written (``FS_IOC_FIEMAP``).

They read as zeros, and ``SEEK_DATA`` calls them holes, until somebody reads them: then their pages
are in the cache and ``SEEK_DATA`` calls them data (seen on ext4 and XFS). ext4 and XFS leave such
extents behind when the machine stops between the allocation and the write of a block, and
``fallocate`` makes them. In a stub they have to be holes.
"""

import errno
import fcntl
import struct
from collections.abc import Iterator

from dedupd.disk import Disk

_FIEMAP = 0xC020_660B
_HEAD = struct.Struct("<QQIIII")
_EXTENT = struct.Struct("<QQQQQIIII")
_LAST = 0x1
_UNWRITTEN = 0x800
_EXTENTS_PER_CALL = 256


def unwritten_ranges(fd: int, end: int) -> Iterator[tuple[int, int]]:
    """(start, end) ranges below ``end`` whose blocks are allocated and not written on disk yet.

    None on a file system that can't tell, which is one that does not outlive the machine (tmpfs).
    """
    position = 0
    while position < end:
        buffer = bytearray(_HEAD.size + _EXTENTS_PER_CALL * _EXTENT.size)
        _HEAD.pack_into(buffer, 0, position, end - position, 0, 0, _EXTENTS_PER_CALL, 0)
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
            start, _, length, _, _, flags, *_ = _EXTENT.unpack_from(
                buffer, _HEAD.size + at * _EXTENT.size
            )
            if flags & _UNWRITTEN and start < end:
                yield start, start + length
            position = start + length
            if flags & _LAST:
                return


def drop_unwritten(fd: int, size: int, disk: Disk) -> None:
    """Turn what was allocated but never written into holes.

    What is only in memory yet is written first, and stays. Nobody else may write meanwhile.
    """
    if next(unwritten_ranges(fd, size), None) is None:
        return
    disk.sync_data(fd)
    for start, end in list(unwritten_ranges(fd, size)):
        disk.punch(fd, start, end - start)
