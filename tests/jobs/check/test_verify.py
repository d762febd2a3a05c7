"""Verify finds every class of damage, names the files that are hit, and changes nothing."""

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from dedupd_core import native
from dedupd_core.format import container as fmt
from dedupd_core.format import table as tbl
from dedupd_core.format.container import Kind
from dedupd_core.format.ids import make_id
from dedupd_core.format.stub import StubAttribute
from dedupd_core.store.container.record_states import set_states
from dedupd_core.stub.stub_file import SparseStub
from dedupd_core.system.files import opened
from dedupd_core.units import KIB
from jobs.check.invariants import INVARIANTS
from tests.support import odd_files
from tests.support.lab import (
    Lab,
    as_user,
    fill,
    flip_bit,
    lab_in,
    new_lab,
    noise,
    prose,
    public_directory,
    stop_at,
)
from tests.support.upkeep import scrub

FIRST_RECORD = fmt.FILE_HEADER_BYTES
FIRST_PAYLOAD = FIRST_RECORD + fmt.RECORD_HEADER_BYTES


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """An optimized volume: nothing is checked at the end, it is to be damaged."""
    lab = new_lab(tmp_path / "volume")
    fill(lab)
    lab.optimize()
    lab.verify_clean()
    return lab


def test_a_sound_volume_has_no_findings_and_is_counted(lab: Lab) -> None:
    report = lab.verify()
    assert report.outcome == "clean"
    assert (report.stubs, report.plain_files, report.containers) == (6, 0, 3)
    assert report.copies == 4
    assert report.logical_bytes == sum(path.stat().st_size for path in lab.data.iterdir())
    assert report.unreferenced_chunks == 0


# --- one way to violate each invariant --------------------------------------------------------


def other_fingerprint(lab: Lab) -> None:
    """A record that says with all its checksums that its bytes are others."""
    path = lab.container(Kind.CHUNKS)
    data = bytearray(path.read_bytes())
    seed = lab.seed(Kind.CHUNKS)
    record = fmt.unpack_record(bytes(data), FIRST_RECORD, seed)
    assert record is not None
    forged = replace(record, fingerprint=native.hashing.fingerprint(b"other bytes"))
    fmt.pack_record_into(memoryview(data), FIRST_RECORD, forged, seed)
    path.write_bytes(data)


def set_attribute(lab: Lab, name: str, **changes: object) -> None:
    with lab.opened() as volume:
        stub = lab.stub(name)
        assert stub is not None
        fields = {key: getattr(stub, key) for key in StubAttribute.__slots__}
        with opened(os.open(lab.data / name, os.O_RDONLY)) as fd:
            value = volume.space.encode(StubAttribute(**{**fields, **changes}), fd)
        os.setxattr(lab.data / name, volume.space.name, value)


def set_entry(lab: Lab, kind: Kind, ordinal: int, **changes: object) -> None:
    """Change what a table says of a record, with all its checksums."""
    with lab.opened() as volume:
        directory = volume.containers(kind)
        entry = directory.entries(1)[ordinal]
        assert entry is not None
        set_states(directory, {make_id(1, ordinal): entry._replace(**changes)})  # type: ignore
        directory.close()


def copy_of_another(lab: Lab) -> None:
    """A second copy that says to be of another recipe than it is."""
    path = lab.container(Kind.RECIPE_COPIES)
    data = bytearray(path.read_bytes())
    seed = lab.seed(Kind.RECIPE_COPIES)
    record = fmt.unpack_record(bytes(data), FIRST_RECORD, seed)
    assert record is not None
    forged = replace(record, target=make_id(1, 1))
    fmt.pack_record_into(memoryview(data), FIRST_RECORD, forged, seed)
    path.write_bytes(data)
    set_entry(lab, Kind.RECIPE_COPIES, 0, target=make_id(1, 1))


def merged_into_another(lab: Lab) -> None:
    set_entry(lab, Kind.CHUNKS, 0, state=tbl.State.MERGED, target=make_id(1, 1))


def garbage_attribute(lab: Lab) -> None:
    with lab.opened() as volume:
        os.setxattr(lab.data / "prose", volume.space.name, b"\x01garbage" * 6)


def longer_than_its_recipe(lab: Lab) -> None:
    os.truncate(lab.data / "prose", 300 * KIB)
    set_attribute(lab, "prose", covered=300 * KIB)


def another_chunk(lab: Lab) -> None:
    """A stub that names a chunk by its id, and by the first bytes of its fingerprint alone."""
    stub = lab.stub("one-chunk")
    assert stub is not None
    set_attribute(lab, "one-chunk", digest=stub.digest[:8] + bytes(8))


