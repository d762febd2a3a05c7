"""Threads for calls that may take long, shared among users.

What waits for the disk goes to a thread, so that the event loop serves others meanwhile. Threads
are few, and so one user's calls could take them all. They cannot: a user gets a thread only as long
as more are left free than the user has, so the first may have half of them, the next one half of
the rest, and so on. Users whose calls wait take turns.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import TypeVar

import trio

T = TypeVar("T")

THREADS_MAX = 64
"""More would not make a disk faster. Half of them are what one user can have."""


class SlowCalls:
    """Used by the thread of the event loop; fields change between two awaits."""

    def __init__(self, threads_max: int = THREADS_MAX) -> None:
        self._free = threads_max
        self._taken: Counter[int] = Counter()  # threads by user
        self._waiting: OrderedDict[int, deque[trio.Event]] = OrderedDict()  # by user, in turn
        # Calls are let in below; trio's own limit is not to hold them up.
        self._limiter = trio.CapacityLimiter(threads_max)

    async def run(self, uid: int, function: Callable[..., T], *args: object) -> T:
        """The result of a function, called in a thread for a user."""
        if self._waiting or not self._may_have(uid):
            await self._wait(uid)
        else:
            self._take(uid)
        try:
            return await trio.to_thread.run_sync(function, *args, limiter=self._limiter)
        finally:
            self._give_back(uid)

    def _may_have(self, uid: int) -> bool:
        return self._taken[uid] < self._free

    def _take(self, uid: int) -> None:
        self._free -= 1
        self._taken[uid] += 1

    def _give_back(self, uid: int) -> None:
        self._free += 1
        self._taken[uid] -= 1
        if not self._taken[uid]:
            del self._taken[uid]
        self._let_in()

    async def _wait(self, uid: int) -> None:
        """Until a thread was taken for a call of a user."""
        turn = trio.Event()
        self._waiting.setdefault(uid, deque()).append(turn)
        self._let_in()
        try:
            await turn.wait()
        except BaseException:
            if turn.is_set():
                self._give_back(uid)
            else:
                self._waiting[uid].remove(turn)
                if not self._waiting[uid]:
                    del self._waiting[uid]
            raise

    def _let_in(self) -> None:
        """Give threads to calls that wait: to the users in turn."""
        while (uid := next(filter(self._may_have, self._waiting), None)) is not None:
            self._take(uid)
            turns = self._waiting[uid]
            turns.popleft().set()
            if turns:
                self._waiting.move_to_end(uid)
            else:
                del self._waiting[uid]
