"""How fast a job may go: in shares of the time, kept at its safe points, and in bytes a second."""

import os
import threading
import time
from collections.abc import Callable

POLL_S = 0.1
"""How soon a job that is held notices that it may go on, or is to stop."""

REST_S_MAX = 60.0
"""The longest rest in one piece."""

BURST_S = 0.25
"""A delay up to this long may be caught up with, because a window is read at once."""

CRAWL_SHARE = 0.01
"""The share of the time in which a job that never has the machine for itself works."""


class Pace:
    """Any thread may hold or slow the job; each holder has a name, and a reason to be shown."""

    def __init__(self) -> None:
        self._holds: dict[str, str] = {}
        self._share = 1.0
        self._slow_reason = ""
        self._worked_since_s = time.monotonic()
        self._cpu_s = time.process_time()
        self._cores = os.cpu_count() or 1

    def hold(self, holder: str, reason: str) -> None:
        """Let the job wait until the same holder lets it go."""
        self._holds = {**self._holds, holder: reason}

    def release(self, holder: str) -> None:
        self._holds = {name: reason for name, reason in self._holds.items() if name != holder}

    def slow(self, share: float, reason: str) -> None:
        """Let it work for this share of the time; 1 is all of it."""
        self._share, self._slow_reason = share, reason

    @property
    def is_held(self) -> bool:
        """Whether it makes no headway to speak of."""
        return bool(self._holds) or self._share <= CRAWL_SHARE

    @property
    def reason(self) -> str:
        """Why the job waits or is slow; empty where it goes at full speed."""
        holds = self._holds
        return next(iter(holds.values())) if holds else self._slow_reason

    def keep(self, stop: threading.Event) -> None:
        """Wait as long as the job has to, or until it is to stop."""
        began_s = time.monotonic()
        # Its other threads finish what they have while it rests: that is work, too.
        cpu_s, self._cpu_s = self._cpu_s, time.process_time()
        worked_s = max(began_s - self._worked_since_s, (self._cpu_s - cpu_s) / self._cores)
        self._rest(worked_s, self._share, stop)
        while self._holds and not stop.is_set():
            stop.wait(POLL_S)
        self._worked_since_s = time.monotonic()

    def _rest(self, worked_s: float, share: float, stop: threading.Event) -> None:
        """Rest after so much work, unless the job is to go at another speed meanwhile."""
        end_s = time.monotonic() + min(REST_S_MAX, worked_s * (1 / share - 1))
        while (left_s := end_s - time.monotonic()) > 0:
            if stop.is_set() or self._share != share:
                return
            stop.wait(min(left_s, POLL_S))


class Throttle:
    """Spreads reads over time. ``wait`` sleeps, and may raise to stop the reader."""

    def __init__(self, bytes_per_s: float, wait: Callable[[float], None]) -> None:
        """``bytes_per_s`` 0 means as fast as it goes."""
        self._bytes_per_s = bytes_per_s
        self._wait = wait
        self._free_s = time.monotonic()

    def portion(self, bytes_max: int, bytes_min: int) -> int:
        """How much to read at once, between the two: as much as a burst allows."""
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
