"""A power cut at any moment leaves every file with its last synced content, or a later one.

Each scenario runs once on a recording disk. Then the states that a power cut may have left after
every step, on each of the file systems, are built on a real ext4, read as they are, brought back by
the next run, and read again. docs/design/crash-safety.md says what states those are.
"""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from dedupd_core import native
from dedupd_core.system.files import data_ranges, opened
from tests.crash.exploring import SCENARIOS, explore, explore_all, file_system_for_states
from tests.crash.scenarios import contents, optimized_volume
from tests.support import crash
from tests.support.crash_states import FILE_SYSTEMS
from tests.support.lab import Lab

pytestmark = pytest.mark.root

STATES_PER_SCENARIO = 10
STATES_SLOW, STATES_OF_EACH_SLOW = 20_000, 4_000
PLANNED_SLOW = 400
"""Of one scenario with one tree. Some of the states turn out to be the same."""


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with file_system_for_states(tmp_path_factory.mktemp("power")) as point:
        yield point


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_power_cut_loses_nothing(fast: Path, name: str) -> None:
    counts = explore(fast, SCENARIOS[name], STATES_PER_SCENARIO)
    assert counts.total() >= 2


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_power_cut_loses_nothing_in_twenty_thousand_states(tmp_path: Path) -> None:
    found = explore_all(tmp_path, STATES_SLOW, STATES_OF_EACH_SLOW, PLANNED_SLOW)
    for name, counts in found.items():
        print(f"\n{counts.total():6,}  {name}: {dict(counts)}", end="")
    total = sum(found.values(), Counter[str]())
    print(f"\n{total.total():6,}  crash states, all different: {dict(total)}")
    assert total.total() >= STATES_SLOW
    assert all(total[one.name] >= STATES_OF_EACH_SLOW for one in FILE_SYSTEMS)
    assert all(counts.total() for counts in found.values())


# --- what the simulated disk cannot show -----------------------------------------------------


def test_unwritten_blocks_stay_holes_when_they_are_read_ahead(fast: Path) -> None:
    """A power cut leaves blocks behind that no write reached; the kernel reads ahead into them."""
    root = fast / "root"
    optimized_volume(root, seed=1)
    before = contents(root)
    path = Lab(root).let_write("base")
    with opened(os.open(path, os.O_RDWR)) as fd:
        os.pwrite(fd, before["base"][:4096], 0)
        native.system.fallocate_keep_size(fd, 4096, 3 * 4096)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.pread(fd, 4096, 0)
        assert list(data_ranges(fd, 0, 4 * 4096)) != [(0, 4096)], "the kernel did not read ahead"
    assert contents(root) == before
    crash.optimize_volume(root)
    assert contents(root) == before
    assert crash.verify_volume(root).findings == []
    crash.remove(root)
