"""How fast a job may go: told by others, kept by the job itself at its next safe place."""

import threading
import time

POLL_S = 0.1
"""How soon a job that is held notices that it may go on, or is to stop."""

REST_S_MAX = 2.0
"""The longest rest in one piece, so that a job which is to go on does so soon."""


class Pace:
    """Any thread may hold or slow the job; each holder has a name and a reason for people."""

    def __init__(self) -> None:
        self._holds: dict[str, str] = {}
        self._share = 1.0
        self._slow_reason = ""
        self._worked_since_s = time.monotonic()
        self.held_s = 0.0
        """How long the job has waited altogether."""

    def hold(self, who: str, reason: str) -> None:
        """Let the job wait until the same holder lets it go."""
        self._holds = {**self._holds, who: reason}

    def let_go(self, who: str) -> None:
        self._holds = {name: reason for name, reason in self._holds.items() if name != who}

    def slow(self, share: float, reason: str) -> None:
        """Let it work for this share of the time; 1 is all of it."""
        self._share, self._slow_reason = share, reason

    @property
    def is_held(self) -> bool:
        return bool(self._holds)

    @property
    def reason(self) -> str:
        """Why the job waits or is slow; empty where it goes at full speed."""
        holds = self._holds
        return next(iter(holds.values())) if holds else self._slow_reason

    def keep(self, stop: threading.Event) -> None:
        """Wait as long as the job has to, or until it is to stop."""
        began_s = time.monotonic()
        share = self._share
        if share < 1:
            rest_s = (began_s - self._worked_since_s) * (1 / share - 1)
            stop.wait(min(rest_s, REST_S_MAX))
        while self._holds and not stop.is_set():
            stop.wait(POLL_S)
        self._worked_since_s = time.monotonic()
        self.held_s += self._worked_since_s - began_s
