"""The native check of a container reports damaged records and wrong entries, and nothing else."""

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
from jobs.check.references import references
from jobs.frame.run import JobRun
from tests.support.lab import as_user, fill, flip_bit, lab_in, noise, prose
from tests.support.stores import SECRET, Records

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


def checking(store: Records, fd: int, *, is_forgeable: bool = False) -> native.store.ContainerCheck:
    table = packed(store)
    return native.store.ContainerCheck(
        fd,
        table.data,
        seed=table.seed,
        start=START,
        end=os.fstat(fd).st_size,
        is_forgeable=is_forgeable,
        algorithm="blake3",
        threads=2,
    )


def checked(
    store: Records, bytes_max: int = ALL, *, is_forgeable: bool = False
) -> tuple[native.store.Reached, list[tuple[str, int]]]:
    """The result of a check of the whole container, and the kind and ordinal of each difference."""
    with opened(os.open(store.data(), os.O_RDONLY)) as fd:
        check, found = checking(store, fd, is_forgeable=is_forgeable), []
        while check.reached.offset < os.fstat(fd).st_size:
            found += check.step(bytes_max)
        found += check.finish()
    return check.reached, [(one.what, one.ordinal) for one in found]


def differences(store: Records) -> list[tuple[str, int]]:
    return checked(store)[1]


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
def test_a_container_is_checked_without_threads_where_there_are_no_more(store: Records) -> None:
    def check(one: native.store.ContainerCheck) -> None:
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        assert one.step(ALL) == []
        assert one.reached.offset > START  # as far as there was time

    with opened(os.open(store.data(), os.O_RDONLY)) as fd:
        one = checking(store, fd)
        as_user(lambda: check(one))


def test_a_sound_container_has_no_difference(store: Records) -> None:
    check, found = checked(store)
    assert found == []
    assert (check.ordinal, check.offset) == (COUNT, store.data().stat().st_size)
    assert check.records == COUNT
    assert check.raw_bytes == sum(map(len, store.contents.values()))
    assert not check.is_disordered


def test_it_is_checked_in_any_portions(store: Records) -> None:
    check, found = checked(store, 1 << 20)
    assert (found, check.ordinal, check.records) == ([], COUNT, COUNT)


def test_a_flipped_bit_of_a_record_is_reported(store: Records) -> None:
    entries = store.recover_one().entries

    @given(st.integers(0, COUNT - 1), st.data())
    def flip(ordinal: int, data: st.DataObject) -> None:
        entry = entries[ordinal]
        size = fmt.RECORD_HEADER_BYTES + entry.stored_length
        at = entry.offset + data.draw(st.integers(0, size - 1))
        flip_bit(store.data(), at)
        try:
            assert {number for _, number in differences(store)} == {ordinal}
        finally:
            flip_bit(store.data(), at)

    flip()


def test_a_flipped_bit_of_an_entry_is_reported(store: Records) -> None:
    @given(st.integers(0, COUNT * tbl.ENTRY_BYTES - 1), st.integers(0, 7))
    def flip(at: int, bit: int) -> None:
        flip_bit(store.table(), tbl.HEADER_BYTES + at, bit)
        try:
            ordinal = at // tbl.ENTRY_BYTES
            # The check of an entry has 16 bits: rarely, a damaged one passes for another state.
            expected = [] if packed(store)[ordinal] is not None else [("entry", ordinal)]
            assert differences(store) == expected or not expected
        finally:
            flip_bit(store.table(), tbl.HEADER_BYTES + at, bit)

    flip()


def test_what_was_collected_merged_and_compacted_has_no_difference(store: Records) -> None:
    merged = {at: (State.MERGED, make_id(1, 0)) for at in (7, 30)}
    dead = dict.fromkeys((*range(10, 25), 59), (State.ORPHANED, 3))
    state = change(store, {**merged, **dead})
    assert differences(store) == []
    with store.opened() as directory:
        compact(directory, state)
    check, found = checked(store)
    assert (found, check.ordinal) == ([], COUNT)
    assert check.records == COUNT - 14


def test_bytes_that_no_reader_gets_may_be_damaged(store: Records) -> None:
    state = change(store, {5: (State.MERGED, make_id(1, 0)), 9: (State.TOMBSTONE, 0)})
    for ordinal in (5, 9):
        flip_bit(store.data(), state.entries[ordinal].offset + fmt.RECORD_HEADER_BYTES)
    assert differences(store) == []


def test_an_intact_record_in_quarantine_is_released(store: Records) -> None:
    state = change(store, {40: (State.QUARANTINED, 0), 41: (State.QUARANTINED, 0)})
    flip_bit(store.data(), state.entries[41].offset + fmt.RECORD_HEADER_BYTES)
    check, found = checked(store)
    assert (found, check.released) == ([], [40])


@pytest.mark.parametrize("cut", [1, 1000, 200_000])
def test_records_of_a_lost_end_are_missing(store: Records, cut: int) -> None:
    size = store.data().stat().st_size - cut
    ends = [entry.offset + fmt.record_size(entry.stored_length) for entry in packed(store) if entry]
    os.truncate(store.data(), size)
    lost = [("missing", at) for at, end in enumerate(ends) if end > size]
    assert [one for one in differences(store) if one[0] != "gap"] == lost


def test_damaged_records_are_reported_and_nothing_else(store: Records) -> None:
    entries = store.recover_one().entries
    hurt = [3, 17, 18, 44]
    for ordinal in hurt:
        flip_bit(store.data(), entries[ordinal].offset + fmt.RECORD_HEADER_BYTES + 50)
    check, found = checked(store, 1 << 20)
    assert (found, check.records) == ([("payload", ordinal) for ordinal in hurt], COUNT)


def test_a_forged_record_after_a_gap_counts_only_if_nobody_knows_the_seed(tmp_path: Path) -> None:
    """A user's chunk contains a record of another ordinal, and both records lose their headers."""
    seed = SECRET.seed(fmt.Kind.CHUNKS, 1, 1)
    payload = noise(400, 9)
    forged = fmt.Record(
        ordinal=3,
        kind=fmt.RecordKind.DATA,
        codec=fmt.Codec.RAW,
        raw_length=len(payload),
        stored_length=len(payload),
        fingerprint=native.hashing.fingerprint(payload, "blake3"),
        checksum=native.hashing.xxh3_64(payload),
    )
    chunk = bytearray(fmt.record_size(len(payload)))
    fmt.pack_record_into(memoryview(chunk), 0, forged, seed)
    chunk[fmt.RECORD_HEADER_BYTES :] = payload
    store = Records(tmp_path / "store")
    chunks = noise(900, 1), noise(800) + chunk + noise(800, 2), noise(700, 3), noise(600, 4)
    store.append(*chunks, noise(500, 5), level=0)
    store.writer.sync()
    store.writer.close()
    for ordinal in (1, 3):
        entry = packed(store)[ordinal]
        assert entry is not None
        flip_bit(store.data(), entry.offset + 9)
    lost = {("missing", 1), ("missing", 3)}
    assert set(checked(store, is_forgeable=True)[1]) >= lost
    assert ("entry", 3) not in checked(store, is_forgeable=True)[1]
    assert ("entry", 3) in checked(store)[1]


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
