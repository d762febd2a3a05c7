"""A lock that many trio tasks may share, or one may have alone."""

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import trio


class _Waiter(NamedTuple):
    wants_alone: bool
    granted: trio.Event


class SharedLock:
    """Shared by reads; held alone by a task that changes where a file's bytes lie.

    All fields belong to the thread of the event loop and change between two awaits. The common
    case, shared while no task has it alone, costs two integer operations and does not go through
    the scheduler: :meth:`try_share` and :meth:`unshare`. Tasks that have to wait have it in the
    order in which they came: readers in turns cannot keep a change waiting for ever, nor can a
    job that takes it alone for piece after piece keep users out.
    """

    __slots__ = ("_alone", "_shared", "_waiters")

    def __init__(self) -> None:
        self._shared = 0  # tasks that share it
        self._alone = False
        self._waiters: deque[_Waiter] | None = None  # as soon as one has had to wait

    def try_share(self) -> bool:
        """Share it, unless a task has it alone, or one waits."""
        if self._alone or self._waiters:
            return False
        self._shared += 1
        return True

    def unshare(self) -> None:
        self._shared -= 1
        self._grant()

    def try_alone(self) -> bool:
        """Take it alone, unless a task has it, shared or alone, or waits for it."""
        if self._alone or self._shared or self._waiters:
            return False
        self._alone = True
        return True

    def leave_alone(self) -> None:
        """Give back what :meth:`try_alone` took."""
        self._alone = False
        self._grant()

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        if not self.try_share():
            await self._wait(wants_alone=False)
        try:
            yield
        finally:
            self.unshare()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        if not self.try_alone():
            await self._wait(wants_alone=True)
        try:
            yield
        finally:
            self.leave_alone()

    async def _wait(self, *, wants_alone: bool) -> None:
        """Until it is this task's, as it wants it."""
        if self._waiters is None:
            self._waiters = deque()
        waiter = _Waiter(wants_alone, trio.Event())
        self._waiters.append(waiter)
        try:
            await waiter.granted.wait()
        except BaseException:
            if not waiter.granted.is_set():
                self._waiters.remove(waiter)
                self._grant()
            elif wants_alone:
                self.leave_alone()
            else:
                self.unshare()
            raise

    def _grant(self) -> None:
        """Give it to the first that wait, as far as it is free for them."""
        while self._waiters and not self._alone:
            wants_alone, granted = self._waiters[0]
            if wants_alone and self._shared:
                return
            self._waiters.popleft()
            self._alone = wants_alone
            self._shared += not wants_alone
            granted.set()
