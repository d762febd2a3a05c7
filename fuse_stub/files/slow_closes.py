"""Closing files whose last name is gone: then the file system below frees their blocks.

That takes 4 µs for an extent whose metadata is in memory, and as long as the disk takes where it is
not. The caller's thread serves everybody, so the close of a large file goes to a thread of its own.
"""

import os
import queue
import threading

from dedupd_core.units import MIB
from fuse_stub.mounts.tasks import failures

FREED_BYTES_MAX = 4 * MIB
"""Freed at once: 1,024 extents of one block at most, in 4 ms. Going through a thread takes 0.1."""


def is_slow_to_free(freed_bytes: int) -> bool:
    """Whether others would notice how long it takes to free so many bytes of blocks."""
    return freed_bytes > FREED_BYTES_MAX


class SlowCloses:
    """A thread, once there is anything for it to do. Used by one other thread."""

    def __init__(self) -> None:
        self._fds: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def close(self, fd: int) -> None:
        """Close ``fd`` (taken over): here, or soon in the thread where that may take long."""
        status = os.fstat(fd)
        if status.st_nlink or not is_slow_to_free(status.st_blocks * 512):
            os.close(fd)
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="closes", daemon=True)
            self._thread.start()
        self._fds.put(fd)

    def _run(self) -> None:
        while (fd := self._fds.get()) is not None:
            with failures.noted("closing a removed file"):
                os.close(fd)

    def end(self) -> None:
        """Wait until all is closed."""
        if self._thread is not None:
            self._fds.put(None)
            self._thread.join()
            self._thread = None
