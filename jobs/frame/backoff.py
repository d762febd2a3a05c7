"""Back-off: slow down, pause and resume a job according to the load of the machine and its users.

:func:`decide` is the rule, a pure function; docs/guide/service.md states it for users. The load of
the job itself does not count: its CPU time is subtracted. Pressure of the disk, whose cause cannot
be distinguished, counts only while the job waits.
"""

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

import psutil

from dedupd_core.errors import ServiceUnreachable
from dedupd_core.failures import Failures
from dedupd_core.system.control_socket import ControlClient, socket_path
from jobs.frame.pace import CRAWL_SHARE, Pace

_FAILURES = Failures("dedupd.jobs")

TICK_S = 0.5
"""Measurement interval. A job yields within a second, after the work that it has started."""

QUIET_S = 2.0
"""Time for which the machine must be calm before a job continues."""

PATIENCE_S = 600.0
"""Longest pause; without a limit a job would never finish on a busy machine."""

SLOW_SHARE = 0.25
"""The share of the time in which a slow job works."""

EASY_SHARE = 0.02
"""The share of the time for a job that users hardly notice: their slowest 1 % of calls take 10 %
longer than without it. At a share of 5 % these calls took 20 % longer."""

EASY_S = 75.0
"""Time for which a job that frees space works at ``EASY_SHARE``. A longer job has much to free, and
would take two and a half hours for three minutes of work."""

USERS_SLOW, USERS_PAUSE = 0.001, 0.002
"""Average number of user requests in progress: their rate times their duration. The higher limit
is about 20 reads per second of 0.1 ms. During a slow job, the slowest 1 % of 50 reads per second
took twice as long."""

CPU_SLOW, CPU_PAUSE = 0.5, 0.8
"""The share of all cores that other programs use."""

CPU_PRESSURE = 0.25
IO_PRESSURE = 0.25
MEMORY_PRESSURE = 0.05
"""The share of the time in which some process waited for CPU, disk, or memory."""

IO_SUSPECT = 0.5
"""A pressure of the disk at which the job pauses for a tick, to check its own share."""

PROBE_S = 30.0
"""Time between two such checks."""


class WorkRate(Enum):
    """The speed of a job."""

    FULL = "full"
    SLOW = "slow"
    EASY = "easy"
    CRAWL = "crawl"
    PAUSE = "pause"


@dataclass(frozen=True, slots=True)
class Readings:
    """The measurements of the last tick. Shares are from 0 to 1."""

    users: float = 0.0
    """Average number of user requests in progress."""
    others_cpu: float = 0.0
    cpu_pressure: float = 0.0
    io_pressure: float = 0.0
    memory_pressure: float = 0.0


@dataclass(frozen=True, slots=True)
class State:
    """Speed of the job and its reason; start of the calm time, of the pause or reduced speed."""

    gait: WorkRate = WorkRate.FULL
    reason: str = ""
    calm_since_s: float | None = None
    probed_s: float = -PROBE_S
    probing: bool = False
    waiting_since_s: float | None = None


def decide(state: State, seen: Readings, now_s: float) -> State:
    """Return the state after the measurements of a tick; ``now_s`` is of a monotonic clock."""
    waits = state.gait in (WorkRate.PAUSE, WorkRate.CRAWL)
    gait, reason = _wanted(seen, waits=waits)
    if gait is WorkRate.PAUSE:
        since_s = now_s if state.waiting_since_s is None else state.waiting_since_s
        if now_s >= since_s + PATIENCE_S and seen.memory_pressure < MEMORY_PRESSURE:
            gait, reason = (
                WorkRate.CRAWL,
                f"{reason}; it continues for {CRAWL_SHARE:.0%} of the time",
            )
        return State(gait, reason, None, state.probed_s, waiting_since_s=since_s)
    if not waits:
        if seen.io_pressure >= IO_SUSPECT and now_s >= state.probed_s + PROBE_S:
            looking = "checking whether the disk is busy"
            return State(WorkRate.PAUSE, looking, None, now_s, probing=True)
        return State(gait, reason, None, state.probed_s)
    calm_since_s = now_s if state.calm_since_s is None else state.calm_since_s
    if state.probing or now_s >= calm_since_s + QUIET_S:
        return State(gait, reason, None, state.probed_s)
    return replace(state, calm_since_s=calm_since_s)


