"""Tables without entries of collected records: read, written, grown, damaged."""

from contextlib import closing
from pathlib import Path

import pytest

from dedupd_core.errors import DamagedChunk, DamagedTable
from dedupd_core.format import container as fmt
from dedupd_core.format import table as tbl
from dedupd_core.format.container import Kind
from dedupd_core.format.ids import make_id, ordinal_of
from dedupd_core.format.table import State
from dedupd_core.store.container.compaction import compact
from dedupd_core.store.container.cutting import cut_back
from dedupd_core.store.container.record_states import set_entries
from dedupd_core.store.container.scan import ScannedRecord, scan
from dedupd_core.store.container.table_file import load_table
from dedupd_core.store.container.table_scan import RecordRange, TableScan
from dedupd_core.units import KIB
from tests.support.lab import flip_bit, lab_in, noise
from tests.support.stores import Records

COUNT = 700
GONE = {*range(3), *range(60, 70), 128, *range(250, 300), *range(301, 599, 2)}
"""Rows of collected records that begin and end in many places of the blocks of a map."""


def change(store: Records, entries: dict[int, tbl.TableEntry]) -> None:
    with store.opened() as directory:
        set_entries(directory, store.recovered_header(), entries)


def sparse(directory: Path) -> tuple[Records, list[int]]:
    """A container after a compaction, open for more; its ids."""
    store = Records(directory)
    ids = store.append(*(noise(40 + at % 7, at) for at in range(COUNT)))
    store.reopen()
    before = store.recover_one().entries
    change(store, {at: before[at]._replace(state=State.ORPHANED, target=1) for at in GONE})
    with store.opened() as containers:
        compact(containers, store.recover_one())
    for at in GONE:
        del store.contents[ids[at]]
    store.reopen()
    return store, ids


