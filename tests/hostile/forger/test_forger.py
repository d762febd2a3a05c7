"""A forger who writes any bytes as a user, any two bit flips, any power failure, any jobs: no wrong
byte, and no file with another owner, mode or place than its user could have made.

``DEDUPD_FORGER_SEED=N`` plays history N alone, ``DEDUPD_FORGER_HISTORIES`` sets how many the slow
test plays.
"""

import multiprocessing
import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from dedupd_core.deleted import log, writer
from dedupd_core.deleted.log import DeletionId, DeletionLogs
from dedupd_core.format import store_secret
from dedupd_core.format.deletion import Deletion
from dedupd_core.store.container import recovery
from tests.crash.exploring import file_system_for_states
from tests.hostile.forger import forgeries
from tests.hostile.forger.histories import PER_WORLD, Forged, play_all

pytestmark = [pytest.mark.root, pytest.mark.hostile]

HISTORIES = 80
HISTORIES_SLOW = int(os.environ.get("DEDUPD_FORGER_HISTORIES", "20000"))
ALONE = os.environ.get("DEDUPD_FORGER_SEED")
MUTATED_MAX = 6000
"""A fault that the histories do not find among so many is not found."""
BATCH = 5 * PER_WORLD


@pytest.fixture
def fast(tmp_path: Path) -> Iterator[Path]:
    with file_system_for_states(tmp_path) as place:
        yield place


def test_no_forgery_is_believed(fast: Path) -> None:
    seeds = range(int(ALONE), int(ALONE) + 1) if ALONE else range(HISTORIES)
    counts = play_all(fast, seeds)
    assert counts.total() == len(seeds)
    for end in () if ALONE else ("came back", "all files", "errors"):
        assert sum(count for one, count in counts.items() if end in one) > HISTORIES // 10


# --- faults of the program that the histories have to find -----------------------------------


def _finds(fast: Path) -> str:
    with pytest.raises(Forged) as found:
        play_all(fast, range(MUTATED_MAX))
    print(f"\n{found.value}")
    return str(found.value)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_seeds_of_containers_that_users_know_are_found(
    fast: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def known(_: bytes, number: int, generation: int) -> int:
        return number * 1000 + generation

    monkeypatch.setattr(forgeries, "seed_of_container", known)
    monkeypatch.setattr(store_secret, "_seed", lambda _, __, *place: known(b"", *place))
    assert "Forged" in _finds(fast)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_record_of_a_public_seed_that_is_not_proved_is_found(
    fast: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "believed", lambda fd, header, items, bases: items)
    assert "Forged" in _finds(fast)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_seeds_of_logs_that_users_know_are_found(
    fast: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Known:
        """Another source of randomness."""

        def __getattr__(self, name: str) -> object:
            return (lambda length: bytes([7] * length)) if name == "urandom" else getattr(os, name)

    monkeypatch.setattr(writer, "os", Known())
    monkeypatch.setattr(forgeries, "seed_of_log", lambda *_: int.from_bytes(bytes([7] * 8)))
    assert "nobody has deleted" in _finds(fast)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_log_that_proves_nothing_and_is_believed_is_found(
    fast: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    get = DeletionLogs.get

    def believing(self: DeletionLogs, wanted: DeletionId, *, unproven: bool = False) -> Deletion:
        return get(self, wanted, unproven=True)

    monkeypatch.setattr(log.DeletionLogs, "get", believing)
    assert "came back as" in _finds(fast)


# --- many -------------------------------------------------------------------------------------

_place: Path


def _take_place(places: "multiprocessing.Queue[Path]") -> None:
    global _place
    _place = places.get()


def _play(first: int) -> Counter[str]:
    return play_all(_place, range(first, first + BATCH))


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_no_forgery_is_believed_in_many_histories(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    places, workers = spawn.Queue(), os.cpu_count() or 1
    counts: Counter[str] = Counter()
    for worker in range(workers):
        (tmp_path / f"{worker}").mkdir()
    with ExitStack() as stack:
        for worker in range(workers):
            places.put(stack.enter_context(file_system_for_states(tmp_path / f"{worker}")))
        pool = stack.enter_context(ProcessPoolExecutor(workers, spawn, _take_place, (places,)))
        for some in pool.map(_play, range(0, HISTORIES_SLOW, BATCH)):
            counts += some
    for end, count in counts.most_common():
        print(f"{count:6} {end}")
    assert counts.total() >= HISTORIES_SLOW
