"""How many bytes a day come to be optimized, and are."""

from dataclasses import replace
from pathlib import Path

import pytest

from dedupd.service.history import FLOW_S_MIN, WEEK_S, History, Savings, flow_of
from dedupd_core.units import GIB
from dedupd_core.volume.hints import HintKey
from tests.support.lab import new_lab

EMPTY = Savings(0.0, 0, 0, 0, 0, 0, 0, 0)
DAY_S = 86400.0


def sample(time_s: float, waiting: int, young: int = 0) -> Savings:
    return replace(EMPTY, time_s=time_s, waiting_bytes=waiting, young_bytes=young)


def test_what_came_in_is_what_was_taken_and_what_waits_beyond_what_waited() -> None:
    samples = [sample(0, 1 * GIB, 2 * GIB), sample(DAY_S, 100), sample(2 * DAY_S, 4 * GIB, GIB)]
    runs = [(-5.0, 50 * GIB), (DAY_S, 3 * GIB), (2 * DAY_S, 5 * GIB), (3 * DAY_S, 50 * GIB)]
    flow = flow_of(samples, runs)
    assert flow is not None
    assert flow.out_bytes_per_day == 4 * GIB
    assert flow.in_bytes_per_day == (8 + 2) / 2 * GIB


def test_where_files_were_deleted_nothing_came_in() -> None:
    flow = flow_of([sample(0, 9 * GIB), sample(DAY_S, 0)], [(5.0, GIB)])
    assert flow is not None
    assert (flow.in_bytes_per_day, flow.out_bytes_per_day) == (0, GIB)


@pytest.mark.parametrize("samples", [[], [sample(0, 1)], [sample(0, 1), sample(FLOW_S_MIN - 1, 1)]])
def test_too_short_a_time_tells_nothing(samples: list[Savings]) -> None:
    assert flow_of(samples, []) is None


def test_the_history_of_the_last_week_is_looked_at_and_no_more(tmp_path: Path) -> None:
    now_s = 10 * WEEK_S
    with new_lab(tmp_path / "volume").opened() as volume:
        history = History(volume.base)
        for days in (20, 6, 2):
            history.note_savings(sample(now_s - days * DAY_S, days * GIB))
        for number in range(70):  # over several pages
            started_s = now_s - number * DAY_S / 4
            report = {
                "job": "optimize" if number % 2 else "gc",
                "started_s": started_s,
                "resources": {"wall_s": 1.0},
                "logical_bytes": GIB,
            }
            volume.hints.put(HintKey.RUNS.at(started_s), report)
        flow = history.flow(now_s)
    assert flow is not None
    assert (flow.since_s, flow.until_s) == (now_s - 6 * DAY_S, now_s - 2 * DAY_S)
    runs = 8  # of the odd ones from 9 to 23 quarters of a day ago
    assert flow.out_bytes_per_day == runs * GIB / 4
    assert flow.in_bytes_per_day == (runs - 4) * GIB / 4
