"""Named places between two durable steps, at which tests stop or kill the program.

``DEDUPD_FAIL_POINT=name`` or ``name:n`` in the environment kills the process with SIGKILL at the
n-th pass (first by default). Tests in the same process set ``hook`` instead.
"""

import os
import signal
from collections.abc import Callable

VARIABLE = "DEDUPD_FAIL_POINT"

POINTS: dict[str, str] = {}
"""Every fail point: name → the data that has just become durable. :func:`define` adds them."""

hook: Callable[[str], None] | None = None
"""Called with the name at each pass; tests raise errors in it."""

_name = ""
_passes_left = 0


def arm(point: str) -> None:
    """Kill this process at the pass of ``name`` or ``name:n``; at none for ""."""
    global _name, _passes_left
    _name, _, count = point.partition(":")
    _passes_left = int(count or "1")


arm(os.environ.get(VARIABLE, ""))


def define(name: str, meaning: str) -> str:
    """Register a fail point at import time and return its name."""
    if name in POINTS:
        raise ValueError(f"fail point {name} is defined twice")
    POINTS[name] = meaning
    return name


def is_armed() -> bool:
    """Return whether passing any fail point may have an effect."""
    return bool(_name) or hook is not None


def reach(name: str) -> None:
    """Pass the fail point ``name``. This does not return at the armed fail point."""
    global _passes_left
    if name == _name:
        _passes_left -= 1
        if _passes_left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
    if hook is not None:
        hook(name)
