"""The current policy, for a process that runs for months."""

import logging
import os

from dedupd_core.config.policy import Policy, RestoreMode
from dedupd_core.errors import PolicyError
from dedupd_core.system.paths import explain
from dedupd_core.volume.volume import POLICY_FILE, Volume

log = logging.getLogger("dedupd.mount")

NOTHING = Policy(keep_deleted_s=0.0, restore_mode=RestoreMode.OFF)
"""The policy of a mount that changes nothing, or that could never read its policy."""


class WatchedPolicy:
    """The policy, read again when its file changes; a check takes two microseconds."""

    def __init__(self, volume: Volume, *, is_read_only: bool) -> None:
        self._volume = volume
        self._is_read_only = is_read_only
        self._policy = NOTHING
        self._mark = (-1, -1)

    @property
    def now(self) -> Policy:
        """The policy; if it cannot be read, the previous one."""
        if self._is_read_only:
            return self._policy
        try:
            status = os.stat(POLICY_FILE, dir_fd=self._volume.base_fd)
            mark = status.st_ino, status.st_mtime_ns
        except FileNotFoundError:
            mark = 0, 0
        except OSError:
            return self._policy
        if mark != self._mark:
            self._mark = mark
            try:
                self._policy = self._volume.policy()
            except (PolicyError, OSError) as error:
                log.warning(
                    "the policy cannot be read; the previous policy stays in effect: %s",
                    explain(error),
                )
        return self._policy
