"""The corruption drill: whatever is damaged is found, nothing else is affected, nothing is wrong.

Each case damages one file of the store or the catalogue, or two: flipped bits, blocks that are
zeroed, swapped or torn, cut and missing files. Then everything is read, scrubbed, read again and
verified, against a model that says to the byte what must be lost, and what must not. Other cases
damage the attribute of a stub, or the files that can be made again.
"""

import os
import random
import struct
from collections import Counter
from collections.abc import Iterator

import pytest

from dedupd_core.format.ids import PackedPairs, make_id
from dedupd_core.store.merge_log import MergeLogWriter
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import opened
from jobs.frame.run import JobRun
from jobs.optimize.optimize_job import Optimize
from tests.crash.small_parts import saved_indexes
from tests.support import crash
from tests.support.drill import Drill, remove
from tests.support.upkeep import reconcile, scrub

pytestmark = pytest.mark.root

CASES, CASES_SLOW = 60, 2100
ATTRIBUTES, ATTRIBUTES_SLOW = 12, 300
DERIVED, DERIVED_SLOW = 6, 100


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


def run_attribute_case(drill: Drill, seed: int) -> str:
    """Damage a stub's attribute: the file fails, verify names it, and no other file is affected."""
    drill.reset()
    name, attribute, before = drill.damage_attribute(random.Random(seed))
    what = f"case {seed}: the attribute of {name}"
    try:
        for one, content in drill.read_all():
            assert content == (None if one == name else drill.model.contents[one]), f"{what}: {one}"
        assert {finding.where for finding in drill.lab.verify().findings} == {name}, what
    finally:
        os.setxattr(drill.lab.data / name, attribute, before)
    return "attribute"


def optimize_new(drill: Drill, content: bytes) -> None:
    """Optimize a new file, and no other."""
    drill.lab.put("new", content)
    with drill.lab.opened() as volume, volume.job_lock():
        Optimize(volume, JobRun("optimize"), b"new").run()


def derived_files(drill: Drill) -> dict[str, bytes]:
    """What jobs leave for the next one: an index, saved marks, a plan of merges."""
    drill.reset()
    with saved_indexes():
        optimize_new(drill, b"something to look up " * 400)
        (drill.lab.data / "new").unlink()
    drill.lab.collect()
    (drill.lab.base / "store/merge").mkdir(exist_ok=True)
    with (
        drill.lab.opened() as volume,
        opened(os.open(drill.lab.base / "store/merge", os.O_RDONLY)) as dir_fd,
    ):
        writer = MergeLogWriter(dir_fd, volume.space.volume_id, Disk(), volume.room())
        ids = [make_id(1, ordinal) for ordinal in range(4)]
        writer.add(PackedPairs(struct.pack("<4Q", *ids)))
        writer.complete()
        writer.close()
    names = ["saved.marks", "store/merge/merge.log", "store/chunks/saved.table"]
    return {name: (drill.lab.base / name).read_bytes() for name in names}


def run_derived_case(drill: Drill, seed: int, files: dict[str, bytes]) -> str:
    """Damage what can be made again: jobs go on, every file reads right, nothing is lost."""
    rng = random.Random(seed)
    for name, data in files.items():
        damaged = bytearray(data)
        for _ in range(rng.choice([1, 1, 3])):
            at = rng.randrange(len(damaged))
            damaged[at] ^= 1 << rng.randrange(8)
        if rng.random() < 0.3:
            del damaged[rng.randrange(len(damaged)) :]
        (drill.lab.base / name).write_bytes(damaged)
    what = f"case {seed}: derived files"
    with saved_indexes():
        optimize_new(drill, rng.randbytes(9000))
        reconcile(drill.lab)
        drill.lab.collect()
    try:
        for name, content in drill.read_all():
            assert content == drill.model.contents[name], f"{what}: {name}"
        assert drill.lab.verify().findings == [], what
    finally:
        (drill.lab.data / "new").unlink()
        drill.reset()
    return "derived"


def run_other_cases(drill: Drill, attributes: int, derived: int, seed: int) -> Counter[str]:
    outcomes = Counter(run_attribute_case(drill, seed + n) for n in range(attributes))
    files = derived_files(drill)
    outcomes += Counter(run_derived_case(drill, seed + n, files) for n in range(derived))
    for name in files:
        (drill.lab.base / name).unlink(missing_ok=True)
    return outcomes


def test_damage_of_attributes_and_of_what_is_derived_costs_no_other_byte(drill: Drill) -> None:
    outcomes = run_other_cases(drill, ATTRIBUTES, DERIVED, seed=0)
    assert outcomes == {"attribute": ATTRIBUTES, "derived": DERIVED}


def test_damage_is_found_repaired_where_it_can_be_and_named_where_not(drill: Drill) -> None:
    outcomes = Counter(run_case(drill, seed) for seed in range(CASES))
    assert outcomes.keys() >= {"lost", "repaired", "mended"}


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_thousand_times_over(drill: Drill) -> None:
    outcomes = Counter(run_case(drill, 1000 + seed) for seed in range(CASES_SLOW))
    outcomes += run_other_cases(drill, ATTRIBUTES_SLOW, DERIVED_SLOW, seed=1000)
    print(f"\n{outcomes.total()} cases: {dict(outcomes)}")
    assert outcomes.total() >= 2500