def _wanted(seen: Readings, *, waits: bool) -> tuple[WorkRate, str]:
    """Return the speed for these readings alone. ``waits``: the load includes none of the job."""
    if seen.memory_pressure >= MEMORY_PRESSURE:
        return WorkRate.PAUSE, f"memory is low ({seen.memory_pressure:.0%} of the time)"
    if seen.users >= USERS_PAUSE:
        return WorkRate.PAUSE, _USERS
    if seen.others_cpu >= CPU_PAUSE:
        return WorkRate.PAUSE, f"other programs use {seen.others_cpu:.0%} of the processors"
    if waits and seen.cpu_pressure >= CPU_PRESSURE and seen.others_cpu >= CPU_SLOW:
        share = f"{seen.cpu_pressure:.0%} of the time"
        return WorkRate.PAUSE, f"other programs wait for the processors ({share})"
    if waits and seen.io_pressure >= IO_PRESSURE:
        return (
            WorkRate.PAUSE,
            f"other programs wait for the disk ({seen.io_pressure:.0%} of the time)",
        )
    if seen.users >= USERS_SLOW:
        return WorkRate.SLOW, _USERS
    if seen.others_cpu >= CPU_SLOW:
        return WorkRate.SLOW, f"other programs use {seen.others_cpu:.0%} of the processors"
    return WorkRate.FULL, ""


_USERS = "users are active"

_SHARES = {
    WorkRate.FULL: 1.0,
    WorkRate.SLOW: SLOW_SHARE,
    WorkRate.EASY: EASY_SHARE,
    WorkRate.CRAWL: CRAWL_SHARE,
}


def decide_eager(state: State, seen: Readings, now_s: float) -> State:
    """Like :func:`decide`, for an urgent job: it pauses only if memory is low."""
    return decide(state, Readings(memory_pressure=seen.memory_pressure), now_s)


def decide_pressing(state: State, seen: Readings, now_s: float) -> State:
    """Like :func:`decide`, for a job that frees urgently needed space. If others would slow down or
    pause, it works at ``EASY_SHARE`` first, and slowly later. It pauses only if memory is low."""
    if seen.memory_pressure >= MEMORY_PRESSURE or state.gait is WorkRate.PAUSE:
        return decide_eager(state, seen, now_s)
    gait, reason = _wanted(seen, waits=False)
    if gait is WorkRate.FULL:
        return State(gait, reason, None, state.probed_s)
    since_s = now_s if state.waiting_since_s is None else state.waiting_since_s
    gait = WorkRate.EASY if now_s < since_s + EASY_S else WorkRate.SLOW
    return State(gait, reason, None, state.probed_s, waiting_since_s=since_s)


Decide = Callable[[State, Readings, float], State]


# --- measuring --------------------------------------------------------------------------------

RESOURCES = "cpu", "io", "memory"

BUSY_SHARE = 0.1
"""The machine is busy if some process waited for more than this share of the last ten seconds."""

_SOME = re.compile(r"some avg10=([0-9.]+) .*\btotal=([0-9]+)")


class Pressure(NamedTuple):
    """The time for which at least one process has waited for a resource."""

    recent_share: float
    """Waiting time as a share of the last ten seconds, from 0 to 1."""
    total_s: float
    """Waiting time since the machine started."""


