"""The corruption drill: whatever is damaged is found, nothing else is affected, nothing is wrong.

Each case damages one file of the store or the catalogue, or two: flipped bits, zeroed blocks, cut
and missing files. Then everything is read, scrubbed, read again and verified, against a model that
says to the byte what must be lost, and what must not.
"""

import random
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.support import crash
from tests.support.drill import Drill, remove
from tests.support.upkeep import scrub

pytestmark = pytest.mark.root

CASES, CASES_SLOW = 60, 2500


@pytest.fixture(scope="module")
def drill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drill]:
    with (
        crash.tmpfs(tmp_path_factory.mktemp("drill")) as memory,
        crash.ext4(memory, size_mb=96, mkfs=("-b", "4096")) as point,
    ):
        yield Drill(point / "volume")
        remove(point / "volume")


def run_case(drill: Drill, seed: int) -> str:
    """Damage the volume, and hold everything to what the model says; returns what came of it."""
    drill.reset()
    what = f"case {seed}: {drill.damage(random.Random(seed))}"
    contents = drill.model.contents
    for name, content in drill.read_all():
        assert content in (None, contents[name]), f"{what}: {name} reads wrong"
    must_be_found, expected = drill.must_be_found(), drill.expected_losses()
    report = scrub(drill.root)
    if must_be_found:
        assert report.findings, f"{what}: not found"
    found = {(loss.path, loss.start, loss.end) for loss in report.losses}
    assert found == expected, what
    lost = {name for name, _, _ in expected}
    for name, content in drill.read_all():
        assert content == (None if name in lost else contents[name]), f"{what}: {name}"
    verified = {f.where for f in drill.lab.verify().findings}
    assert verified == lost, what
    again = scrub(drill.root)
    assert not any(again.repaired.values()), what
    assert {(loss.path, loss.start, loss.end) for loss in again.losses} == expected, what
    if not must_be_found:
        return "nothing that counts"
    return "lost" if expected else "repaired" if any(report.repaired.values()) else "mended"


def test_damage_is_found_repaired_where_it_can_be_and_named_where_not(drill: Drill) -> None:
    outcomes = Counter(run_case(drill, seed) for seed in range(CASES))
    assert outcomes.keys() >= {"lost", "repaired", "mended"}


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_thousand_times_over(drill: Drill) -> None:
    outcomes = Counter(run_case(drill, 1000 + seed) for seed in range(CASES_SLOW))
    print(f"\n{CASES_SLOW} cases: {dict(outcomes)}")
    assert sum(outcomes.values()) == CASES_SLOW