def test_what_was_collected_takes_neither_a_record_nor_an_entry(tmp_path: Path) -> None:
    store, _ = sparse(tmp_path / "s")
    store.expect_all()
    needed = sum(fmt.record_size(40 + at % 7) for at in range(COUNT) if at not in GONE)
    assert store.data().stat().st_size == fmt.FILE_HEADER_BYTES + needed
    lines = -(-max(GONE) // 256) * tbl.MAP_LINE_BYTES
    entries = (COUNT - len(GONE)) * tbl.ENTRY_BYTES
    assert store.table().stat().st_size == tbl.HEADER_BYTES + lines + entries


def test_it_is_a_tombstone_for_every_reader(tmp_path: Path) -> None:
    store, ids = sparse(tmp_path / "s")
    with store.opened() as directory:
        whole = load_table(directory.fd, directory.header(1))[1]
        assert [at for at, entry in enumerate(whole) if entry == tbl.COLLECTED] == sorted(GONE)
        with closing(directory.open(1)) as container:
            assert [container.entry(at) for at in range(COUNT)] == list(whole)
        tables = TableScan(directory, lambda: None)
        assert [list(state.entries) for state in tables.recover()] == [list(whole)]
        for first, end in ((0, COUNT), (0, 1), (1, 65), (61, 69), (250, 257), (598, COUNT)):
            (block,) = tables.blocks_of(RecordRange(1, first, end))
            assert [block.entry(at) for at in range(end - first)] == list(whole[first:end])
            assert block.end == end
    reader = store.reader()
    for at in GONE:
        for read in (reader.read, reader.describe):
            with pytest.raises(DamagedChunk, match="was collected"):
                read(ids[at])
    reader.close()


def test_a_container_grows_on_and_is_cut_back(tmp_path: Path) -> None:
    store, _ = sparse(tmp_path / "s")
    for seed in range(3):
        (new,) = store.append(noise(300, 5000 + seed))
        assert ordinal_of(new) == COUNT + seed
        store.writer.sync()
        store.reopen()
    store.expect_all()
    end = store.recover_one().entries[COUNT + 1].offset
    store.writer.close()
    with store.opened() as directory:
        cut_back(directory, 1, end, COUNT + 1)
    del store.contents[make_id(1, COUNT + 1)], store.contents[make_id(1, COUNT + 2)]
    table = store.table().read_bytes()
    assert len(store.recover_one().entries) == COUNT + 1
    assert store.table().read_bytes() == table, "cut in the right place"
    store.expect_all()


def test_states_change_in_place_but_what_was_collected_stays_so(tmp_path: Path) -> None:
    store, ids = sparse(tmp_path / "s")
    entries = store.recover_one().entries
    kept = [at for at in range(COUNT) if at not in GONE]
    target = ids[kept[0]]
    merged = {at: entries[at]._replace(state=State.MERGED, target=target) for at in kept[90:200]}
    change(store, {**merged, **dict.fromkeys(GONE, tbl.COLLECTED)})
    expected = [merged.get(at, entry) for at, entry in enumerate(entries)]
    assert list(store.recover_one().entries) == expected
    with pytest.raises(DamagedTable, match="record 65 was collected"):
        change(store, {65: entries[kept[0]]})
    assert list(store.recover_one().entries) == expected


def test_a_damaged_map_costs_a_scan_and_nothing_else(tmp_path: Path) -> None:
    store, _ = sparse(tmp_path / "s")
    entries, table = list(store.recover_one().entries), store.table().read_bytes()
    for at in range(tbl.HEADER_BYTES + 5, tbl.HEADER_BYTES + 3 * tbl.MAP_LINE_BYTES, 16):
        flip_bit(store.table(), at)
        with store.opened() as directory, pytest.raises(DamagedTable, match="map"):
            load_table(directory.fd, directory.header(1))
        store.expect_all()
        store.table().write_bytes(table)
    flip_bit(store.table(), tbl.HEADER_BYTES + 5)
    assert list(store.recover_one().entries) == entries
    assert store.table().stat().st_size == tbl.HEADER_BYTES + COUNT * tbl.ENTRY_BYTES
    store.expect_all()


def test_a_lost_record_takes_what_it_tells_with_it(tmp_path: Path) -> None:
    """Then the table, made anew, says that something may be missing, and no reader is misled."""
    store, ids = sparse(tmp_path / "s")
    offset = store.recover_one().entries[3].offset
    flip_bit(store.data(), offset + 20)
    store.table().unlink()
    states = [entry.state for entry in store.recover_one().entries]
    assert [at for at, one in enumerate(states) if one == State.QUARANTINED] == [0, 1, 2, 3]
    del store.contents[ids[3]]
    store.expect_all()


def test_a_scan_tells_of_the_collected_before_the_record_that_counts_them(tmp_path: Path) -> None:
    store, _ = sparse(tmp_path / "s")
    seed, end = fmt.seed_of(store.recovered_header()), store.data().stat().st_size
    with open(store.data(), "rb") as file:
        found = list(scan(file.fileno(), seed, fmt.FILE_HEADER_BYTES, end))
    records = [one for one in found if isinstance(one, ScannedRecord)]
    assert [at for one in records for at in one.ordinals()] == list(range(COUNT))
    assert {at for one in records if one.is_implied for at in one.ordinals()} == GONE
    assert [one.end for one in records if not one.is_implied][-1] == end
    assert len(records) == len(found)


def test_chunks_are_found_again_in_such_a_table(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        lab.set_policy('min_age = "0s"\nmin_size = 1\ncompaction_min_dead = 0.0\n')
        kept = {f"keep{n}": noise(300 * KIB, n) for n in range(6)}
        for at, (name, content) in enumerate(kept.items()):
            lab.store({f"gone{at}": noise(200 * KIB, 100 + at), name: content})
        for at in range(6):
            (lab.data / f"gone{at}").unlink()
        lab.collect()
        assert lab.compact().rewritten > 0
        assert tbl.decode_header(lab.table(Kind.CHUNKS).read_bytes()[:64], "").map_lines > 0
        before = lab.container(Kind.CHUNKS).stat().st_size
        for name, content in kept.items():
            lab.put(f"again-{name}", content)
        lab.optimize()
        assert lab.container(Kind.CHUNKS).stat().st_size == before
        lab.put("new", noise(300 * KIB, 900))
        lab.optimize()
        for name, content in {**kept, "new": noise(300 * KIB, 900)}.items():
            assert lab.read(name) == content
        lab.verify_clean()
