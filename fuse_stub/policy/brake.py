"""Writers wait for the optimizer while a restore fills the volume (policy ``restore_mode``).

A restore writes files plain, and as soon as they are closed the service optimizes them. What was
written and is not optimized may need as much room again, as chunks. So once half of the room is
taken that was there at the end of the last run, new files wait until one has ended, each for so
long at most; no request ever fails because of it.
"""

import time
from collections.abc import Callable

import trio

from dedupd.config.policy import Policy, RestoreMode
from dedupd.system.files import free_space
from dedupd.volume.volume import Volume
from fuse_stub.policy.watched_policy import WatchedPolicy

SHARE = 0.5
"""Of the room at the end of the last run: what must be left for what it has not optimized yet."""

WAIT_S_MAX = 20.0
"""Of one file: less than what programs and protocols take for a hang."""

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

    @property
    def is_on(self) -> bool:
        """Whether new files may have to wait."""
        return self._policy.now.restore_mode is not RestoreMode.OFF

    async def wait(self) -> None:
        """Before a new file is made: until there is room, or the time is over."""
        policy = self._policy.now
        if policy.restore_mode is RestoreMode.OFF:
            self._base_bytes = None
            return
        end_s = self._clock() + WAIT_S_MAX
        while self._is_short(policy):
            if self._clock() >= end_s:
                if not self._runs:
                    # Nothing frees space: half of what is left is for the files that come now.
                    self._base_bytes = None
                return
            await trio.sleep(LOOK_S)

    def run_begins(self) -> None:
        """A run is at work: until its end files wait, each for itself, where space is short."""
        self._runs += 1

    def run_ends(self) -> None:
        """A run has committed what it could: what is free now is there for what comes."""
        self._runs -= 1
        self._base_bytes = None

    def _is_short(self, policy: Policy) -> bool:
        free = free_space(self._volume.data_fd)
        room = free.free_bytes - policy.reserve.bytes_of(free.total_bytes)
        if self._base_bytes is None or room > self._base_bytes:
            self._base_bytes = room
        return room < SHARE * self._base_bytes or room <= 0
