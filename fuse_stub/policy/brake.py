"""Writers wait for the optimizer while a restore fills the volume (policy ``restore_mode``).

A restore writes files plain, and as soon as they are left alone, or parts of large ones are, the
service optimizes them. What was written and is not optimized may need as much room again, as
chunks. So once half of the room is taken that was there at the end of the last run, new files and
writes wait until one has ended, each for so long at most. The reserve is kept: what would take of
it waits until there is room, and fails where a run could not make any.
"""

import errno
import os
import time
from collections.abc import Callable

import trio

from dedupd.config.policy import Policy, RestoreMode
from dedupd.system.files import free_space
from dedupd.volume.volume import Volume
from fuse_stub.policy.watched_policy import WatchedPolicy

SHARE = 0.5
"""Of the room at the end of the last run: what must be left for what it has not optimized yet."""

ALLOWED_SHARE = 0.25
"""Of the room: what may be written before another look, while a job stores chunks as well."""

WAIT_S_MAX = 20.0
"""Of one file, or write: less than what programs and protocols take for a hang."""

PATIENCE_S = 120.0
"""With no run at work: one that failed is tried again before."""

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
        self._runs = 0
        self._began_s = 0.0  # the last run
        self._ended_s = 0.0
        self._whole_since_s = 0.0  # when the last run began of those that have ended

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
        return max(0, int(min(room - self._kept_bytes(room), room * ALLOWED_SHARE)))

    async def wait(self) -> None:
        """Before a new file is made: until there is room, or the time is over."""
        await self._wait(0)

    async def wait_to_write(self, size_bytes: int) -> None:
        """Before so much is written to a file: until there is room, or the time is over and the
        reserve is kept. Raises OSError (ENOSPC) where a run, or the lack of one, has made none."""
        await self._wait(size_bytes)

    async def _wait(self, size_bytes: int) -> None:
        began_s = self._clock()
        while (policy := self._policy.now).restore_mode is not RestoreMode.OFF:
            room = self._look(policy)
            if room - size_bytes >= self._kept_bytes(room) and room > 0:
                return
            if size_bytes and room < size_bytes:
                if self._is_hopeless(began_s):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            elif self._clock() >= began_s + WAIT_S_MAX:
                if not self._runs:
                    # Nothing frees space: half of what is left is for what comes now.
                    self._base_bytes = None
                return
            await trio.sleep(LOOK_S)
        self._base_bytes = None

    def run_begins(self) -> None:
        """A run is at work: until its end files wait, each for itself, where space is short."""
        self._runs += 1
        self._began_s = self._clock()

    def run_ends(self) -> None:
        """A run has committed what it could: what is free now is there for what comes."""
        self._runs -= 1
        self._ended_s = self._clock()
        self._whole_since_s = self._began_s
        self._base_bytes = None

    def _is_hopeless(self, began_s: float) -> bool:
        """Whether what waits since then has seen a run from its begin to its end, or none for a
        while."""
        if self._whole_since_s > began_s:
            return True
        return not self._runs and self._clock() >= max(began_s, self._ended_s) + PATIENCE_S

    def _look(self, policy: Policy) -> int:
        """The room now."""
        free = free_space(self._volume.data_fd)
        room = free.free_bytes - policy.reserve.bytes_of(free.total_bytes)
        if self._base_bytes is None or room > self._base_bytes:
            self._base_bytes = room
        return room

    def _kept_bytes(self, room: int) -> float:
        """What of the room is for chunks of what was written."""
        base_bytes = room if self._base_bytes is None else self._base_bytes
        return SHARE * base_bytes
