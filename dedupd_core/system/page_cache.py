"""Reading files once without filling the page cache, into buffers that are used again.

Native calls have two ways of their own: ``native/src/system/reads.rs`` for files, and ``O_DIRECT``
(``native/src/threads/read_ahead.rs``) for containers.
"""

import errno
import mmap
import os
import queue
import re
from collections.abc import Iterable
from functools import cache

from dedupd_core.system.files import UNREADABLE, read_readable
from dedupd_core.units import MIB

DONT_CACHE = getattr(os, "RWF_DONTCACHE", 0x80)
"""Linux 6.14: pages that a read or write brings in are dropped again; other pages stay."""

_WRITES_SINCE = (6, 16)
"""Earlier releases dropped pages without regard to changes made meanwhile."""

_READ_BYTES = 1 * MIB
"""Read by one call: fits into the processor's cache, 5 % faster than all in one call."""

_kernel = {"knows_dont_cache": True}


@cache
def kernel_writes_uncached() -> bool:
    """Whether writes may be given DONT_CACHE; a file system may still refuse it."""
    numbers = re.findall(r"\d+", os.uname().release)[:2]
    return tuple(map(int, numbers)) >= _WRITES_SINCE


def new_buffer(length: int) -> mmap.mmap:
    """Memory that is used again and again, in large pages where the kernel has them."""
    buffer = mmap.mmap(-1, length, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        buffer.madvise(mmap.MADV_HUGEPAGE)
    except OSError:  # a kernel without them
        pass
    return buffer


def read_uncached(fd: int, view: memoryview, offset: int) -> int:
    """Fill ``view``; leaves no new pages in the page cache.

    Returns the bytes read, short only at the end of the file. Raises OSError.
    """
    have = 0
    while have < len(view):
        flags = DONT_CACHE if _kernel["knows_dont_cache"] else 0
        try:
            count = os.preadv(fd, [view[have : have + _READ_BYTES]], offset + have, flags)
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.EINVAL) and flags:
                _kernel["knows_dont_cache"] = False
                continue
            raise
        if count == 0:
            break
        have += count
    if not _kernel["knows_dont_cache"]:
        os.posix_fadvise(fd, offset, have, os.POSIX_FADV_DONTNEED)
    return have


def read_uncached_readable(fd: int, view: memoryview, offset: int) -> int:
    """As :func:`read_uncached`, with zeros for each block that cannot be read: for data with
    checksums, which zeros fail."""
    try:
        return read_uncached(fd, view, offset)
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
    data = read_readable(fd, len(view), offset)
    view[: len(data)] = data
    return len(data)


class BufferPool:
    """A fixed number of buffers: the bound on a pipeline's memory, and the brake on its reader.

    The buffer that was given back last is taken first: the processor's cache still has it.
    """

    def __init__(self, buffers: Iterable[mmap.mmap]) -> None:
        self._free: queue.LifoQueue[mmap.mmap | None] = queue.LifoQueue()
        for buffer in buffers:
            self._free.put(buffer)

    def take(self) -> mmap.mmap | None:
        """A buffer, waiting for one; None once the pool is closed."""
        return self._free.get()

    def give(self, buffer: mmap.mmap) -> None:
        self._free.put(buffer)

    def close(self) -> None:
        self._free.put(None)

    def reopen(self) -> None:
        """Serve the next reader; no thread may be waiting."""
        buffers = [self._free.get() for _ in range(self._free.qsize())]
        for buffer in buffers:
            if buffer is not None:
                self._free.put(buffer)
