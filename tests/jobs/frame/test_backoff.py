"""Giving way: the rule, as properties; and a job that pauses where users are active."""

import os
import threading
import time
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupd_core.units import MIB
from jobs.frame import backoff
from jobs.frame.backoff import (
    EASY_S,
    EASY_SHARE,
    PATIENCE_S,
    PROBE_S,
    QUIET_S,
    TICK_S,
    Decide,
    Meter,
    Readings,
    State,
    WorkRate,
    backing_off,
    decide,
    decide_eager,
    decide_pressing,
)
from jobs.frame.pace import CRAWL_SHARE, Pace
from jobs.frame.run import Cancelled, JobRun
from tests.support.lab import noise
from tests.support.mounts import mounted_lab
from tests.support.service import eventually

shares = st.floats(0, 1)
readings = st.builds(Readings, st.floats(0, 10), shares, shares, shares, shares)
CALM, BUSY = Readings(), Readings(users=0.5)


def after(*seen: Readings, rule: Decide = decide) -> State:
    """The state after ticks with these readings."""
    state = State()
    for number, one in enumerate(seen):
        state = rule(state, one, number * TICK_S)
    return state


@pytest.mark.parametrize(
    ("seen", "gait", "reason"),
    [
        (CALM, WorkRate.FULL, ""),
        (Readings(users=0.0015), WorkRate.SLOW, "users are active"),
        (BUSY, WorkRate.PAUSE, "users are active"),
        (Readings(others_cpu=0.6), WorkRate.SLOW, "other programs use 60% of the processors"),
        (Readings(others_cpu=0.9), WorkRate.PAUSE, "other programs use 90% of the processors"),
        (Readings(memory_pressure=0.1), WorkRate.PAUSE, "memory is low"),
        (Readings(cpu_pressure=1.0), WorkRate.FULL, ""),
        (Readings(io_pressure=0.4), WorkRate.FULL, ""),
        (Readings(io_pressure=0.6), WorkRate.PAUSE, "checking whether the disk is busy"),
    ],
)
def test_the_rule_of_the_first_tick(seen: Readings, gait: WorkRate, reason: str) -> None:
    state = after(seen)
    assert state.gait is gait and reason in state.reason


@given(readings, st.lists(readings, max_size=20))
def test_one_tick_of_load_is_enough_to_pause(load: Readings, before: list[Readings]) -> None:
    state = after(*before)
    if load.users >= 0.002 or load.others_cpu >= 0.8 or load.memory_pressure >= 0.05:
        assert decide(state, load, len(before) * TICK_S).gait is WorkRate.PAUSE


@given(st.lists(readings, max_size=20))
def test_a_calm_machine_is_worked_on_again_after_the_quiet_time(before: list[Readings]) -> None:
    ticks = int(QUIET_S / TICK_S) + 2
    assert after(*before, *[CALM] * ticks).gait is WorkRate.FULL


@given(st.lists(readings, min_size=1, max_size=30))
def test_a_job_that_waits_says_why(seen: list[Readings]) -> None:
    state = after(*seen)
    assert bool(state.reason) == (state.gait is not WorkRate.FULL)


def test_a_pause_between_two_requests_of_users_is_no_quiet() -> None:
    state = after(BUSY, CALM, BUSY, CALM, CALM)
    assert state.gait is WorkRate.PAUSE


def test_pressure_counts_while_the_job_waits() -> None:
    assert after(BUSY, *[Readings(io_pressure=0.3)] * 20).gait is WorkRate.PAUSE
    assert "wait for the disk" in after(BUSY, *[Readings(io_pressure=0.3)] * 20).reason


def test_a_jobs_own_pressure_is_recognized_at_once() -> None:
    own = Readings(io_pressure=0.9)
    looking = decide(State(), own, 0.0)
    assert looking.gait is WorkRate.PAUSE
    assert decide(looking, CALM, TICK_S).gait is WorkRate.FULL
    again = decide(decide(looking, CALM, TICK_S), own, 2 * TICK_S)
    assert again.gait is WorkRate.FULL
    assert decide(again, own, PROBE_S + 1).gait is WorkRate.PAUSE


def test_a_pressure_of_others_holds_the_job_after_a_look() -> None:
    theirs = Readings(io_pressure=0.9)
    assert after(*[theirs] * 40).gait is WorkRate.PAUSE


