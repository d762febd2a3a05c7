"""One run of a job: progress, remaining time, errors, cancellation, its record in the history."""

import resource
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack

from dedupd_core.errors import DedupdError
from dedupd_core.system.paths import explain, show_path
from dedupd_core.volume.hints import HintKey
from jobs.frame.pace import Pace, Throttle

if TYPE_CHECKING:
    from dedupd_core.volume.volume import Volume

T = TypeVar("T")

ITEMS_BETWEEN_CHECKS = 1024
"""These are processed in a few milliseconds."""

ERRORS_KEPT_MAX = 100
"""Number of messages to keep in a report; all errors are counted."""


def checked(items: Iterable[T], safe_point: Callable[[], None] | None) -> Iterator[T]:
    """Yield items to process one by one; call ``safe_point``, if any, every few milliseconds."""
    for number, item in enumerate(items):
        if safe_point is not None and number % ITEMS_BETWEEN_CHECKS == 0:
            safe_point()
        yield item


class Cancelled(DedupdError):
    """The job was stopped; everything that it has committed is kept."""


@dataclass(slots=True)
class Progress:
    """The progress of a job. ``done`` and ``total`` are in ``unit``; ``total`` 0 means unknown."""

    phase: str = "starting"
    done: int = 0
    total: int = 0
    files: int = 0
    detail: str = ""


class _Changes(TypedDict, total=False):
    """Fields of :class:`Progress`."""

    phase: str
    done: int
    total: int
    files: int
    detail: str


@dataclass(slots=True)
class Findings:
    """Errors of single files, which do not stop the job."""

    count: int = 0
    messages: list[str] = field(default_factory=list)

    def add(self, *messages: str) -> None:
        self.count += len(messages)
        self.messages += messages[: max(0, ERRORS_KEPT_MAX - len(self.messages))]

    def add_error(self, path: bytes, error: Exception) -> None:
        """Add an error of a file of the tree, whose message may already name the file."""
        where, text = show_path(path) or ".", explain(error)
        self.add(text if text.startswith(where) else f"{where}: {text}")


class JobRun:
    """One run of a job: owns its progress and its cancel flag."""

    def __init__(self, job: str, on_progress: Callable[[Progress], None] | None = None) -> None:
        self.job = job
        self.started_s = time.time()
        self.progress = Progress()
        self.findings = Findings()
        self.pace = Pace()
        self.report: dict[str, Any] | None = None
        """The report, as it is kept in the history."""
        self._on_progress = on_progress
        self._reported_s = 0.0
        self._stop = threading.Event()
        self._why = "stopped"
        self._throttle: Throttle | None = None
        self._rated_done = 0

    def update(self, **changes: Unpack[_Changes]) -> None:
        """Change progress fields, and report the progress a few times per second."""
        for name, value in changes.items():
            setattr(self.progress, name, value)
        now = time.monotonic()
        if self._on_progress is not None and now - self._reported_s > 0.1:
            self._reported_s = now
            self._on_progress(self.progress)

    def tell(self) -> None:
        """Report the progress now."""
        if self._on_progress is not None:
            self._on_progress(self.progress)

    def cancel(self) -> None:
        self._stop.set()

    @contextmanager
    def limited(self, length_s: float | None, bytes_per_s: float) -> Iterator[None]:
        """Limit the run while the block runs: stop it at a safe point after ``length_s``, None for
        never; limit its average throughput, 0 for no limit."""
        if bytes_per_s > 0:
            self._throttle = Throttle(bytes_per_s, self._rest)
        if length_s is None:
            yield
            return
        timer = threading.Timer(length_s, self._end)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _rest(self, seconds: float) -> None:
        self._stop.wait(seconds)

    def _end(self) -> None:
        self._why = "its time has expired"
        self.cancel()

    def _keep_to_rate(self) -> None:
        """Wait if the job has exceeded its rate. Each phase counts from 0."""
        if self._throttle is not None:
            done, before = self.progress.done, self._rated_done
            self._rated_done = done
            if done > before:
                self._throttle.take(done - before)

    def safe_point(self) -> None:
        """Pause here if the job must yield. Raises Cancelled if it must stop."""
        self._keep_to_rate()
        self.pace.keep(self._stop)
        if self._stop.is_set():
            raise Cancelled(
                f"{self.job}: {self._why}; finished work is kept; to continue, run it again"
            )

    def step(self, done: int) -> None:
        """Record the progress in a phase, at a safe point. Raises Cancelled."""
        self.update(done=done)
        self.safe_point()

    def checked(self, items: Iterable[T]) -> Iterator[T]:
        """Yield items to process one by one, with regular safe points. Raises Cancelled."""
        return checked(items, self.safe_point)

    def each(self, phase: str, items: Iterable[T]) -> Iterator[T]:
        """Yield items of a phase, with a safe point before each. The progress counts the finished
        items; the total is their number, if they have a length. Raises Cancelled."""
        self.update(phase=phase, done=0, total=len(items) if isinstance(items, Sized) else 0)
        for done, item in enumerate(items):
            self.safe_point()
            yield item
            self.update(done=done + 1)

    def wait(self, seconds: float) -> None:
        """Wait, but stop immediately if required. Raises Cancelled."""
        self._stop.wait(seconds)
        self.safe_point()

    @contextmanager
    def stopped_by_signals(self) -> Iterator[None]:
        """Make SIGINT and SIGTERM stop the job at the next safe point."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous = {
            number: signal.signal(number, lambda *_: self.cancel())
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def resources(self) -> dict[str, float]:
        """Return wall and CPU seconds so far, and the peak memory in bytes."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "wall_s": round(time.time() - self.started_s, 3),
            "cpu_s": round(usage.ru_utime + usage.ru_stime, 3),
            "memory_bytes_peak": _memory_bytes_peak(),
        }


def _memory_bytes_peak() -> int:
    """Return the peak of this program alone: ``getrusage`` may return the peak of the process that
    started it."""
    with open("/proc/self/status", encoding="ascii") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def record_run(volume: "Volume", run: JobRun, report: dict[str, Any]) -> None:
    """Keep a run in the volume's history; if that fails, log it and continue."""
    run.report = report
    volume.hints.put(HintKey.RUNS.at(run.started_s), report, "the run is not in the history")


TOLD_AFTER_S = 2.0
"""Seconds of a phase before its speed is known."""


class TimeToGo:
    """Estimates the remaining time from the progress of a job. Pauses do not count."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._phase = ""
        self._first = 0
        """The progress at the start of the phase."""
        self._worked_s = 0.0
        self._seen_s = now()
        self._was_held = False
        self._done = self._total = 0

    def see(self, phase: str, done: int, total: int, *, held: bool = False) -> None:
        """Record the current state of the job. ``total`` is 0 if it is unknown."""
        now_s = self._now()
        if phase != self._phase:
            self._phase, self._first, self._worked_s = phase, done, 0.0
        elif not self._was_held:
            self._worked_s += now_s - self._seen_s
        self._seen_s, self._was_held = now_s, held
        self._done, self._total = done, total

    @property
    def seconds(self) -> float | None:
        """Return the remaining seconds of work at the last call; None if unknown."""
        more = self._done - self._first
        if not self._total or more <= 0 or self._worked_s < TOLD_AFTER_S:
            return None
        return self._worked_s * max(0, self._total - self._done) / more
