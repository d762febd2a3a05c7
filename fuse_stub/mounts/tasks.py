"""The tasks of a mount: none of them ends the mount, or another task, by failing.

A mount that ends takes every user's files away, so a bug, an odd file or a full disk must cost no
more than the one thing that met it. What fails is counted in ``failures``.
"""

from collections.abc import Awaitable, Callable

import trio

from dedupd_core.failures import Failures

failures = Failures("dedupd.mount")
"""Of this process: the status of the mount shows the counts."""

AGAIN_S = 1.0
"""Delay before a task that failed starts its next round."""


async def kept_up(name: str, task: Callable[[], Awaitable[None]]) -> None:
    """Run a task that lasts as long as the mount; start it again after a failure."""
    await failures.kept_up(name, task, lambda: trio.sleep(AGAIN_S))
