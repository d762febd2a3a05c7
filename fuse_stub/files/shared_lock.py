"""A lock that many trio tasks may share, or one may have alone."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


class SharedLock:
    """Shared by reads; held alone by a task that changes where a file's bytes lie.

    All fields belong to the thread of the event loop and change between two awaits. The common
    case, shared while no task has it alone, costs two integer operations and does not go through
    the scheduler: :meth:`try_share` and :meth:`unshare`. A task that waits to have it alone keeps
    new sharers out, so readers in turns cannot hold it up for ever.
    """

    __slots__ = ("_alone", "_changed", "_shared", "_wanting")

    def __init__(self) -> None:
        self._shared = 0  # tasks that share it
        self._alone = False
        self._wanting = 0  # tasks that wait to have it alone
        self._changed: trio.Event | None = None  # set, and dropped, when the state changes

    def try_share(self) -> bool:
        """Share it, unless a task has it alone or waits for that."""
        if self._alone or self._wanting:
            return False
        self._shared += 1
        return True

    def unshare(self) -> None:
        self._shared -= 1
        if self._shared == 0:
            self._wake()

    def try_alone(self) -> bool:
        """Take it alone, unless a task has it, shared or alone, or waits for it."""
        if self._alone or self._wanting or self._shared:
            return False
        self._alone = True
        return True

    def leave_alone(self) -> None:
        """Give back what :meth:`try_alone` took."""
        self._alone = False
        self._wake()

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        while not self.try_share():
            await self._wait()
        try:
            yield
        finally:
            self.unshare()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        self._wanting += 1
        try:
            while self._alone or self._shared:
                await self._wait()
            self._alone = True
        finally:
            self._wanting -= 1
            if not self._alone:
                self._wake()
        try:
            yield
        finally:
            self.leave_alone()

    async def _wait(self) -> None:
        if self._changed is None:
            self._changed = trio.Event()
        await self._changed.wait()

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None
