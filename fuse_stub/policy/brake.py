"""Writers wait for the optimizer while a restore fills the volume (policy ``restore_mode``).

A restore writes files plain, and as soon as they are left alone, or parts of large ones are, the
service optimizes them. What was written and is not optimized may need as much room again, as
chunks. So once half of the room is taken that was there at the end of the last run, new files and
writes wait until one has ended, each for so long at most. What the optimizer needs in order to free
anything, and the reserve below it, are kept: a write that would take of them waits until there is
room, and fails once runs could not make any.
"""

import errno
import os
import time
from collections import deque
from collections.abc import Callable

import trio

from dedupd_core.config.policy import Policy, RestoreMode
from dedupd_core.config.room import guard_bytes, working_bytes
from dedupd_core.system.files import free_space
from dedupd_core.volume.volume import Volume
from fuse_stub.policy.watched_policy import WatchedPolicy

SHARE = 0.5
"""Of the room at the end of the last run: what must be left for what it has not optimized yet."""

WAIT_S_MAX = 20.0
"""Of one file, or write: less than what programs and protocols take for a hang."""

FRUITLESS_RUNS = 2
"""So many whole runs that have freed nothing: a single one may have met the file of the moment."""

PATIENCE_S = 120.0
"""With no run at work: one that failed, and a service that was restarted, begin again before."""

LOOK_S = 0.05


class Brake:
    """Used by the thread of the event loop."""

    def __init__(
        self, volume: Volume, policy: WatchedPolicy, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._volume = volume
        self._policy = policy
        self._clock = clock
        self._base_bytes: int | None = None
        self._begun_s: list[float] = []  # of the runs at work
        self._ended_s = 0.0  # of the last run that was not broken off
        self._fruitless_s: deque[float] = deque(maxlen=FRUITLESS_RUNS)
        self._waiting: dict[object, None] = {}  # writes, in their order
        self._working_bytes = self._guard_bytes = 0

    @property
    def is_on(self) -> bool:
        """Whether new files may have to wait."""
        return self._policy.now.restore_mode is not RestoreMode.OFF

    @property
    def allowed_bytes(self) -> int | None:
        """What may be written before another look; None where writes never wait."""
        policy = self._policy.now
        if policy.restore_mode is RestoreMode.OFF:
            return None
        room = self._look(policy)
        most = 0 if self._waiting else self._guard_bytes
        return max(0, int(min(room - self._kept_bytes(room), most)))

    async def wait(self) -> None:
        """Before a new file is made: until there is room, or the time is over."""
        await self._wait(0)

    async def wait_to_write(self, size_bytes: int) -> None:
        """Before so much is written to a file: until there is room, or the time is over and what is
        kept is not touched. Raises OSError (ENOSPC) where runs, or the lack of them, made none."""
        await self._wait(size_bytes)

    async def _wait(self, size_bytes: int) -> None:
        began_s, place = self._clock(), object()
        try:
            while (policy := self._policy.now).restore_mode is not RestoreMode.OFF:
                room = self._look(policy)
                is_over = self._clock() >= began_s + WAIT_S_MAX
                if size_bytes and not self._has_room(room - size_bytes, place):
                    if is_over and place in self._waiting and self._is_hopeless(began_s):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                elif room - size_bytes >= self._kept_bytes(room):
                    return
                elif is_over:
                    if not self._begun_s:
                        # Nothing frees space: half of what is left is for what comes now.
                        self._base_bytes = None
                    return
                await trio.sleep(LOOK_S)
            self._base_bytes = None
        finally:
            self._waiting.pop(place, None)

    def _has_room(self, left_bytes: int, place: object) -> bool:
        """Whether a write leaves what is kept. Those that do not wait in the order in which they
        came: small ones would take all that is freed before a large one."""
        if left_bytes < self._working_bytes:
            self._waiting[place] = None
            return False
        return next(iter(self._waiting), place) is place

    def run_begins(self) -> float:
        """A run is at work: until its end files wait, each for itself, where space is short. To be
        handed to :meth:`run_ends`."""
        began_s = self._clock()
        self._begun_s.append(began_s)
        return began_s

    def run_ends(self, began_s: float, freed_bytes: int | None) -> None:
        """A run has committed what it could: what is free now is there for what comes.
        ``freed_bytes`` of blocks; None where it was broken off, and says nothing of the next."""
        self._begun_s.remove(began_s)
        self._base_bytes = None
        if freed_bytes is None:
            return
        self._ended_s = self._clock()
        if freed_bytes:
            self._fruitless_s.clear()
        else:
            self._fruitless_s.append(began_s)

    def _is_hopeless(self, began_s: float) -> bool:
        """Whether all runs of late have freed nothing that saw what waits since then, or there was
        none for a while."""
        runs_s = self._fruitless_s
        if len(runs_s) == FRUITLESS_RUNS and runs_s[0] >= began_s:
            return True
        return not self._begun_s and self._clock() >= max(began_s, self._ended_s) + PATIENCE_S

    def _look(self, policy: Policy) -> int:
        """The room now."""
        free = free_space(self._volume.data_fd)
        self._working_bytes = working_bytes(free.total_bytes)
        self._guard_bytes = guard_bytes(free.total_bytes)
        room = free.free_bytes - policy.reserve.bytes_of(free.total_bytes)
        if self._base_bytes is None or room > self._base_bytes:
            self._base_bytes = room
        return room

    def _kept_bytes(self, room: int) -> float:
        """What of the room is for chunks of what was written."""
        base_bytes = room if self._base_bytes is None else self._base_bytes
        return max(SHARE * base_bytes, self._working_bytes)
