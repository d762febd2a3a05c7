"""Delays writers while a restore fills the volume, so that optimize keeps up (``restore_mode``).

A restore writes plain files. The service optimizes files, or parts of large files, as soon as they
are idle. Written data that is not optimized may need the same space again, as chunks. So if half of
the space that was free at the end of the last run is used, new files and writes wait until a run
has ended. Each waits for a limited time. The space that optimize needs to free anything, and the
reserve below it, are kept. A write that would use them waits until there is space, and fails if
runs could free none.
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
"""Share of the free space after the last run that writers must leave."""

WAIT_S_MAX = 20.0
"""Longest delay of one file or write; shorter than common client timeouts."""

FRUITLESS_RUNS = 2
"""The number of complete runs that freed nothing. A single one may have found only open files."""

PATIENCE_S = 120.0
"""The longest time without a run; a failed run or a restarted service starts again before that."""

LOOK_S = 0.05


class Brake:
    """Delays new files and writes. Used by the event-loop thread."""

    def __init__(
        self, volume: Volume, policy: WatchedPolicy, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._volume = volume
        self._policy = policy
        self._clock = clock
        self._base_bytes: int | None = None
        self._begun_s: list[float] = []  # of the active runs
        self._ended_s = 0.0  # of the last complete run
        self._fruitless_s: deque[float] = deque(maxlen=FRUITLESS_RUNS)
        self._waiting: dict[object, None] = {}  # waiting writes, in order
        self._working_bytes = self._guard_bytes = 0

    @property
    def is_on(self) -> bool:
        """True if new files may have to wait."""
        return self._policy.now.restore_mode is not RestoreMode.OFF

    @property
    def allowed_bytes(self) -> int | None:
        """The bytes that may be written before the next check; None if writes never wait."""
        policy = self._policy.now
        if policy.restore_mode is RestoreMode.OFF:
            return None
        room = self._look(policy)
        most = 0 if self._waiting else self._guard_bytes
        return max(0, int(min(room - self._kept_bytes(room), most)))

    async def wait(self) -> None:
        """Wait until there is space for a new file, or the time has expired."""
        await self._wait(0)

    async def wait_to_write(self, size_bytes: int) -> None:
        """Wait until there is space to write ``size_bytes``, or the time has expired. A write never
        uses the kept space. Raises OSError (ENOSPC) if runs free nothing, or there are none."""
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
                        # Nothing frees space: new files may use half of the remaining space.
                        self._base_bytes = None
                    return
                await trio.sleep(LOOK_S)
            self._base_bytes = None
        finally:
            self._waiting.pop(place, None)

    def _has_room(self, left_bytes: int, place: object) -> bool:
        """Return whether a write leaves the kept space free. Waiting writes have their turn in
        order: small writes would otherwise use all freed space before a large one."""
        if left_bytes < self._working_bytes:
            self._waiting[place] = None
            return False
        return next(iter(self._waiting), place) is place

    def run_begins(self) -> float:
        """Record the start of a run: until its end, each new file waits if space is low. Returns
        the argument for :meth:`run_ends`."""
        began_s = self._clock()
        self._begun_s.append(began_s)
        return began_s

    def run_ends(self, began_s: float, freed_bytes: int | None) -> None:
        """Record the end of a run: the space that is free now is for new data. ``freed_bytes`` of
        blocks; None if the run was interrupted, and is no measure for the next."""
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
        """Return whether recent runs since ``began_s`` freed nothing, or none ended for long."""
        runs_s = self._fruitless_s
        if len(runs_s) == FRUITLESS_RUNS and runs_s[0] >= began_s:
            return True
        return not self._begun_s and self._clock() >= max(began_s, self._ended_s) + PATIENCE_S

    def _look(self, policy: Policy) -> int:
        """Measure the free space above the reserve."""
        free = free_space(self._volume.data_fd)
        self._working_bytes = working_bytes(free.total_bytes)
        self._guard_bytes = guard_bytes(free.total_bytes)
        room = free.free_bytes - policy.reserve.bytes_of(free.total_bytes)
        if self._base_bytes is None or room > self._base_bytes:
            self._base_bytes = room
        return room

    def _kept_bytes(self, room: int) -> float:
        """Return the part of the free space that is kept for chunks of written data."""
        base_bytes = room if self._base_bytes is None else self._base_bytes
        return max(SHARE * base_bytes, self._working_bytes)
