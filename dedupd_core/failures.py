"""Logs and counts unexpected failures of single tasks, requests or files, which stop no others."""

import logging
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager


class Failures:
    """Counts unexpected failures in a process, by name. Several threads may use it."""

    def __init__(self, logger: str) -> None:
        self._log = logging.getLogger(logger)
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of failures by name."""
        with self._lock:
            return dict(self._counts)

    def note(self, what: str, error: BaseException) -> None:
        """Count a failure and log it with its traceback. The log drops repeated lines
        (``log_queue.py``)."""
        with self._lock:
            self._counts[what] += 1
        self._log.error("%s failed unexpectedly: %r", what, error, exc_info=error)

    @contextmanager
    def noted(self, what: str) -> Iterator[None]:
        """Note a failure of the block, and continue after the block."""
        try:
            yield
        except Exception as error:
            self.note(what, error)

    async def contained(self, what: str, task: Callable[[], Awaitable[None]]) -> None:
        """Run a task; a failure stops only this task."""
        with self.noted(what):
            await task()

    async def kept_up(
        self,
        what: str,
        task: Callable[[], Awaitable[None]],
        again: Callable[[], Awaitable[None]],
    ) -> None:
        """Run a task that lasts as long as the process. After a failure, run ``again``, then
        restart it."""
        while True:
            try:
                await task()
                return
            except Exception as error:
                self.note(what, error)
            await again()