def pressure_of(resource: str, directory: str = "/proc/pressure") -> Pressure:
    """Return the pressure on a resource; 0 if the kernel does not report it (CONFIG_PSI)."""
    try:
        with open(f"{directory}/{resource}", encoding="ascii") as file:
            found = _SOME.search(file.read())
    except OSError:
        found = None
    return Pressure(float(found[1]) / 100, int(found[2]) / 1e6) if found else Pressure(0.0, 0.0)


def busy_with(directory: str = "/proc/pressure") -> str:
    """Return the resource that processes wait for now; empty if there is none."""
    for resource in RESOURCES:
        share = pressure_of(resource, directory).recent_share
        if share > BUSY_SHARE:
            return f"{resource} ({share:.0%} of the time)"
    return ""


class Meter:
    """Measures the time since the last reading."""

    def __init__(self, volume_uuid: str) -> None:
        self._uuid = volume_uuid
        self._client: ControlClient | None = None
        self._process = psutil.Process()
        self._last = self._counters()

    def read(self) -> Readings:
        last, self._last = self._last, self._counters()
        now = self._last
        elapsed_s = max(1e-3, now.time_s - last.time_s)
        cores_s = elapsed_s * (os.cpu_count() or 1)
        others_s = (now.busy_s - last.busy_s) - (now.own_s - last.own_s)

        def share(name: str) -> float:
            return _between(now.pressure_s[name] - last.pressure_s[name], elapsed_s)

        return Readings(
            users=max(0.0, now.users_s - last.users_s) / elapsed_s,
            others_cpu=_between(others_s, cores_s),
            cpu_pressure=share("cpu"),
            io_pressure=share("io"),
            memory_pressure=share("memory"),
        )

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _counters(self) -> "_Counters":
        times = psutil.cpu_times()
        idle = times.idle + getattr(times, "iowait", 0.0) + getattr(times, "steal", 0.0)
        # guest time is already part of user time
        everything = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        own = self._process.cpu_times()
        return _Counters(
            time_s=time.monotonic(),
            busy_s=everything - idle,
            own_s=own.user + own.system,
            users_s=self._users_s(),
            pressure_s={name: pressure_of(name).total_s for name in RESOURCES},
        )

    def _users_s(self) -> float:
        """Return the time that users' requests have taken so far; 0 if nothing is mounted."""
        try:
            if self._client is None:
                self._client = ControlClient(socket_path(self._uuid))
            return float(self._client.call("status")["busy_s"])
        except (ServiceUnreachable, KeyError, ValueError):
            self.close()
            return 0.0


@dataclass(frozen=True, slots=True)
class _Counters:
    time_s: float
    busy_s: float
    own_s: float
    users_s: float
    pressure_s: dict[str, float]


def _between(part_s: float, whole_s: float) -> float:
    return min(1.0, max(0.0, part_s / whole_s))


@contextmanager
def backing_off(
    volume_uuid: str, pace: Pace, rule: Decide, on_change: Callable[[], None]
) -> Iterator[None]:
    """Keep a job at the speed of ``rule`` while the block runs. A job that frees urgently needed
    space works slowly until it is known whether users are active."""
    if rule is decide_pressing:
        pace.slow(EASY_SHARE, "checking whether users are active")
    end = threading.Event()
    meter = Meter(volume_uuid)
    thread = threading.Thread(
        target=_watch, args=(meter, pace, rule, on_change, end), name="back-off", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
        meter.close()


def _watch(
    meter: Meter, pace: Pace, rule: Decide, on_change: Callable[[], None], end: threading.Event
) -> None:
    state = State()
    while not end.wait(TICK_S):
        try:
            before, state = state, rule(state, meter.read(), time.monotonic())
            if state.gait is WorkRate.PAUSE:
                pace.hold("back-off", state.reason)
            else:
                pace.slow(_SHARES[state.gait], state.reason)
                pace.release("back-off")
            if (before.gait, before.reason) != (state.gait, state.reason):
                on_change()
        except Exception as error:
            _FAILURES.note("measuring the load", error)
            pace.release("back-off")  # a paused job would wait forever
