"""What a mount consists of, put together for the operations."""

from collections.abc import Callable
from typing import TypeVar

import trio

from dedupd.transitions import Transitions
from dedupd.volume import Volume
from fuse_stub.cache import ChunkCache
from fuse_stub.commits import Commits
from fuse_stub.files import OpenFiles
from fuse_stub.inodes import Inodes
from fuse_stub.marking import Marking

T = TypeVar("T")


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
        self.files = OpenFiles(volume, transitions, self.inodes, self.cache)
        self.commits = Commits(volume, transitions, self.files)
        self.marking = Marking(volume, self.inodes, self.files, self.commits)

    async def in_thread(self, function: Callable[..., T], *args: object) -> T:
        """Run what may block where it does not hold up everybody else."""
        return await trio.to_thread.run_sync(function, *args)

    def close(self) -> None:
        self.cache.close()
        self.files.close()
        self.inodes.close()