def copied_stub(lab: Lab) -> None:
    path = lab.data / "prose"
    subprocess.run(["cp", "-a", path, lab.data / "copy of it"], check=True)
    os.rename(lab.data / "copy of it", path)


def filled(lab: Lab, name: str) -> None:
    with open(lab.data / name, "r+b") as file:
        file.write(bytes(8192))


def punched(lab: Lab, name: str) -> None:
    """A stub with blocks of its own that its attribute counts, and that something has dug out."""
    path = lab.let_write(name)
    with open(path, "r+b") as file:
        file.write(bytes(64 * KIB))
        os.fsync(file.fileno())
        with lab.opened() as volume:
            stub = volume.space.read(file.fileno(), name)
            assert stub is not None
            load = partial(volume.content, where=name)
            sparse = SparseStub(file.fileno(), stub, volume.stub_files, load)
            assert sparse.seal() and sparse.attribute.local_bytes == 64 * KIB
    lab.verify_clean()
    subprocess.run(["fallocate", "-d", path], check=True)


DAMAGE: list[tuple[str, str, Callable[[Lab], None]]] = [
    ("container-header", "", lambda lab: flip_bit(lab.container(Kind.CHUNKS), 30)),
    ("container-records", "", lambda lab: flip_bit(lab.container(Kind.CHUNKS), FIRST_RECORD + 9)),
    ("record-payload", "", lambda lab: flip_bit(lab.container(Kind.CHUNKS), FIRST_PAYLOAD + 9)),
    ("record-payload", "", lambda lab: flip_bit(lab.container(Kind.RECIPES), FIRST_PAYLOAD + 9)),
    ("record-fingerprint", "", other_fingerprint),
    ("table-agrees", "", lambda lab: lab.table(Kind.CHUNKS).unlink()),
    ("table-agrees", "", lambda lab: flip_bit(lab.table(Kind.CHUNKS), 10)),
    ("table-agrees", "", lambda lab: flip_bit(lab.table(Kind.RECIPES), tbl.HEADER_BYTES + 33)),
    ("stub-attribute", "prose", garbage_attribute),
    ("container-header", "", lambda lab: lab.container(Kind.RECIPES).unlink()),
    ("primary-there", "", lambda lab: lab.container(Kind.RECIPES).unlink()),
    ("copy-agrees", "", copy_of_another),
    ("merged-target", "", merged_into_another),
    ("stub-place", "prose", copied_stub),
    ("stub-blocks", "prose", lambda lab: punched(lab, "prose")),
    ("stub-blocks", "prose", lambda lab: filled(lab, "prose")),
    ("stub-recipe", "prose", lambda lab: lab.lose(Kind.RECIPES)),
    ("stub-recipe", "prose", lambda lab: set_attribute(lab, "prose", digest=bytes(16))),
    ("stub-recipe", "prose", lambda lab: set_attribute(lab, "prose", recipe=make_id(9, 9))),
    ("stub-recipe", "prose", longer_than_its_recipe),
    ("recipe-chunks", "prose", lambda lab: lab.container(Kind.CHUNKS).unlink()),
    ("recipe-chunks", "one-chunk", lambda lab: lab.container(Kind.CHUNKS).unlink()),
    ("recipe-chunks", "one-chunk", another_chunk),
]


OF_RECONCILIATION = {"merge-ends", "partition-agrees", "set-distinct", "merge-log"}
"""They are violated in ``tests/jobs/reconcile/test_reconcile.py``."""
OF_DOMAINS = {"domain-agrees"}
"""Violated in ``tests/jobs/domains/test_domains.py``."""


@pytest.mark.parametrize(("invariant", "named", "damage"), DAMAGE)
def test_damage_is_found_by_the_name_of_what_it_violates(
    lab: Lab, invariant: str, named: str, damage: Callable[[Lab], None]
) -> None:
    damage(lab)
    report = lab.verify()
    assert report.outcome == "damaged"
    assert report.by_invariant.get(invariant)
    if named:
        assert named in {f.where for f in report.findings if f.invariant == invariant}


def test_every_invariant_has_its_damage_in_these_tests() -> None:
    elsewhere = {"tree-readable", "delta-base", *OF_RECONCILIATION, *OF_DOMAINS}
    assert {name for name, _, _ in DAMAGE} | elsewhere == set(INVARIANTS)


