"""Every state that a power cut may leave of a scenario: built, read, brought back, read again."""

import gc
import multiprocessing
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from tests.crash.adopt_scenarios import ADOPT_SCENARIOS
from tests.crash.deletion_scenarios import DELETION_SCENARIOS
from tests.crash.mount_scenarios import MOUNT_SCENARIOS
from tests.crash.recovery_scenarios import RECOVERY_SCENARIOS
from tests.crash.replica_scenarios import REPLICA_SCENARIOS
from tests.crash.scenarios import SCENARIOS as SCENARIOS_OF_JOBS
from tests.crash.scenarios import History, Scenario, Scene, assert_allowed
from tests.crash.shared_scenarios import SHARED_SCENARIOS
from tests.crash.space_scenarios import SPACE_SCENARIOS
from tests.support import crash
from tests.support.crash_states import FILE_SYSTEMS, Choice, CrashStates, FileSystem, choices
from tests.support.simulated_disk import Entry, Inode, RecordingDisk, materialise, scan, summary

SCENARIOS = (
    SCENARIOS_OF_JOBS
    | RECOVERY_SCENARIOS
    | SPACE_SCENARIOS
    | ADOPT_SCENARIOS
    | DELETION_SCENARIOS
    | REPLICA_SCENARIOS
    | SHARED_SCENARIOS
    | MOUNT_SCENARIOS
)


@contextmanager
def file_system_for_states(directory: Path) -> Iterator[Path]:
    """A directory on an ext4 in memory, without a journal: we do the crashing."""
    options = ("-b", "4096", "-O", "^has_journal", "-N", "16384")
    with (
        crash.tmpfs(directory) as memory,
        crash.ext4(memory, size_mb=256, mkfs=options) as point,
    ):
        yield point
        gc.collect()  # descriptors that belong to the traceback of a failure


@dataclass(frozen=True, slots=True)
class Recorded:
    """A scenario that was carried out: what was there before, each step, and what users know."""

    before: dict[int, Inode]
    top: int
    log: Sequence[Entry]
    history: History


def record(
    root: Path,
    scenario: Scenario,
    seed: int = 1,
    make_disk: Callable[[], RecordingDisk] = RecordingDisk,
) -> Recorded:
    """Carry a scenario out in ``root``, which is gone again afterwards."""
    crash.remove(root)
    scenario.begin(root, seed)
    scene = Scene(root, make_disk(), History(), seed)
    for name, content in scenario.look(root).items():
        scene.synced(name, content)
    before, top = scan(root), root.stat().st_ino
    scenario.act(scene)
    crash.remove(root)
    return Recorded(before, top, scene.disk.log, scene.history)


def explore(
    fast: Path,
    scenario: Scenario,
    states_max: int,
    seed: int = 1,
    make_disk: Callable[[], RecordingDisk] = RecordingDisk,
    file_systems: Sequence[FileSystem] = FILE_SYSTEMS,
) -> Counter[str]:
    """Check crash states of one scenario, all different; returns how many there were of each file
    system."""
    recorded = record(fast / "root", scenario, seed, make_disk)
    crashed = fast / "crashed"
    crash.remove(crashed)
    states = CrashStates(recorded.before, recorded.log)
    steps = len(recorded.log)
    seen: set[int] = set()
    counts: Counter[str] = Counter()
    rng = random.Random(seed)
    for length, choice in _plan(steps, states_max, rng, file_systems):
        state = states.state(length, choice, rng)
        key = summary(state, recorded.top)
        if key in seen:
            continue
        seen.add(key)
        counts[choice.file_system.name] += 1
        where = f"after {length} of {steps} steps, {choice}"
        materialise(state, recorded.top, crashed)
        scenario.place(crashed)
        history = recorded.history
        allowed, gone = history.allowed(length), history.may_be_gone(length)
        try:
            assert_allowed(scenario.look(crashed), allowed, gone, where)
            scenario.end(crashed)
            assert_allowed(scenario.look(crashed), allowed, gone, f"{where}, recovered")
        except Exception as error:
            error.add_note(f"The crash state is {where} (see tests/crash/steps.py).")
            raise
        crash.remove(crashed)
    return counts


def _plan(
    steps: int, states_max: int, rng: random.Random, file_systems: Sequence[FileSystem]
) -> Iterator[tuple[int, Choice]]:
    """Places to crash at and what to keep there: all places once around, then again."""
    endless = cycle([choices(rng, file_system) for file_system in file_systems])
    planned = 0
    while planned < states_max:
        places = list(range(steps + 1))
        rng.shuffle(places)
        for length in places[: states_max - planned]:
            yield length, next(next(endless))
            planned += 1


# --- all cores --------------------------------------------------------------------------------


def explore_all(
    directory: Path, states_min: int, states_of_each_min: int, planned: int
) -> dict[str, Counter[str]]:
    """Explore all scenarios with one tree after the other, until there were enough states.

    Returns how many states there were of each scenario, by file system.
    """
    found: dict[str, Counter[str]] = {name: Counter() for name in SCENARIOS}
    spawn = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        places = spawn.Queue()
        for worker in range(workers := os.cpu_count() or 1):
            (own := directory / f"worker{worker}").mkdir()
            places.put(stack.enter_context(file_system_for_states(own)))
        pool = stack.enter_context(ProcessPoolExecutor(workers, spawn, _take_place, (places,)))
        seed = 0
        while not _is_enough(found, states_min, states_of_each_min):
            seed += 1
            names = list(SCENARIOS)
            for name, counts in zip(
                names, pool.map(_explore_one, ((n, planned, seed) for n in names)), strict=True
            ):
                found[name] += counts
    return found


def _is_enough(found: dict[str, Counter[str]], states_min: int, states_of_each_min: int) -> bool:
    total = sum(found.values(), Counter[str]())
    each = min(total[file_system.name] for file_system in FILE_SYSTEMS)
    return total.total() >= states_min and each >= states_of_each_min


_place: Path


def _take_place(places: Any) -> None:
    global _place
    _place = places.get()


def _explore_one(task: tuple[str, int, int]) -> Counter[str]:
    name, planned, seed = task
    try:
        return explore(_place, SCENARIOS[name], planned, seed)
    except Exception as error:
        raise AssertionError(f"{name}, seed {seed}: {error}") from error
