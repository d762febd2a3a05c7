"""Combines the parts of a mount for its operations."""

import time
from collections.abc import Callable
from typing import TypeVar

import trio

from dedupd_core import native
from dedupd_core.system.file_system import may_ignore_case
from dedupd_core.volume.transition_log import Transitions
from dedupd_core.volume.volume import Volume
from fuse_stub.bulk_commits import BulkCommits
from fuse_stub.busy.part_lane import PartLane
from fuse_stub.commit_lane import CommitLane
from fuse_stub.deleted.attributes import Listings
from fuse_stub.deleted.noting import Deletions
from fuse_stub.files import attributes
from fuse_stub.files.file_handles import load_secret
from fuse_stub.files.inodes import Inodes
from fuse_stub.files.open_files import OpenFiles
from fuse_stub.files.slow_calls import SlowCalls
from fuse_stub.files.slow_closes import SlowCloses
from fuse_stub.fill_lane import FillLane
from fuse_stub.gc_names import MarkingSessions
from fuse_stub.kernel.reserved_blocks import Caller, ReservedBlocks
from fuse_stub.mounts.private_mount import PrivateMount
from fuse_stub.policy.brake import Brake
from fuse_stub.policy.turns import Turns
from fuse_stub.policy.watched_policy import WatchedPolicy

T = TypeVar("T")

POLICY_LOOK_S = 0.25
"""The interval between checks of the policy for native code."""


DIGESTS_MAX = 4
"""Digests of contents that are computed at a time: each may wait for the disk, and decoding a node
of a recipe takes a millisecond of the interpreter."""

WAITING_MAX = 64
"""Waiting digest requests of one user; each uses a task (``request_pump.py``)."""

WRITE_WAIT_S = 0.05
"""A write of 1 MiB to the page cache takes 0.5 ms; handing it to a thread takes longer. A write
that takes this long waited for the disk. On a busy machine a process may wait 10 or 20 ms. The
kernel delays a writer that is faster than the disk by up to 200 ms."""

WRITES_WAIT_S = 1.0
"""After a write that waited, further writes are expected to wait for this time."""


class MountedVolume:
    """One volume and the parts of the mount that serves it."""

    def __init__(
        self,
        volume: Volume,
        transitions: Transitions,
        mountpoint: str,
        cache_bytes: int,
        threads: int,
        *,
        private: PrivateMount | None = None,
    ) -> None:
        """``private``: the mount through which ``volume`` was opened; None for a snapshot, which is
        mounted separately from the volume, and unknown to its jobs."""
        self.volume = volume
        self.private = private
        self.mountpoint = mountpoint
        self.line: native.mount.Line | None = None  # to the kernel, while the mount is served
        self.device = ""  # ``major:minor`` of the mount, when it answers
        self.is_read_only = transitions.is_read_only
        self.slow_calls = SlowCalls()
        self._closes = SlowCloses()
        self.inodes = Inodes(volume.data_fd, volume.space.name, load_secret(volume))
        if may_ignore_case(volume.base_fd):
            self.inodes.ignore_case()
            attributes.ignore_case()
        self.reserved_blocks = ReservedBlocks(self.inodes)
        self.contents = volume.contents_cached(cache_bytes, threads)
        self.cache = self.contents.cache
        self.inodes.read_stubs(
            self.contents.native, volume.space.seeds, volume.block_bytes, volume.disk.door
        )
        self.files = OpenFiles(volume, transitions, self.inodes, self.contents, self._closes)
        policy = WatchedPolicy(volume, is_read_only=transitions.is_read_only)
        self.policy = policy
        self.deletions = Deletions(volume, policy)
        self.listings = Listings(volume, self.in_thread)
        self.digest_turns = Turns(self.in_thread, at_once=DIGESTS_MAX, user_max=WAITING_MAX)
        self.brake = Brake(volume, policy)
        self.parts = PartLane(volume, self.inodes, self.files)
        self.commit_lane = CommitLane(
            volume, transitions, self.files, self.slow_calls, self.deletions, self.parts
        )
        self.bulk_commits = BulkCommits(volume, transitions, self.files, self.commit_lane)
        self.fill_lane = FillLane(volume, transitions, self.files, self.commit_lane)
        self._writes_wait_until_s = 0.0
        self.marking_sessions = MarkingSessions(volume, self.inodes, self.files, self.commit_lane)

    @property
    def is_snapshot(self) -> bool:
        return self.private is None

    @property
    def base_for_jobs_fd(self) -> int:
        """The ``.dedupd`` for jobs: if it is read-only, they change nothing."""
        if self.private is None or self.is_read_only:
            return self.volume.base_fd
        return self.private.below_fd

    @property
    def own_mount_fds(self) -> list[int]:
        """The ``.dedupd`` in the mounts of the file system below that jobs and this mount use."""
        return [self.base_for_jobs_fd, self.volume.base_fd]

    async def in_thread(self, uid: int, function: Callable[..., T], *args: object) -> T:
        """Run a function in one of a user's threads: it may block, and the event loop continues."""
        return await self.slow_calls.run(uid, function, *args)

    def change(self, caller: Caller, function: Callable[..., T], *args: object) -> T:
        """Call a function that changes files below for a user."""
        return self.reserved_blocks.change(caller, function, *args)

    async def change_in_thread(
        self, caller: Caller, function: Callable[..., T], *args: object
    ) -> T:
        """Like :meth:`change`, in a thread as by :meth:`in_thread`."""
        return await self.in_thread(caller.uid, self.change, caller, function, *args)

    async def write(self, caller: Caller, function: Callable[..., T], *arguments: object) -> T:
        """Write to the page cache: at once, or in a thread while writes are expected to wait."""
        if time.monotonic() < self._writes_wait_until_s:
            return await self.in_thread(caller.uid, self._timed_write, caller, function, *arguments)
        return self._timed_write(caller, function, *arguments)

    def _timed_write(self, caller: Caller, function: Callable[..., T], *arguments: object) -> T:
        began = time.monotonic()
        try:
            return self.change(caller, function, *arguments)
        finally:
            ended = time.monotonic()
            if ended - began > WRITE_WAIT_S:
                self._writes_wait_until_s = ended + WRITES_WAIT_S

    async def watch_policy(self) -> None:
        """Make native code pass new files, and writes, to Python while these may have to wait."""
        while True:
            self.inodes.delay_files(self.brake.is_on)
            self.inodes.allow_writes(self.brake.allowed_bytes)
            await trio.sleep(POLICY_LOOK_S)

    def close(self) -> None:
        self.deletions.close()
        self.files.close()
        self.inodes.close()
        self._closes.end()
