"""The corruption drill over a refined store: dictionaries, bases and differences are damaged, in
any number and order. No read is wrong, and every file that is hit is named, and no other."""

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from dedupd_core.config.policy import RefineMode
from dedupd_core.errors import Damaged
from dedupd_core.format import table as tbl
from dedupd_core.format.container import Kind
from dedupd_core.store.second_copies import all_copies
from dedupd_core.units import KIB
from jobs.frame.run import JobRun
from jobs.refine.refine_job import Refine
from jobs.scrub.scrub_job import Depth
from tests.support.lab import new_lab, noise
from tests.support.upkeep import chunks_of, damage_record, scrub

POLICY = (
    'min_age = "0s"\nmin_size = "1"\nredundancy_threshold = 4\nrefine = "full"\nrefine_age = "0s"\n'
)

CASES, CASES_SLOW = 4, 400


class RefinedStore:
    """A volume with records of every rank, and what each file needs."""

    def __init__(self, root: Path) -> None:
        self.lab = lab = new_lab(root / "volume")
        lab.set_policy(POLICY)
        rng = random.Random(3)
        words = ["".join(rng.choices("abcdefghijklmnop", k=9)) for _ in range(300)]
        for number in range(50):
            text = " ".join(rng.choices(words, k=300)).encode()
            lab.put(f"text/{number}", text)
            if number % 5 == 0:
                lab.put(f"again/{number}", text.replace(b" ", b"\n", 2) + b" and more")
        for family in range(3):
            content = bytearray(noise(20 * KIB, family))
            for number in range(3 + 3 * family):
                lab.put(f"version/{family}/{number}", bytes(content))
                content[700 * number : 700 * number + 30] = noise(30, 100 * family + number)
        lab.optimize()
        with lab.opened() as volume, volume.job_lock():
            report = Refine(volume, JobRun("refine"), RefineMode.FULL).run()
        assert report.new_deltas > 10 and report.new_with_dictionary > 30
        assert scrub(lab.root).losses == []
        self.contents = {
            os.path.relpath(path, lab.data): path.stat().st_size
            for path in lab.data.rglob("*")
            if path.is_file()
        }
        self.before = {name: lab.read(name) for name in self.contents}
        self.chunks = {name: {one for one, _, _ in chunks_of(lab, name)} for name in self.before}
        self.entries: dict[int, tbl.TableEntry] = {}
        with lab.opened() as volume:
            with volume.containers(Kind.CHUNKS) as directory:
                for number in directory.numbers():
                    for ordinal, entry in enumerate(directory.entries(number)):
                        assert entry is not None
                        self.entries[number << 32 | ordinal] = entry
            with volume.containers(Kind.CHUNK_COPIES) as directory:
                found = all_copies(directory.fd, directory.kind, directory.volume_id)
                self.copies = {copy.entry.target: copy.copy_id for copy in found}
        shutil.copytree(lab.base / "store", root / "store")
        self.kept = root / "store"
        self.held = {one.base for one in self.entries.values() if one.rank == 1}
        self.bases = {one.base for one in self.entries.values() if one.rank == 2}
        assert self.held <= self.copies.keys() and self.bases - self.copies.keys()
        assert any(self.entries[one].rank == 1 for one in self.bases)

    def reset(self) -> None:
        for path in (self.lab.base / "store").rglob("*"):
            if path.is_file():
                path.unlink()
        shutil.copytree(self.kept, self.lab.base / "store", dirs_exist_ok=True)

    def damage(self, rng: random.Random) -> set[tuple[Kind, int]]:
        """Damage some records; returns these."""
        live = [one for one, entry in self.entries.items() if entry.state == tbl.State.LIVE]
        classes = [
            [(Kind.CHUNKS, one) for one in sorted(self.held)],
            [(Kind.CHUNK_COPIES, self.copies[one]) for one in sorted(self.held)],
            [(Kind.CHUNKS, one) for one in sorted(self.bases)],
            [(Kind.CHUNK_COPIES, one) for one in sorted(self.copies.values())],
            [(Kind.CHUNKS, one) for one in live],
        ]
        hit: list[tuple[Kind, int]] = []
        for one in rng.sample(classes, rng.randrange(1, len(classes) + 1)):
            hit += rng.sample(one, rng.randrange(1, 4) if len(one) > 3 else 1)
        chosen = list(dict.fromkeys(hit))
        rng.shuffle(chosen)
        for kind, record_id in chosen:
            damage_record(self.lab, kind, record_id)
        return set(chosen)

    def lost(self, hit: set[tuple[Kind, int]]) -> set[int]:
        """The chunks whose bytes nothing has any more."""

        def is_lost(one: int) -> bool:
            copy = self.copies.get(one)
            if copy is not None and (Kind.CHUNK_COPIES, copy) not in hit:
                return False
            return (Kind.CHUNKS, one) in hit or bool(
                self.entries[one].leans and is_lost(self.entries[one].base)
            )

        return {one for one in self.entries if is_lost(one)}

    def read_all(self) -> Iterator[tuple[str, bytes | None]]:
        for name in self.before:
            try:
                yield name, self.lab.read(name)
            except Damaged:
                yield name, None


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> RefinedStore:
    return RefinedStore(tmp_path_factory.mktemp("drill"))


def run_case(store: RefinedStore, seed: int) -> bool:
    """Damage the store, and hold all to what it must cost; says whether that was anything."""
    store.reset()
    rng = random.Random(seed)
    hit = store.damage(rng)
    lost = store.lost(hit)
    names = {name for name, chunks in store.chunks.items() if chunks & lost}
    what = f"case {seed}: {sorted(hit)}"

    def expect_reads() -> None:
        for name, content in store.read_all():
            assert content == (None if name in names else store.before[name]), f"{what}: {name}"

    expect_reads()
    report = store.lab.verify()
    named = {one.where for one in report.findings if one.invariant == "recipe-chunks"}
    assert named == names, what
    depths = [rng.choice([*Depth]), Depth.FULL]
    for depth in depths:
        found = {loss.path for loss in scrub(store.lab.root, depth).losses}
        assert found == names or (depth is Depth.QUICK and found < names), what
        expect_reads()
    verified = {one.where for one in store.lab.verify().findings}
    assert verified == names, what
    return bool(names)


def test_damage_below_what_others_lean_on_is_repaired_or_named(store: RefinedStore) -> None:
    assert len({run_case(store, seed) for seed in range(CASES)}) == 2


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_hundreds_of_times_over(store: RefinedStore) -> None:
    losses = sum(run_case(store, 1000 + seed) for seed in range(CASES_SLOW))
    print(f"\n{CASES_SLOW} cases, {losses} with losses")
    assert 0 < losses < CASES_SLOW