def test_a_job_that_waited_for_long_goes_on_a_little_until_it_is_calm() -> None:
    state = after(*[BUSY] * (int(PATIENCE_S / TICK_S) + 1))
    assert state.gait is WorkRate.CRAWL
    assert "users are active; it continues for 1% of the time" in state.reason
    assert decide(state, BUSY, 2 * PATIENCE_S).gait is WorkRate.CRAWL
    assert decide(state, CALM, PATIENCE_S + TICK_S).gait is WorkRate.CRAWL
    calm = decide(state, CALM, PATIENCE_S + TICK_S)
    assert decide(calm, CALM, PATIENCE_S + TICK_S + QUIET_S).gait is WorkRate.FULL


def test_a_calm_moment_ends_a_long_wait() -> None:
    half = [BUSY] * int(PATIENCE_S / TICK_S / 2)
    calm = [CALM] * (int(QUIET_S / TICK_S) + 2)
    assert after(*half, *calm, *half, BUSY).gait is WorkRate.PAUSE


@pytest.mark.parametrize("rule", [decide, decide_eager, decide_pressing])
def test_where_memory_is_short_a_job_waits_however_long(rule: Decide) -> None:
    short = Readings(memory_pressure=0.1)
    assert after(*[short] * (2 * int(PATIENCE_S / TICK_S)), rule=rule).gait is WorkRate.PAUSE


@given(st.lists(readings, max_size=20), readings)
def test_an_eager_job_waits_for_nothing_but_memory(before: list[Readings], seen: Readings) -> None:
    calm = [CALM] * 6
    state = after(*before, *calm, seen, rule=decide_eager)
    assert (state.gait is WorkRate.PAUSE) == (seen.memory_pressure >= 0.05)


@given(st.lists(readings, max_size=20), readings)
def test_a_pressing_job_goes_at_least_a_little_for_users(
    before: list[Readings], seen: Readings
) -> None:
    state = after(*before, *[CALM] * 6, replace(seen, memory_pressure=0), rule=decide_pressing)
    is_calm = seen.users < 0.001 and seen.others_cpu < 0.5
    assert state.gait is (WorkRate.FULL if is_calm else WorkRate.EASY)


def test_a_pressing_job_that_takes_long_is_slow_until_it_is_calm() -> None:
    ticks = int(EASY_S / TICK_S)
    assert after(*[BUSY] * ticks, rule=decide_pressing).gait is WorkRate.EASY
    assert after(*[BUSY] * (ticks + 1), rule=decide_pressing).gait is WorkRate.SLOW
    assert after(*[BUSY] * ticks, CALM, rule=decide_pressing).gait is WorkRate.FULL
    assert after(*[BUSY] * ticks, CALM, BUSY, rule=decide_pressing).gait is WorkRate.EASY


@pytest.mark.parametrize(
    ("rule", "share"), [(decide, 1.0), (decide_pressing, EASY_SHARE), (decide_eager, 1.0)]
)
def test_a_pressing_job_goes_easy_until_it_knows_of_users(
    rule: Decide, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "TICK_S", 60.0)
    pace = Pace()
    with backing_off("no such volume", pace, rule, lambda: None):
        assert pace._share == share


# --- the pace ---------------------------------------------------------------------------------


