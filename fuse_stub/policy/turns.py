"""Turns for requests whose answers take Python time in proportion to what users have.

However many of them a user sends, few are answered at a time, and one of each user. So they cost
others at most the time of a few threads, and requests of other users come in between.
"""

import errno
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

import trio

T = TypeVar("T")


class InThread(Protocol):
    """Runs a function that may block in one of a user's threads."""

    async def __call__(self, uid: int, function: Callable[..., T], *arguments: object) -> T: ...


class _User:
    """The requests of one user: one of them is being answered."""

    def __init__(self) -> None:
        self.count = 0
        self.lock = trio.Lock()


class Turns:
    """Used by the thread of the event loop."""

    def __init__(
        self, in_thread: InThread, *, at_once: int, user_max: int, rest: float = 0.0
    ) -> None:
        """``at_once``: how many functions run. ``user_max``: how many requests of a user may wait,
        each of which takes one of the mount's tasks. ``rest``: the pause after each function, as a
        multiple of the time that it took."""
        self._in_thread = in_thread
        self._running = trio.CapacityLimiter(at_once)
        self._user_max = user_max
        self._rest = rest
        self._users: dict[int, _User] = {}
        self.most_at_once = 0
        """How many functions have run at a time."""

    @asynccontextmanager
    async def of(self, uid: int) -> AsyncIterator[None]:
        """For the answer to a request of a user. Raises OSError (EAGAIN) if too many wait."""
        user = self._users.setdefault(uid, _User())
        if user.count >= self._user_max:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        user.count += 1
        try:
            async with user.lock:
                yield
        finally:
            user.count -= 1
            if not user.count:
                del self._users[uid]

    async def run(self, uid: int, function: Callable[..., T], *arguments: object) -> T:
        """The result of a function that takes an instant, in a thread, within :meth:`of`."""
        async with self._running:
            self.most_at_once = max(self.most_at_once, int(self._running.borrowed_tokens))
            began_s = trio.current_time()
            result = await self._in_thread(uid, function, *arguments)
            await trio.sleep(self._rest * (trio.current_time() - began_s))
            return result
