"""Writes that went astray: intact records in a place of their own container where others belong.

One scrub settles them. What they lie upon is repaired or named, and nothing is said of them again.
"""

import os
from pathlib import Path

import pytest

from dedupd_core.format import container as fmt
from dedupd_core.format import table as tbl
from dedupd_core.format.container import Kind
from dedupd_core.format.ids import ordinal_of
from tests.support import upkeep
from tests.support.lab import Lab, new_lab, noise
from tests.support.upkeep import chunks_of, entry

CONTENTS = {f"{name}{n}": noise(90_000, n) for n in range(3) for name in ("file", "again")} | {
    f"{name}{n}": noise(3000, 10 + n) for n in range(2) for name in ("small", "again-small")
}


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """Files of several chunks each, all of which two files need, and which are kept twice."""
    lab = new_lab(tmp_path / "volume", "8k")
    lab.set_policy('min_age = "0s"\nmin_size = "1"\nredundancy_threshold = 1\n')
    for name, content in CONTENTS.items():
        lab.put(name, content)
    lab.optimize()
    assert upkeep.scrub(lab.root).copies_written
    return lab


def place(lab: Lab, chunk: int) -> tuple[int, int]:
    """Where a chunk's record lies, and how many bytes it takes."""
    said = entry(lab, Kind.CHUNKS, chunk)
    return said.offset, fmt.record_size(said.stored_length)


def by_size(lab: Lab) -> list[int]:
    """All chunks, the shortest first."""
    chunks = {chunk for name in CONTENTS for chunk, _, _ in chunks_of(lab, name)}
    return sorted(chunks, key=lambda chunk: place(lab, chunk)[1])


def write_astray(lab: Lab, chunk: int, over: int, length: int | None = None) -> None:
    """Write the first bytes of a record, or all of it, over those of another one as well."""
    source, size = place(lab, chunk)
    with open(lab.container(Kind.CHUNKS), "r+b") as file:
        data = os.pread(file.fileno(), length or size, source)
        os.pwrite(file.fileno(), data, place(lab, over)[0])


def expect_settled(lab: Lab) -> None:
    report = upkeep.scrub(lab.root)
    assert report.findings == [] and not any(report.repaired.values())
    lab.verify_clean()
    assert {name: lab.read(name) for name in CONTENTS} == CONTENTS


def test_a_record_that_lies_over_another_one_is_settled_by_one_scrub(lab: Lab) -> None:
    shortest, longest = by_size(lab)[0], by_size(lab)[-1]
    before = entry(lab, Kind.CHUNKS, shortest)
    write_astray(lab, shortest, over=longest)
    report = upkeep.scrub(lab.root)
    assert report.findings and report.outcome == "repaired"
    assert entry(lab, Kind.CHUNKS, shortest) == before
    assert entry(lab, Kind.CHUNKS, longest).state == tbl.State.MERGED
    expect_settled(lab)


def test_half_a_record_that_lies_over_another_one_costs_no_third(lab: Lab) -> None:
    """Its header says that it is longer than what went astray: the records behind it are there."""
    shortest, longest = by_size(lab)[0], by_size(lab)[-1]
    write_astray(lab, longest, over=shortest, length=512)
    report = upkeep.scrub(lab.root)
    assert sum(report.repaired.values()) == 1
    assert entry(lab, Kind.CHUNKS, shortest).state == tbl.State.MERGED
    assert entry(lab, Kind.CHUNKS, longest).state == tbl.State.LIVE
    expect_settled(lab)


def test_records_that_changed_places_are_found_by_their_table(lab: Lab) -> None:
    one, other = (chunks_of(lab, name)[0][0] for name in ("small0", "small1"))
    first, second = place(lab, one), place(lab, other)
    assert first[1] == second[1]
    with open(lab.container(Kind.CHUNKS), "r+b") as file:
        data = [os.pread(file.fileno(), size, offset) for offset, size in (first, second)]
        os.pwrite(file.fileno(), data[1], first[0])
        os.pwrite(file.fileno(), data[0], second[0])
    report = upkeep.scrub(lab.root)
    assert report.by_invariant == {"table-agrees": 2} and not any(report.repaired.values())
    assert (place(lab, one), place(lab, other)) == (second, first)
    expect_settled(lab)


def test_a_record_that_was_hit_is_taken_from_where_it_lies_as_well(lab: Lab) -> None:
    shortest, longest = by_size(lab)[0], by_size(lab)[-1]
    write_astray(lab, shortest, over=longest)
    upkeep.damage_record(lab, Kind.CHUNKS, shortest)
    upkeep.scrub(lab.root)
    moved = entry(lab, Kind.CHUNKS, shortest)
    assert (moved.state, moved.offset) == (tbl.State.LIVE, place(lab, longest)[0])
    expect_settled(lab)


def test_a_table_that_is_made_again_prefers_the_record_that_is_intact(lab: Lab) -> None:
    first, last = sorted(by_size(lab), key=ordinal_of)[0 :: len(by_size(lab)) - 1]
    write_astray(lab, first, over=last, length=512)
    before = entry(lab, Kind.CHUNKS, first)
    lab.table(Kind.CHUNKS).unlink()
    upkeep.scrub(lab.root)
    assert entry(lab, Kind.CHUNKS, first) == before
    expect_settled(lab)