def test_stubs_are_found_however_deep_they_lie(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        odd_files.deeper_than_a_path(os.fsencode(lab.data))
        lab.optimize()
        assert lab.verify().stubs == 1
        assert scrub(lab.root).stubs == 1
        for path in lab.data.iterdir():
            shutil.rmtree(path)  # nobody else can clear that away


@pytest.mark.root
def test_a_directory_that_cannot_be_read_is_a_finding() -> None:
    def check(directory: Path) -> None:
        lab = new_lab(directory / "volume")
        lab.put("closed/file", noise(40 * KIB))
        os.chmod(lab.data / "closed", 0)
        findings = lab.verify().findings
        assert [(f.invariant, f.where) for f in findings] == [("tree-readable", "closed")]
        os.chmod(lab.data / "closed", 0o700)
        lab.verify_clean()

    with public_directory() as directory:
        as_user(partial(check, directory))


def test_a_damaged_chunk_names_every_file_that_it_hits_and_no_other(lab: Lab) -> None:
    """The first 100 KiB of three of them are the same."""
    with lab.opened() as volume:
        stub = lab.stub("base")
        assert stub is not None
        recipe = volume.content(stub, "").recipe
        chunk = next(iter(recipe.spans(0, 1))).chunk
        table = lab.table(Kind.CHUNKS).read_bytes()
        at = tbl.HEADER_BYTES + (chunk & 0xFFFF_FFFF) * tbl.ENTRY_BYTES
        entry = tbl.decode_entry(table[at : at + tbl.ENTRY_BYTES], lab.seed(Kind.CHUNKS))
        assert entry is not None
    flip_bit(lab.container(Kind.CHUNKS), entry.offset + fmt.RECORD_HEADER_BYTES + 100)
    hit = {f.where for f in lab.verify().findings if f.invariant == "recipe-chunks"}
    assert hit == {"base", "copy", "edited"}


def test_any_flipped_bit_of_the_store_is_found(lab: Lab) -> None:
    """Every 997th: all of them would take hours, and the formats' tests go through each."""
    for kind in (Kind.CHUNKS, Kind.RECIPES, Kind.RECIPE_COPIES):
        for path in (lab.container(kind), lab.table(kind)):
            for bit in range(0, path.stat().st_size * 8, 99_991 if "chunks" in str(path) else 997):
                flip_bit(path, bit // 8, bit % 8)
                found = lab.broken()
                flip_bit(path, bit // 8, bit % 8)
                assert found or is_padding(lab, path, bit // 8)
    lab.verify_clean()


def is_padding(lab: Lab, path: Path, offset: int) -> bool:
    """Whether a byte lies between the payload of a record and the next record."""
    if path.suffix != ".dat":
        return False
    data, at = path.read_bytes(), fmt.FILE_HEADER_BYTES
    seed = fmt.seed_of(fmt.decode_file_header(data[: fmt.FILE_HEADER_BYTES], ""))
    while at < len(data):
        record = fmt.unpack_record(data, at, seed)
        assert record is not None
        end = at + fmt.RECORD_HEADER_BYTES + record.stored_length
        at += fmt.record_size(record.stored_length)
        if end <= offset < at:
            return True
    return False


# --- what is no damage ------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["writer.appended", "writer.synced", "commit.durable"])
def test_what_an_interrupted_job_leaves_is_told_from_damage(tmp_path: Path, point: str) -> None:
    with lab_in(tmp_path) as lab:
        fill(lab)
        with stop_at(point):
            lab.optimize()
        report = lab.verify_clean()
        assert report.unsettled == (6 if point == "commit.durable" else 0)
        lab.optimize()
        assert lab.verify_clean().unsettled == 0


def test_a_stub_with_all_its_blocks_needs_no_store(lab: Lab) -> None:
    lab.let_write("prose").write_bytes(prose(200 * KIB))
    lab.lose(Kind.RECIPES)
    hit = {finding.where for finding in lab.verify().findings}
    assert "prose" not in hit and "base" in hit


def test_chunks_that_no_file_needs_any_more_are_counted(lab: Lab) -> None:
    (lab.data / "one-chunk").unlink()
    assert lab.verify_clean().unreferenced_chunks == 1


def test_verify_changes_nothing(lab: Lab) -> None:
    flip_bit(lab.container(Kind.CHUNKS), FIRST_PAYLOAD + 9)
    lab.table(Kind.RECIPES).unlink()
    with open(lab.container(Kind.RECIPES), "ab") as file:
        file.write(b"a torn tail")

    def state() -> dict[str, tuple[int, bytes]]:
        return {
            str(path): (path.stat().st_mtime_ns, path.read_bytes())
            for path in sorted(lab.base.rglob("*"))
            if path.is_file() and "catalog" not in path.parts
        }

    before = state()
    assert lab.verify().findings
    assert state() == before
