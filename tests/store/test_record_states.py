"""States of records: changed in place and durably, and what readers make of each."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from dedupd_core import native
from dedupd_core.errors import DamagedChunk, DamagedTable
from dedupd_core.format import container as fmt
from dedupd_core.format import table as tbl
from dedupd_core.format.ids import make_id
from dedupd_core.format.table import State
from dedupd_core.store.container.record_states import set_entries
from dedupd_core.store.container.scan import ScannedRecord, scan
from dedupd_core.system.files import opened
from tests.support.lab import flip_bit, noise, stop_at
from tests.support.stores import SECRET, VOLUME, Records

SEED = SECRET.seed(fmt.Kind.CHUNKS, 1, 1)


def three(directory: Path) -> tuple[Records, list[int]]:
    """A container with three synced records."""
    store = Records(directory)
    ids = store.append(noise(2000), noise(3000, 1), noise(4000, 2))
    store.writer.sync()
    return store, ids


def change(store: Records, **states: tuple[State, int]) -> None:
    """Set state and target of entries, named by their ordinal with a letter before it."""
    header, entries = store.recovered_header(), store.recover_one().entries
    changes = {
        int(name[1:]): entries[int(name[1:])]._replace(state=state, target=target)
        for name, (state, target) in states.items()
    }
    with store.opened() as directory:
        set_entries(directory, header, changes)


def states(store: Records) -> list[int]:
    return [entry.state for entry in store.recover_one().entries]


def test_states_stay_through_a_restart_and_nothing_else_changes(tmp_path: Path) -> None:
    store, ids = three(tmp_path / "s")
    before = store.recover_one().entries
    change(store, o0=(State.ORPHANED, 7), o2=(State.MERGED, ids[1]))
    store.reopen()
    after = store.recover_one().entries
    assert [(e.state, e.target) for e in after] == [
        (State.ORPHANED, 7),
        (State.LIVE, 0),
        (State.MERGED, ids[1]),
    ]
    assert [e._replace(state=0, target=0) for e in after] == [
        e._replace(state=0, target=0) for e in before
    ]


@pytest.mark.parametrize("point", ["states.written", "states.durable"])
def test_a_death_leaves_old_entries_or_new_ones(tmp_path: Path, point: str) -> None:
    store, _ = three(tmp_path / "s")
    with stop_at(point):
        change(store, o0=(State.ORPHANED, 7), o2=(State.ORPHANED, 7))
    assert states(store) == [State.ORPHANED, State.LIVE, State.ORPHANED]
    store.expect_all()


def test_a_damaged_entry_is_healed_and_the_others_keep_their_states(
    tmp_path: Path,
) -> None:
    store, _ = three(tmp_path / "s")
    change(store, o0=(State.ORPHANED, 7), o2=(State.ORPHANED, 7))
    flip_bit(store.table(), tbl.HEADER_BYTES + 5)
    assert states(store) == [State.LIVE, State.LIVE, State.ORPHANED]


def test_a_table_of_another_generation_is_not_touched(tmp_path: Path) -> None:
    store, _ = three(tmp_path / "s")
    entry = store.recover_one().entries[0]
    header = fmt.FileHeader(fmt.Kind.CHUNKS, 1, 2, 0, VOLUME, 0)
    before = store.table().read_bytes()
    with (
        store.opened() as directory,
        pytest.raises(DamagedTable, match="belongs to another container"),
    ):
        set_entries(directory, header, {0: entry})
    assert store.table().read_bytes() == before


def test_an_orphan_is_still_read(tmp_path: Path) -> None:
    store, _ = three(tmp_path / "s")
    change(store, o1=(State.ORPHANED, 1))
    store.expect_all()


def test_a_merged_record_is_read_from_the_one_that_survives(tmp_path: Path) -> None:
    store, ids = three(tmp_path / "s")
    change(store, o0=(State.MERGED, ids[2]))
    assert store.read([ids[0]]) == [noise(4000, 2)]


def test_a_merged_record_whose_target_is_lost_is_read_itself(tmp_path: Path) -> None:
    store, ids = three(tmp_path / "s")
    change(store, o0=(State.MERGED, make_id(9, 9)))
    assert store.read([ids[0]]) == [noise(2000)]


def test_quarantined_bytes_are_read_only_with_their_fingerprint(
    tmp_path: Path,
) -> None:
    store, ids = three(tmp_path / "s")
    change(store, o0=(State.QUARANTINED, 0), o1=(State.QUARANTINED, 0))
    found = next(item for item in _records(store) if item.record.ordinal == 0)
    _forge_payload(store, found)
    reader = store.reader()
    with pytest.raises(DamagedChunk, match="do not match its fingerprint"):
        reader.read(ids[0])
    assert reader.read(ids[1])[1] == noise(3000, 1)
    reader.close()


def _records(store: Records) -> list[ScannedRecord]:
    with opened(os.open(store.data(), os.O_RDONLY)) as fd:
        size = os.fstat(fd).st_size
        items = scan(fd, SEED, fmt.FILE_HEADER_BYTES, size)
        return [item for item in items if isinstance(item, ScannedRecord)]


def _forge_payload(store: Records, found: ScannedRecord) -> None:
    """Other bytes with a checksum that is right, as a bad memory would have stored them."""
    payload = bytes(found.record.stored_length)
    record = replace(found.record, checksum=native.hashing.xxh3_64(payload))
    header = bytearray(fmt.RECORD_HEADER_BYTES)
    fmt.pack_record_into(memoryview(header), 0, record, SEED)
    with open(store.data(), "r+b") as file:
        file.seek(found.offset)
        file.write(bytes(header) + payload)


def test_a_row_of_tombstones_is_one_record_and_an_entry_each(tmp_path: Path) -> None:
    store, _ = three(tmp_path / "s")
    buffer = bytearray(fmt.RECORD_HEADER_BYTES)
    tombstone = fmt.tombstone(3, 5)
    fmt.pack_record_into(memoryview(buffer), 0, tombstone, SEED)
    with open(store.data(), "ab") as file:
        file.write(buffer)
    store.writer.close()
    again = Records(tmp_path / "s")
    assert [e.state for e in again.recovered[0].entries] == [State.LIVE] * 3 + [State.TOMBSTONE] * 5
    (following,) = again.append(noise(100, 9))
    assert following == make_id(1, 8)
    again.writer.sync()
    shutil.copy(again.table(), tmp_path / "table")
    again.table().unlink()
    for _ in range(2):  # from the container alone, then from a table that is made anew
        reader = again.reader()
        assert reader.read(following)[1] == noise(100, 9)
        with pytest.raises(DamagedChunk, match="was collected"):
            reader.read(make_id(1, 6))
        reader.close()
        again.recover_one()
    entries = again.table().read_bytes()[tbl.HEADER_BYTES :]
    assert entries == (tmp_path / "table").read_bytes()[tbl.HEADER_BYTES :]
