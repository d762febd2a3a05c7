"""What the native side passes in large pieces is what a close look finds nothing wrong with."""

import os
import resource
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupd_core import native
from dedupd_core.format import container as fmt
from dedupd_core.format import table as tbl
from dedupd_core.format.ids import make_id
from dedupd_core.format.table import State
from dedupd_core.format.table_columns import UncheckedEntries
from dedupd_core.store.container.compaction import compact
from dedupd_core.store.container.record_states import set_entries
from dedupd_core.store.container.recovery import recover
from dedupd_core.store.container.table_file import Recovered
from dedupd_core.system.files import opened
from jobs.check.record_census import RecordCensus
from jobs.check.record_check import RecordCheck, check_all
from jobs.check.record_windows import WindowReader
from jobs.check.references import references
from jobs.frame.run import JobRun
from tests.support.lab import as_user, fill, flip_bit, lab_in, noise, prose
from tests.support.stores import Records

START = fmt.FILE_HEADER_BYTES
ALL = 1 << 40
COUNT = 60


@pytest.fixture
def store(tmp_path: Path) -> Records:
    """A container of a few MiB, of small records and large ones, raw and compressed."""
    store = Records(tmp_path / "store")
    for seed in range(COUNT // 3):
        store.append(noise(90_000 + seed, seed), prose(60_000, seed), noise(100 + seed, seed))
    store.writer.sync()
    store.writer.close()
    return store


def seed_of(header: fmt.FileHeader) -> int:
    return fmt.seed_of(header)


def packed(store: Records) -> UncheckedEntries:
    """The table as it lies there."""
    with store.opened() as directory:
        return directory.entries(1)


def passed(
    store: Records, bytes_max: int = ALL, ordinal: int = 0, offset: int = START
) -> native.store.PassedRecords:
    reader = WindowReader("blake3", 2, lambda _: None)
    try:
        with opened(os.open(store.data(), os.O_RDONLY)) as fd:
            end = os.fstat(fd).st_size
            found = reader.pass_on(fd, packed(store), ordinal, offset, end, bytes_max)
            assert found is not None
            return found
    finally:
        reader.close()


def change(store: Records, changes: dict[int, tuple[State, int]]) -> Recovered:
    """Give entries, by ordinal, other states and targets."""
    state = store.recover_one()
    entries = {
        at: state.entries[at]._replace(state=new, target=target)
        for at, (new, target) in changes.items()
    }
    with store.opened() as directory:
        set_entries(directory, state.header, entries)
    return store.recover_one()


@pytest.mark.root
def test_a_container_is_passed_without_threads_where_there_are_no_more(store: Records) -> None:
    entries = store.table().read_bytes()[tbl.HEADER_BYTES :]
    seed = seed_of(store.recovered_header())

    def check(fd: int) -> None:
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        passed = native.store.pass_records(
            fd,
            entries,
            seed=seed,
            ordinal=0,
            offset=START,
            end=os.fstat(fd).st_size,
            bytes_max=ALL,
            algorithm="blake3",
            threads=2,
        )
        assert passed.ordinal == passed.records > 0  # as far as there was time

    with opened(os.open(store.data(), os.O_RDONLY)) as fd:
        as_user(lambda: check(fd))


def test_a_sound_container_is_passed_to_its_end(store: Records) -> None:
    found = passed(store)
    assert (found.ordinal, found.offset) == (COUNT, store.data().stat().st_size)
    assert found.records == COUNT
    assert found.raw_bytes == sum(map(len, store.contents.values()))


def test_it_is_passed_in_any_portions(store: Records) -> None:
    ordinal, offset, records = 0, START, 0
    while ordinal < COUNT:
        found = passed(store, 1 << 20, ordinal, offset)
        assert found.offset > offset
        ordinal, offset, records = found.ordinal, found.offset, records + found.records
    assert (offset, records) == (store.data().stat().st_size, COUNT)


def test_no_record_with_a_flipped_bit_is_passed(store: Records) -> None:
    entries = store.recover_one().entries

    @given(st.integers(0, COUNT - 1), st.data())
    def flip(ordinal: int, data: st.DataObject) -> None:
        entry = entries[ordinal]
        size = fmt.RECORD_HEADER_BYTES + entry.stored_length
        at = entry.offset + data.draw(st.integers(0, size - 1))
        flip_bit(store.data(), at)
        try:
            assert passed(store).ordinal <= ordinal
        finally:
            flip_bit(store.data(), at)

    flip()


def test_no_record_whose_entry_has_a_flipped_bit_is_passed(store: Records) -> None:
    @given(st.integers(0, COUNT * tbl.ENTRY_BYTES - 1), st.integers(0, 7))
    def flip(at: int, bit: int) -> None:
        flip_bit(store.table(), tbl.HEADER_BYTES + at, bit)
        try:
            ordinal = at // tbl.ENTRY_BYTES
            # The check of an entry has 16 bits: rarely, a damaged one passes for another state.
            assert passed(store).ordinal <= ordinal or packed(store)[ordinal] is not None
        finally:
            flip_bit(store.table(), tbl.HEADER_BYTES + at, bit)

    flip()


def test_what_was_collected_merged_and_compacted_is_passed(store: Records) -> None:
    merged = {at: (State.MERGED, make_id(1, 0)) for at in (7, 30)}
    dead = dict.fromkeys((*range(10, 25), 59), (State.ORPHANED, 3))
    state = change(store, {**merged, **dead})
    assert passed(store).ordinal == COUNT
    with store.opened() as directory:
        compact(directory, state)
    found = passed(store)
    assert (found.ordinal, found.offset) == (COUNT, store.data().stat().st_size)
    assert found.records == COUNT - 14


def test_bytes_that_no_reader_gets_may_be_damaged(store: Records) -> None:
    state = change(store, {5: (State.MERGED, make_id(1, 0)), 9: (State.TOMBSTONE, 0)})
    for ordinal in (5, 9):
        flip_bit(store.data(), state.entries[ordinal].offset + fmt.RECORD_HEADER_BYTES)
    assert passed(store).ordinal == COUNT


def test_a_quarantined_record_is_looked_at_closely(store: Records) -> None:
    change(store, {40: (State.QUARANTINED, 0)})
    assert passed(store).ordinal <= 40


@pytest.mark.parametrize("cut", [1, 1000, 200_000])
def test_a_container_that_is_cut_is_not_passed_to_its_end(store: Records, cut: int) -> None:
    os.truncate(store.data(), store.data().stat().st_size - cut)
    assert passed(store).ordinal < COUNT


def test_what_is_not_passed_is_found_and_nothing_else(store: Records) -> None:
    """Both ways of looking, one after the other, as the jobs do it."""
    entries = store.recover_one().entries
    hurt = [3, 17, 18, 44]
    for ordinal in hurt:
        flip_bit(store.data(), entries[ordinal].offset + fmt.RECORD_HEADER_BYTES + 50)
    reader = WindowReader("blake3", 2, lambda _: None)
    with opened(os.open(store.data(), os.O_RDONLY)) as fd:
        check = RecordCheck(packed(store))
        end = os.fstat(fd).st_size
        found = [
            problem.ordinal
            for _, _, problems in check_all(reader, fd, check, START, end, 1 << 20)
            for problem in problems
        ]
        found += [problem.ordinal for problem in check.finish()]
    reader.close()
    assert (found, check.records) == (hurt, COUNT)


def test_headers_are_compared_with_the_table(store: Records) -> None:
    seed, entries = seed_of(store.recovered_header()), store.recover_one().entries

    def agree() -> bool:
        with opened(os.open(store.data(), os.O_RDONLY)) as fd:
            return native.store.headers_agree(fd, packed(store).data, seed=seed)

    assert agree()
    flip_bit(store.data(), entries[8].offset + fmt.RECORD_HEADER_BYTES)
    assert agree()  # a payload
    flip_bit(store.data(), entries[8].offset + 30)
    assert not agree()
    flip_bit(store.data(), entries[8].offset + 30)
    flip_bit(store.table(), tbl.HEADER_BYTES + 20 * tbl.ENTRY_BYTES + 33)
    assert not agree()


def test_references_are_those_that_stubs_and_recipes_name(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        fill(lab)
        lab.put("one chunk", noise(40_000, 5))
        lab.put("one chunk again", noise(40_000, 5))
        os.link(lab.data / "one chunk", lab.data / "another name of it")
        lab.optimize()
        with lab.opened() as volume:
            known = {kind: RecordCensus() for kind in (fmt.Kind.CHUNKS, fmt.Kind.RECIPES)}
            for kind, records in known.items():
                with volume.containers(kind) as directory:
                    state = recover(directory, 1)
                records.add_container(1, state.entries, seed_of(state.header))
            found = references(volume, JobRun("test"), *known.values())
            assert not found.trees[0].suspects and not found.findings
            expected: dict[int, int] = {}
            paths = [p for p in sorted(lab.data.iterdir()) if p.name != "another name of it"]
            stubs = [(p, stub) for p in paths if (stub := lab.stub(p.name)) is not None]
            for path, stub in stubs:
                spans = volume.content(stub, path.name).recipe.spans(0, stub.covered)
                for span in spans:
                    expected[span.chunk] = expected.get(span.chunk, 0) + (span.chunk != 0)
        chunks = known[fmt.Kind.CHUNKS]
        assert found.stubs == len(stubs)
        assert found.logical_bytes == sum(path.stat().st_size for path, _ in stubs)
        assert {i: chunks.references(i) for i in expected if i} == {
            i: count for i, count in expected.items() if i
        }
        assert max(expected.values()) > 1
