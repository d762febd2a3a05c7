"""Turns for requests whose answers take Python time in proportion to what users have.

However many of them a user sends, few are answered at a time, and one of each user. So they cost
others at most the time of a few threads, and requests of other users come in between.
"""

import errno
import math
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple, Protocol, TypeVar

import trio

T = TypeVar("T")

PACED_MAX = 1000
"""Users whose pace is remembered until those who have paused are forgotten."""

WEIGHT_MAX = 4
"""A process that is killed ends only when its request is answered, so this cannot take long."""


class InThread(Protocol):
    """Runs a function that may block in one of a user's threads."""

    async def __call__(self, uid: int, function: Callable[..., T], *arguments: object) -> T: ...


class Pace(NamedTuple):
    """How often a user's requests are answered: ``burst`` in a row, and then one per
    ``interval_s``. A request counts as many times as requests of the user wait, up to
    :data:`WEIGHT_MAX`."""

    burst: int
    interval_s: float


UNPACED = Pace(1, 0.0)


class _User:
    """The requests of one user: one of them is being answered."""

    def __init__(self) -> None:
        self.count = 0
        self.lock = trio.Lock()


class Turns:
    """Used by the thread of the event loop."""

    def __init__(
        self,
        in_thread: InThread,
        *,
        at_once: int,
        user_max: int,
        rest: float = 0.0,
        pace: Pace = UNPACED,
    ) -> None:
        """``at_once``: how many functions run. ``user_max``: how many requests of a user may wait,
        each of which takes one of the mount's tasks. ``rest``: the pause after each function, as a
        multiple of the time that it took. ``pace``: of each user but root."""
        self._in_thread = in_thread
        self._running = trio.CapacityLimiter(at_once)
        self._user_max = user_max
        self._rest = rest
        self._pace = pace
        self._users: dict[int, _User] = {}
        self._due_s: dict[int, float] = {}
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
                await trio.sleep(self._pause_s(uid, min(user.count, WEIGHT_MAX)))
                yield
        finally:
            user.count -= 1
            if not user.count:
                del self._users[uid]

    def _pause_s(self, uid: int, weight: int) -> float:
        """How long the next request of a user waits (a leaky bucket, as GCRA counts it)."""
        if uid == 0:
            return 0.0
        now_s, burst_s = trio.current_time(), self._pace.burst * self._pace.interval_s
        if len(self._due_s) >= PACED_MAX:
            self._due_s = {who: due for who, due in self._due_s.items() if due > now_s - burst_s}
        due_s = max(self._due_s.get(uid, -math.inf), now_s - burst_s)
        self._due_s[uid] = due_s + weight * self._pace.interval_s
        return max(0.0, due_s - now_s)

    async def run(self, uid: int, function: Callable[..., T], *arguments: object) -> T:
        """The result of a function that takes an instant, in a thread, within :meth:`of`."""
        async with self._running:
            self.most_at_once = max(self.most_at_once, int(self._running.borrowed_tokens))
            began_s = trio.current_time()
            result = await self._in_thread(uid, function, *arguments)
            await trio.sleep(self._rest * (trio.current_time() - began_s))
            return result
