"""How long the phase that a job is in goes on, by how far it has come so far."""

import time
from collections.abc import Callable

TOLD_AFTER_S = 2.0
"""Of a phase; before that its speed is not known."""


class TimeToGo:
    """Is shown a job's progress again and again. The time in which the job waits does not count."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._phase = ""
        self._first = 0
        """What was done already when the phase began."""
        self._worked_s = 0.0
        self._seen_s = now()
        self._was_held = False
        self._done = self._total = 0

    def see(self, phase: str, done: int, total: int, *, held: bool = False) -> None:
        """Take in the state of the job as it is now. ``total`` is 0 where it is not known."""
        now_s = self._now()
        if phase != self._phase:
            self._phase, self._first, self._worked_s = phase, done, 0.0
        elif not self._was_held:
            self._worked_s += now_s - self._seen_s
        self._seen_s, self._was_held = now_s, held
        self._done, self._total = done, total

    @property
    def seconds(self) -> float | None:
        """Of work, as the job was seen last; None where it cannot be told."""
        more = self._done - self._first
        if not self._total or more <= 0 or self._worked_s < TOLD_AFTER_S:
            return None
        return self._worked_s * max(0, self._total - self._done) / more
