"""Restoring for users by hidden extended attributes (docs/guide/backup.md, "Deleted and earlier").

``user.dedupd.deleted`` of a directory lists the deletions below it. The same name with an id
appended (``user.dedupd.deleted.3-4096``) lists older deletions. Setting ``user.dedupd.undelete`` of
a new, empty file to an id restores that deletion into the file. Users can restore their own files,
and root any file. Root can append the words of
:class:`~dedupd_core.deleted.undelete.UndeleteRequest`.
"""

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial

from dedupd_core.deleted.expiry import end_ns
from dedupd_core.deleted.listing import DELETED, lines
from dedupd_core.deleted.log import DeletionId, DeletionLogs
from dedupd_core.deleted.log_cache import LogCache
from dedupd_core.deleted.undelete import UndeleteRequest, revive, take_back
from dedupd_core.errors import UsageError
from dedupd_core.format.deletion import Deletion
from dedupd_core.format.stub import StubAttribute
from dedupd_core.system.tree.takeover import Rights, rights_of
from dedupd_core.system.tree.tree_paths import path_in_tree
from dedupd_core.volume.volume import Volume
from fuse_stub.files.open_file import OpenFile
from fuse_stub.files.open_files import OpenFiles
from fuse_stub.policy.turns import RequestPace, RunInThread, Turns

ANSWER_BYTES_MAX = 60_000
"""The limit for one answer; the kernel allows 65,536 bytes per attribute."""

WAITING_MAX = 16
"""The limit for active and waiting listings of one user. Each uses one of the mount's tasks."""

PACE = RequestPace(burst=100, interval_s=0.1)
"""A tool of a user gets 24,000 deletions without a pause. An endless loop cannot block the thread
that serves all users."""

TURN_S = 0.002
"""The time slice of a listing before others have their turn."""

REST = 4.0
"""The pause after a slice, relative to its time: all listings use a fifth of a thread."""

Uncommitted = Callable[[OpenFile], AbstractAsyncContextManager[None]]


def is_listing(name: bytes) -> bool:
    return name == DELETED or name.startswith(DELETED + b".")


class Listings:
    """Answers listing attributes. Only one listing runs at a time, in slices that alternate between
    users."""

    def __init__(self, volume: Volume, in_thread: RunInThread) -> None:
        self._volume = volume
        self.turns = Turns(in_thread, at_once=1, user_max=WAITING_MAX, rest=REST, pace=PACE)
        self.cache = LogCache(DeletionLogs(volume))

    async def value(self, directory_fd: int, name: bytes, uid: int) -> bytes:
        """Return the value of a listing attribute: JSON, one deletion per line.

        The latest log is first, and each log starts with its latest deletion. Raises OSError
        (ENODATA if nothing can be restored, EAGAIN if too many of the user's requests wait).
        """
        async with self.turns.of(uid):
            answer = _Answer(self._volume, self.cache, directory_fd, name, uid)
            while not answer.is_complete:
                await self.turns.run(uid, answer.extend)
        if not answer.lines:
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))
        return b"".join(answer.lines)


class _Answer:
    """A listing that is made in slices, in any thread."""

    def __init__(
        self, volume: Volume, cache: LogCache, directory_fd: int, name: bytes, uid: int
    ) -> None:
        """Raises OSError."""
        older_than = name[len(DELETED) + 1 :]
        try:
            before = DeletionId.parse(older_than.decode()) if older_than else None
        except (UsageError, UnicodeDecodeError):
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA)) from None
        self.lines: list[bytes] = []
        self.is_complete = False
        self._length = 0
        self._more = self._some_lines(volume, cache, directory_fd, uid, before)

    @staticmethod
    def _some_lines(
        volume: Volume, cache: LogCache, directory_fd: int, uid: int, before: DeletionId | None
    ) -> Iterator[list[bytes]]:
        below = path_in_tree(volume.data_fd, directory_fd)
        if below is not None:
            yield from lines(volume, volume.policy(), below, uid, cache, before)

    def extend(self) -> None:
        """Extend the answer for :data:`TURN_S`. Raises OSError."""
        end_s = time.monotonic() + TURN_S
        for some in self._more:
            for line in some:
                if self._length + len(line) > ANSWER_BYTES_MAX:
                    self.is_complete = True
                    return
                self.lines.append(line)
                self._length += len(line)
            if time.monotonic() > end_s:
                return
        self.is_complete = True


async def undelete(
    volume: Volume,
    files: OpenFiles,
    uncommitted: Uncommitted,
    in_thread: RunInThread,
    ino: int,
    value: bytes,
    uid: int,
    change: Callable[..., StubAttribute],
) -> None:
    """Restore a deletion into an empty file; ``change`` calls a function that changes the file.

    Raises OSError, Damaged.
    """
    try:
        order = UndeleteRequest.parse(value.decode())
        if uid != 0 and (order.privileges or order.force):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        get = partial(DeletionLogs(volume).get, order.id, unproven=order.force)
        one = await in_thread(uid, get)
        if uid not in (0, one.uid) or time.time_ns() >= end_ns(one, volume.policy()):
            raise UsageError("another user's, or expired")
    except (UsageError, UnicodeDecodeError):
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT)) from None
    file = await files.acquire(ino, write=True)
    with files.using(file):
        file.changes += 1
        async with uncommitted(file):
            status = os.fstat(file.fd)
            if file.stub is not None or uid not in (0, status.st_uid) or status.st_size:
                raise OSError(errno.EPERM, os.strerror(errno.EPERM))
            rights = rights_of(uid, privileges=order.privileges)
            stub = change(_revived, volume, file, one, order.id, rights)
            file.stub = files.sparse(file, stub)
            file.privileged = bool(os.fstat(file.fd).st_mode & 0o6000)


def _revived(
    volume: Volume, file: OpenFile, one: Deletion, wanted: DeletionId, rights: Rights
) -> StubAttribute:
    """Call :func:`revive`. If a collection has dropped the deletion, roll this back: a collection
    drops deletions before it walks the tree."""
    stub = revive(volume, file.fd, one, rights)
    if not DeletionLogs(volume).has(wanted):
        take_back(volume, file.fd)
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    return stub