def in_turn(*steps: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        for step in steps:
            step()

    return run


def test_a_job_that_is_held_waits_and_goes_on() -> None:
    run, passed = JobRun("scrub"), threading.Event()
    run.pace.hold("test", "because")
    thread = threading.Thread(target=in_turn(run.safe_point, passed.set))
    thread.start()
    assert not passed.wait(0.3)
    assert run.pace.reason == "because"
    run.pace.release("test")
    assert passed.wait(60)
    thread.join()


def test_a_job_that_is_held_can_be_cancelled() -> None:
    run = JobRun("scrub")
    run.pace.hold("test", "because")
    threading.Timer(0.1, run.cancel).start()
    with pytest.raises(Cancelled):
        run.safe_point()


def test_a_job_goes_on_when_the_last_of_its_holders_lets_go() -> None:
    pace = Pace()
    pace.hold("one", "a")
    pace.hold("two", "b")
    pace.release("one")
    assert pace.is_held and pace.reason == "b"
    pace.release("two")
    assert not pace.is_held


def test_a_slow_job_rests_for_most_of_the_time() -> None:
    run = JobRun("scrub")
    run.safe_point()
    run.pace.slow(0.25, "slow")
    began = time.monotonic()
    for _ in range(5):
        time.sleep(0.02)  # the job's work
        run.safe_point()
    assert time.monotonic() - began >= 5 * 0.02 * 4 * 0.9


class Stop(threading.Event):
    """Tells when somebody has begun to wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_waited_for = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.is_waited_for.set()
        return super().wait(timeout)


def test_what_a_jobs_other_threads_do_while_it_waits_is_work() -> None:
    run, stop = JobRun("scrub"), Stop()
    run.pace.hold("test", "because")
    thread = threading.Thread(target=run.pace.keep, args=(stop,))
    thread.start()
    assert stop.is_waited_for.wait(60)
    end = time.thread_time() + 0.1
    while time.thread_time() < end:
        pass
    run.pace.release("test")
    thread.join()
    run.pace.slow(0.1, "slow")
    began = time.monotonic()
    run.safe_point()
    assert time.monotonic() - began >= 0.1 / (os.cpu_count() or 1) * 9 * 0.9


def test_a_job_that_rests_goes_on_as_soon_as_it_may() -> None:
    run, passed = JobRun("scrub"), threading.Event()
    run.pace.slow(CRAWL_SHARE / 1e6, "slow")
    thread = threading.Thread(target=in_turn(lambda: time.sleep(0.01), run.safe_point, passed.set))
    thread.start()
    assert not passed.wait(0.3)
    held = [run.pace.is_held]
    run.pace.slow(1.0, "")
    assert passed.wait(30)
    assert [*held, run.pace.is_held] == [True, False]
    thread.join()


# --- the readings -----------------------------------------------------------------------------


class Counted:
    """The counters of a machine with two cores, which a test turns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = self.own_s = self.busy_s = 0.0
        monkeypatch.setattr("os.cpu_count", lambda: 2)
        monkeypatch.setattr(backoff, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        monkeypatch.setattr(psutil, "cpu_times", self._cpu_times)
        monkeypatch.setattr(psutil.Process, "cpu_times", self._own_times)

    def _cpu_times(self) -> object:
        times = namedtuple("times", "user system idle iowait steal guest")
        return times(self.busy_s / 2, self.busy_s / 2, 2 * self.now_s - self.busy_s, 0.0, 0.0, 0.0)

    def _own_times(self) -> object:
        return SimpleNamespace(user=self.own_s / 3, system=self.own_s * 2 / 3)

    def turn(self, own_s: float, others_s: float) -> None:
        """Let a second pass."""
        self.now_s += 1.0
        self.own_s += own_s
        self.busy_s += own_s + others_s


@pytest.mark.parametrize("own_s", [0.0, 1.0, 1.5])
@pytest.mark.parametrize("others_s", [0.0, 0.5])
def test_own_work_does_not_count_as_that_of_others(
    own_s: float, others_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counted(monkeypatch)
    counted.turn(0.3, 1.7)
    meter = Meter("no-such-volume")
    counted.turn(own_s, others_s)
    assert meter.read().others_cpu == pytest.approx(others_s / 2)


def test_own_work_is_part_of_what_the_machine_does() -> None:
    """So that it can be subtracted: on a real machine, whatever else runs on it."""
    meter = Meter("no-such-volume")
    before, began_s = meter._counters(), time.process_time()
    while time.process_time() < began_s + 0.5:
        pass
    after, worked_s = meter._counters(), time.process_time() - began_s
    # The kernel counts the machine's time in ticks of ten milliseconds at most.
    assert after.own_s - before.own_s == pytest.approx(worked_s, abs=0.1)
    assert after.busy_s - before.busy_s > 0.7 * worked_s


@pytest.mark.root
def test_a_job_pauses_within_two_seconds_for_users(tmp_path: Path) -> None:
    with mounted_lab(tmp_path) as lab:
        for number in range(4):
            lab.put(f"f{number}", noise(8 * MIB, number))
        lab.optimize()
        with lab.opened() as volume:
            uuid = volume.parameters.uuid
        run, served, stop = JobRun("optimize"), threading.Event(), threading.Event()
        ticks = 0

        def users() -> None:
            while not stop.is_set():
                for number in range(4):
                    (lab.view / f"f{number}").read_bytes()
                    served.set()
                    (lab.view / f"new{number}").write_bytes(b"x" * 4096)

        def rule(state: State, seen: Readings, now_s: float) -> State:
            nonlocal ticks
            if served.is_set() and state.gait is not WorkRate.PAUSE:
                ticks += 1
            # The machine of a test is busy with other tests.
            return decide(state, Readings(users=seen.users), now_s)

        thread = threading.Thread(target=users)
        with backing_off(uuid, run.pace, rule, lambda: None):
            thread.start()
            eventually(lambda: run.pace.is_held, "the job gives way")
            ticks_taken = ticks
            assert "users are active" in run.pace.reason
            stop.set()
            thread.join()
            eventually(lambda: not run.pace.is_held, "the job goes on")
        # A look that had begun already may not have seen them.
        assert ticks_taken <= 2 and 2 * TICK_S < 2
