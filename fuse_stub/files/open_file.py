"""One file that is open."""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import trio

from dedupd_core.format.stub import Flag
from dedupd_core.stub.stub_file import SparseStub
from dedupd_core.system.tree.tree_paths import name_in_tree
from fuse_stub.files.attributes import forget_attributes
from fuse_stub.files.shared_lock import SharedLock
from fuse_stub.files.slow_closes import is_slow_to_free


@dataclass(slots=True, eq=False)
class OpenFile:
    """A regular file that is open, for requests, for a commit, or for requests to come.

    Used by the thread of the event loop. A field marked "lock" changes only while a task has
    ``lock`` alone; the others change between two awaits (docs/design/mount-locks.md).
    """

    ino: int
    tree_fd: int  # of the volume
    fd: int  # lock
    writable: bool  # lock: whether ``fd`` is open for writing too
    privileged: bool  # whether a write has set-user-id or set-group-id to clear
    stub: SparseStub | None = None  # lock: None of a plain file
    settled: trio.Event | None = None  # while the file is settled, before its first use
    unsettled: bool = False  # read as a crash left it, since nothing can be changed
    # Shared: use of ``fd``; alone: what the bytes lie in changes.
    lock: SharedLock = field(default_factory=SharedLock)
    users: int = 0  # requests and commits that keep the file open
    idle_since_s: float = 0.0  # when the last of them has gone
    changes: int = 0  # counts attempts to change the file: a commit compares it
    losses: int = 0  # counts syncs that failed
    losses_told: int = 0  # as many of them as users have been told of
    is_lent: bool = False  # whether native code uses it, while it has no users here
    is_filled: bool = False  # whether it is being made plain: a commit keeps out of its way
    keeps_times: bool = False  # lock: whether its times are put back when the lock is given back
    on_write: Callable[[int, int], None] | None = None  # told of each, under the lock
    protected: bool = False  # whether it became immutable, or append-only, while it was open

    @contextmanager
    def noting_losses(self) -> Iterator[None]:
        """For a block that syncs ``fd``: the file system below reports lost writes once, and the
        report concerns all users."""
        try:
            yield
        except OSError:
            self.losses += 1
            raise

    def is_slow_to_cut(self, size: int) -> bool:
        """Whether :meth:`cut` may keep the calling thread waiting."""
        status = os.fstat(self.fd)
        freed_bytes = min(status.st_size - size, status.st_blocks * 512)
        # A stub that grows may need a chunk, from the disk.
        grows = self.stub is not None and size > status.st_size
        return grows or is_slow_to_free(freed_bytes)

    def cut(self, size: int) -> bool:
        """Change the length, in whatever thread; whether the file is plain from now on.

        It is open for writing, the caller has its lock alone, and no commit of it is under way: see
        :meth:`fuse_stub.commit_lane.CommitLane.truncate`. Raises OSError.
        """
        if self.stub is None:
            os.ftruncate(self.fd, size)
            return True
        return self.stub.truncate(size)

    def drop_set_ids(self) -> None:
        """A write clears set-user-id, and set-group-id where the group may execute."""
        mode = stat.S_IMODE(os.fstat(self.fd).st_mode)
        kept = mode & ~stat.S_ISUID
        if mode & stat.S_IXGRP:
            kept &= ~stat.S_ISGID
        if kept != mode:
            os.fchmod(self.fd, kept)
            # The kernel leaves this to the mount (``handshake.rs``), and has the old mode cached.
            forget_attributes(self.ino)
        self.privileged = False

    @property
    def is_native(self) -> bool:
        """Whether native code answers for it, mostly, while it is not open here: a plain file, or a
        stub of one chunk with nothing of its own."""
        return self.stub is None or self.stub.attribute.flags == Flag.DIRECT

    @property
    def where(self) -> str:
        """The current name of the file, for messages."""
        return name_in_tree(self.tree_fd, self.fd)
