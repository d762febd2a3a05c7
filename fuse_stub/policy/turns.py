"""Turns for requests whose answers need Python time in proportion to a user's data.

Only a few requests are answered at a time, and one per user, however many a user sends. So they
cost other users at most the time of a few threads, and other requests run in between.
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
"""Users whose pace is remembered; beyond this number, idle users are forgotten."""

WEIGHT_MAX = 4
"""A killed process exits only when its request is answered, so the wait must be short."""


class RunInThread(Protocol):
    """Runs a function that may block in one of a user's threads."""

    async def __call__(self, uid: int, function: Callable[..., T], *arguments: object) -> T: ...


class RequestPace(NamedTuple):
    """The rate of answers to a user: ``burst`` in a row, then one per ``interval_s``. A request
    counts once for each waiting request of the user, at most :data:`WEIGHT_MAX` times."""

    burst: int
    interval_s: float


UNPACED = RequestPace(1, 0.0)


class _User:
    """The requests of one user. Only one of them is answered at a time."""

    def __init__(self) -> None:
        self.count = 0
        self.lock = trio.Lock()


class Turns:
    """Limits the rate of answers per user. Used by the event-loop thread."""

    def __init__(
        self,
        in_thread: RunInThread,
        *,
        at_once: int,
        user_max: int,
        rest: float = 0.0,
        pace: RequestPace = UNPACED,
    ) -> None:
        """``at_once``: the number of functions that run at a time. ``user_max``: the number of
        waiting requests per user; each uses one of the mount's tasks. ``rest``: the pause after
        each function, as a multiple of its time. ``pace``: of each user except root."""
        self._in_thread = in_thread
        self._running = trio.CapacityLimiter(at_once)
        self._user_max = user_max
        self._rest = rest
        self._pace = pace
        self._users: dict[int, _User] = {}
        self._due_s: dict[int, float] = {}
        self.most_at_once = 0
        """The largest number of functions that ran at a time."""

    @asynccontextmanager
    async def of(self, uid: int) -> AsyncIterator[None]:
        """Wait for a user's turn. Raises OSError (EAGAIN) if too many requests wait."""
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
        """Return the delay of a user's next request (a leaky bucket, as in GCRA)."""
        if uid == 0:
            return 0.0
        now_s, burst_s = trio.current_time(), self._pace.burst * self._pace.interval_s
        if len(self._due_s) >= PACED_MAX:
            self._due_s = {who: due for who, due in self._due_s.items() if due > now_s - burst_s}
        due_s = max(self._due_s.get(uid, -math.inf), now_s - burst_s)
        self._due_s[uid] = due_s + weight * self._pace.interval_s
        return max(0.0, due_s - now_s)

    async def run(self, uid: int, function: Callable[..., T], *arguments: object) -> T:
        """Run a short function in a thread, within :meth:`of`, and return its result."""
        async with self._running:
            self.most_at_once = max(self.most_at_once, int(self._running.borrowed_tokens))
            began_s = trio.current_time()
            result = await self._in_thread(uid, function, *arguments)
            await trio.sleep(self._rest * (trio.current_time() - began_s))
            return result
