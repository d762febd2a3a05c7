"""The speed of a job: its share of the time, kept at safe points, and its bytes per second."""

import os
import threading
import time
from collections.abc import Callable

POLL_S = 0.1
"""Time until a paused job notices that it may continue, or must stop."""

REST_S_MAX = 60.0
"""The longest single rest."""

BURST_S = 0.25
"""A delay up to this length can be made up, because a window is read at once."""

CRAWL_SHARE = 0.01
"""The share of the time in which a job works on a machine that is never idle."""


class Pace:
    """Any thread may pause or slow the job; each holder has a name, and a reason to display."""

    def __init__(self) -> None:
        self._holds: dict[str, str] = {}
        self._share = 1.0
        self._slow_reason = ""
        self._worked_since_s = time.monotonic()
        self._cpu_s = time.process_time()
        self._cores = os.cpu_count() or 1

    def hold(self, holder: str, reason: str) -> None:
        """Pause the job until the same holder releases it."""
        self._holds = {**self._holds, holder: reason}

    def release(self, holder: str) -> None:
        self._holds = {name: reason for name, reason in self._holds.items() if name != holder}

    def slow(self, share: float, reason: str) -> None:
        """Make the job work for this share of the time; 1 is full speed."""
        self._share, self._slow_reason = share, reason

    @property
    def is_held(self) -> bool:
        """Whether the job makes almost no progress."""
        return bool(self._holds) or self._share <= CRAWL_SHARE

    @property
    def reason(self) -> str:
        """Return why the job is paused or slow; empty at full speed."""
        holds = self._holds
        return next(iter(holds.values())) if holds else self._slow_reason

    def keep(self, stop: threading.Event) -> None:
        """Wait for the required time, or until the job must stop."""
        began_s = time.monotonic()
        # Other threads of the job finish their work while it rests: that time counts as work.
        cpu_s, self._cpu_s = self._cpu_s, time.process_time()
        worked_s = max(began_s - self._worked_since_s, (self._cpu_s - cpu_s) / self._cores)
        self._rest(worked_s, self._share, stop)
        while self._holds and not stop.is_set():
            stop.wait(POLL_S)
        self._worked_since_s = time.monotonic()

    def _rest(self, worked_s: float, share: float, stop: threading.Event) -> None:
        """Rest for a time that matches the work, unless the speed is changed."""
        end_s = time.monotonic() + min(REST_S_MAX, worked_s * (1 / share - 1))
        while (left_s := end_s - time.monotonic()) > 0:
            if stop.is_set() or self._share != share:
                return
            stop.wait(min(left_s, POLL_S))


class Throttle:
    """Spreads reads over time. ``wait`` sleeps, and may raise an error to stop the reader."""

    def __init__(self, bytes_per_s: float, wait: Callable[[float], None]) -> None:
        """``bytes_per_s`` 0 means no limit."""
        self._bytes_per_s = bytes_per_s
        self._wait = wait
        self._free_s = time.monotonic()

    def portion(self, bytes_max: int, bytes_min: int) -> int:
        """Return the bytes for one read: as many as a burst allows, within the limits."""
        if self._bytes_per_s <= 0:
            return bytes_max
        return max(bytes_min, min(bytes_max, int(self._bytes_per_s * BURST_S)))

    def take(self, count: int) -> None:
        """Wait until ``count`` more bytes may be read; if negative, return unused bytes."""
        if self._bytes_per_s <= 0:
            self._wait(0.0)
            return
        now = time.monotonic()
        self._free_s = max(self._free_s, now - BURST_S)
        self._wait(max(0.0, self._free_s - now))
        self._free_s += count / self._bytes_per_s
