"""The tasks of a mount: a failing task ends neither the mount nor another task.

The end of a mount makes all files unavailable. So a bug, an unusual file or a full disk must only
affect the operation that encounters it. Failures are counted in ``failures``.
"""

from collections.abc import Awaitable, Callable

import trio

from dedupd_core.failures import Failures

failures = Failures("dedupd.mount")
"""The failures of this process, which the status of the mount shows."""

AGAIN_S = 1.0
"""Delay before a failed task is started again."""


async def kept_up(name: str, task: Callable[[], Awaitable[None]]) -> None:
    """Run a task until the mount ends; start it again after a failure."""
    await failures.kept_up(name, task, lambda: trio.sleep(AGAIN_S))
