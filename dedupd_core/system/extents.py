"""Extents that are allocated but were never written (``FS_IOC_FIEMAP``).

They read as zeros, and ``SEEK_DATA`` reports them as holes. After a program reads them, or the
kernel reads ahead into them, their pages are in the cache and ``SEEK_DATA`` reports data (seen on
ext4 and XFS). ``fallocate`` makes such extents, and ext4 and XFS leave them if the machine stops
between the allocation and the write of a block. In a stub they have to be holes.

Native code reads the extent map itself (``native/src/system/extents.rs``).
"""

from dedupd_core import native
from dedupd_core.system.disk import Disk


def has_unwritten(fd: int, end: int) -> bool:
    """Return whether blocks below ``end`` are allocated but not yet written on disk."""
    return bool(native.system.unwritten_ranges(fd, end, sync=False))


def drop_unwritten(fd: int, size: int, disk: Disk) -> None:
    """Turn extents that were allocated but never written into holes.

    The call that lists them writes dirty pages first, so these stay. No other writer may be active.
    """
    if not has_unwritten(fd, size):
        return
    for start, end in native.system.unwritten_ranges(fd, size, sync=True):
        disk.punch(fd, start, end - start)
