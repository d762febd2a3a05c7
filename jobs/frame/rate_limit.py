"""Not faster than a number of bytes a second."""

import time
from collections.abc import Callable

BURST_S = 0.25
"""What was not read in time may be caught up with, up to this much: a window is read at once."""


class Throttle:
    """Spreads reads over time. ``wait`` sleeps, and may raise to stop whoever is reading."""

    def __init__(self, bytes_per_s: float, wait: Callable[[float], None]) -> None:
        """``bytes_per_s`` 0 means as fast as it goes."""
        self._bytes_per_s = bytes_per_s
        self._wait = wait
        self._free_s = time.monotonic()

    def portion(self, bytes_max: int, bytes_min: int) -> int:
        """How much to read at once, between the two: what takes about as long as a burst."""
        if self._bytes_per_s <= 0:
            return bytes_max
        return max(bytes_min, min(bytes_max, int(self._bytes_per_s * BURST_S)))

    def take(self, count: int) -> None:
        """Wait until ``count`` more bytes may be read; below zero, give so many back."""
        if self._bytes_per_s <= 0:
            self._wait(0.0)
            return
        now = time.monotonic()
        self._free_s = max(self._free_s, now - BURST_S)
        self._wait(max(0.0, self._free_s - now))
        self._free_s += count / self._bytes_per_s
