"""What a mount consists of, put together for the operations."""

import time
from collections.abc import Callable
from typing import TypeVar

import trio

from dedupd.volume.transition_log import Transitions
from dedupd.volume.volume import Volume
from fuse_stub.commit_lane import Commits
from fuse_stub.files.chunk_cache import ChunkCache
from fuse_stub.files.inodes import Inodes
from fuse_stub.files.open_files import OpenFiles
from fuse_stub.files.read_ahead import Streams
from fuse_stub.gc_names import Marking

T = TypeVar("T")


WRITE_WAIT_S = 0.05
"""A write of 1 MiB to the page cache takes 0.5 ms, and a thread and contending with it for the
interpreter more than that. What takes this long had to wait for the disk: a busy machine keeps a
process waiting for 10 or 20 ms, the kernel a writer that is ahead of the disk for up to 200."""

WRITES_WAIT_S = 1.0
"""For how long writes are expected to wait after one did."""


class Served:
    """One volume being served."""

    def __init__(
        self,
        volume: Volume,
        transitions: Transitions,
        mountpoint: str,
        cache_bytes: int,
        threads: int,
    ) -> None:
        self.volume = volume
        self.mountpoint = mountpoint
        self.inodes = Inodes(volume.data_fd)
        self.cache = ChunkCache(volume.chunk_records, cache_bytes, threads)
        self.streams = Streams(volume.chunk_records, self.cache, threads)
        self.files = OpenFiles(volume, transitions, self.inodes, self.cache)
        self.commits = Commits(volume, transitions, self.files)
        self._writes_wait_until_s = 0.0
        self.marking = Marking(volume, self.inodes, self.files, self.commits)

    async def in_thread(self, function: Callable[..., T], *args: object) -> T:
        """Run what may block where it does not hold up everybody else."""
        return await trio.to_thread.run_sync(function, *args)

    async def write(self, function: Callable[..., int], *arguments: object) -> int:
        """Write to the page cache: at once, or in a thread where that has had to wait lately."""
        if time.monotonic() < self._writes_wait_until_s:
            return await self.in_thread(self._timed_write, function, *arguments)
        return self._timed_write(function, *arguments)

    def _timed_write(self, function: Callable[..., int], *arguments: object) -> int:
        began = time.monotonic()
        try:
            return function(*arguments)
        finally:
            ended = time.monotonic()
            if ended - began > WRITE_WAIT_S:
                self._writes_wait_until_s = ended + WRITES_WAIT_S

    def close(self) -> None:
        self.streams.forget_all()
        self.cache.close()
        self.files.close()
        self.inodes.close()
