"""Reads files once into reusable buffers, without filling the page cache."""

import mmap
import os
import queue
import re
from collections.abc import Iterable
from functools import cache

from dedupd_core.native.system import read_uncached
from dedupd_core.system.files import UNREADABLE, read_readable

DONT_CACHE = getattr(os, "RWF_DONTCACHE", 0x80)
"""Linux 6.14: new pages of a read or write are dropped again; other pages stay."""

_WRITES_SINCE = (6, 16)
"""Earlier releases dropped pages even if they were changed in between."""


@cache
def kernel_writes_uncached() -> bool:
    """Return whether writes may use DONT_CACHE; a file system may still refuse it."""
    numbers = re.findall(r"\d+", os.uname().release)[:2]
    return tuple(map(int, numbers)) >= _WRITES_SINCE


def new_buffer(length: int) -> mmap.mmap:
    """Allocate reusable memory, in large pages if the kernel has them."""
    buffer = mmap.mmap(-1, length, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        buffer.madvise(mmap.MADV_HUGEPAGE)
    except OSError:  # a kernel without large pages
        pass
    return buffer


def read_uncached_readable(fd: int, view: memoryview, offset: int) -> int:
    """Like :func:`native.system.read_uncached`, with zeros for unreadable blocks: for data with
    checksums, which do not match zeros."""
    try:
        return read_uncached(fd, view, offset)
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
    data = read_readable(fd, len(view), offset)
    view[: len(data)] = data
    return len(data)


class BufferPool:
    """A fixed number of buffers: limits a pipeline's memory, and slows down its reader.

    The buffer that was returned last is reused first: it is still in the processor's cache.
    """

    def __init__(self, buffers: Iterable[mmap.mmap]) -> None:
        self._free: queue.LifoQueue[mmap.mmap | None] = queue.LifoQueue()
        for buffer in buffers:
            self._free.put(buffer)

    def take(self) -> mmap.mmap | None:
        """Wait for a buffer and return it; None when the pool is closed."""
        return self._free.get()

    def give(self, buffer: mmap.mmap) -> None:
        self._free.put(buffer)

    def close(self) -> None:
        self._free.put(None)

    def reopen(self) -> None:
        """Serve the next reader. The caller makes sure that no thread waits."""
        buffers = [self._free.get() for _ in range(self._free.qsize())]
        for buffer in buffers:
            if buffer is not None:
                self._free.put(buffer)
