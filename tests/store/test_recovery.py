"""Recovery: what was synced stays, what was torn is cut, and a table can always be made anew."""

import os
import shutil
from pathlib import Path

import pytest

from dedupd_core import native
from dedupd_core.errors import DamagedContainer
from dedupd_core.format import container as fmt
from dedupd_core.format import table as tbl
from dedupd_core.format.container import COPIES_OF, Kind
from dedupd_core.format.ids import make_id, ordinal_of
from dedupd_core.index.table_index import TableIndex
from dedupd_core.store.container.table_file import LOST
from tests.support.lab import fill, flip_bit, lab_in, noise, prose, stop_at
from tests.support.stores import SECRET, LazyDisk, Records

SEED = SECRET.seed(fmt.Kind.CHUNKS, 1, 1)


def test_a_tail_torn_at_any_byte_is_cut_back_to_whole_records(tmp_path: Path) -> None:
    store = Records(tmp_path / "s")
    store.append(noise(50))
    store.writer.sync()
    synced = store.data().stat().st_size
    ends = [synced]
    for seed in range(3):
        store.append(noise(40 + seed, seed + 1))
        ends.append(store.data().stat().st_size)
    store.writer.close()
    for length in range(synced, ends[-1] + 1):
        copy = tmp_path / f"at-{length}"
        shutil.copytree(store.directory, copy)
        os.truncate(copy / "00000001.dat", length)
        torn = Records(copy, disk=LazyDisk())
        whole = sum(end <= length for end in ends)
        assert [state.cut_bytes for state in torn.recovered] == [length - ends[whole - 1]]
        assert torn.data().stat().st_size == ends[whole - 1]
        torn.contents = dict(list(store.contents.items())[:whole])
        torn.expect_all()
        (following,) = torn.append(b"next")
        assert ordinal_of(following) == whole
        torn.writer.sync()
        torn.expect_all()
        torn.writer.close()
        shutil.rmtree(copy)


def test_a_tail_whose_pages_never_reached_the_disk_is_cut(tmp_path: Path) -> None:
    """The length may be there and the header too, and the payload zeros."""
    store = Records(tmp_path / "s")
    store.append(noise(5000))
    store.writer.sync()
    end = store.data().stat().st_size
    store.append(noise(5000, 1))
    with open(store.data(), "r+b") as file:
        file.seek(end + 2000)
        file.write(bytes(1000))
    (state,) = store.reopen()
    assert state.end == end
    assert len(state.entries) == 1


def test_what_was_synced_is_never_cut(tmp_path: Path) -> None:
    store = Records(tmp_path / "s")
    ids = store.append(noise(500), noise(500, 1), noise(500, 2))
    store.writer.sync()
    size = store.data().stat().st_size
    flip_bit(store.data(), size - 100)
    flip_bit(store.data(), fmt.FILE_HEADER_BYTES + 5)
    for _ in range(2):
        (state,) = store.reopen()
        assert store.data().stat().st_size == size
        assert state.cut_bytes == 0
    assert store.read(ids[1:2]) == [store.contents[ids[1]]]


def test_bytes_missing_before_the_mark_are_damage_and_left_for_scrub(tmp_path: Path) -> None:
    store = Records(tmp_path / "s")
    store.append(noise(500))
    store.writer.sync()
    size = store.data().stat().st_size
    store.writer.close()
    os.truncate(store.data(), size - 10)
    with pytest.raises(DamagedContainer, match="10 bytes are missing at its end"):
        store.recover_one()
    store = Records(store.directory)
    assert store.recovered == []
    (other,) = store.append(b"goes elsewhere")
    assert other == make_id(2, 0)
    assert store.data().stat().st_size == size - 10


@pytest.mark.parametrize("lost", ["the table", "its header", "its end", "an entry", "all of it"])
def test_a_table_is_made_again_from_its_container(tmp_path: Path, lost: str) -> None:
    store = Records(tmp_path / "s")
    for seed in range(5):
        store.append(noise(300, seed), prose(4000, seed))
    store.writer.sync()
    store.writer.close()
    before = store.table().read_bytes()
    if lost == "the table":
        store.table().unlink()
    elif lost == "its header":
        flip_bit(store.table(), 20)
    elif lost == "its end":
        os.truncate(store.table(), len(before) - 100)
    elif lost == "an entry":
        flip_bit(store.table(), tbl.HEADER_BYTES + 3 * tbl.ENTRY_BYTES + 7)
    else:
        os.truncate(store.table(), 0)
    store.recover_one()
    assert store.table().read_bytes() == before


def test_an_interrupted_recovery_is_finished_by_the_next(tmp_path: Path) -> None:
    for point in ("recovery.cut", "recovery.table-written"):
        store = Records(tmp_path / point)
        store.append(noise(500))
        store.writer.sync()
        end = store.data().stat().st_size
        store.append(noise(500, 1))
        store.writer.close()
        os.truncate(store.data(), end + 200)
        with stop_at(point):
            store.recover_one()
        state = store.recover_one()
        assert (state.end, len(state.entries)) == (end, 1)
        assert store.recover_one() == state


def test_a_record_found_damaged_is_never_taken_for_a_duplicate(tmp_path: Path) -> None:
    """Else a file that is whole would give its bytes up for ones that are gone."""
    store = Records(tmp_path / "s")
    broken, whole = store.append(noise(500), noise(500, 1))
    store.writer.sync()
    flip_bit(store.data(), fmt.FILE_HEADER_BYTES + fmt.RECORD_HEADER_BYTES + 17)
    store.table().unlink()
    states = store.reopen()
    assert [entry.state for entry in states[0].entries] == [tbl.State.QUARANTINED, tbl.State.LIVE]
    fingerprints = b"".join(
        native.hashing.fingerprint(store.contents[one]) for one in (broken, whole)
    )
    with store.opened() as directory:
        index = TableIndex(directory, capacity=2)
        for state in states:
            index.load(state)
        assert list(index.lookup(fingerprints)) == [0, whole]


def test_a_record_that_cannot_be_found_keeps_its_ordinal(tmp_path: Path) -> None:
    store = Records(tmp_path / "s")
    store.append(noise(500), noise(500, 1), noise(500, 2))
    store.writer.sync()
    flip_bit(store.data(), fmt.FILE_HEADER_BYTES + 580 + 5)
    store.table().unlink()
    (state,) = store.reopen()
    assert [entry == LOST for entry in state.entries] == [False, True, False]
    (again,) = store.reopen()
    assert again.entries == state.entries


def test_a_container_whose_last_record_is_lost_grows_no_more(tmp_path: Path) -> None:
    """Its ordinal must not come to mean other bytes."""
    store = Records(tmp_path / "s")
    store.append(noise(500), noise(500, 1))
    store.writer.sync()
    flip_bit(store.data(), fmt.FILE_HEADER_BYTES + 584 + 5)
    store.table().unlink()
    for _ in range(2):
        (state, *_) = store.reopen()
        assert not state.appendable
    (other,) = store.append(b"goes elsewhere")
    assert other == make_id(2, 0)


def test_a_forged_ordinal_costs_no_memory(tmp_path: Path) -> None:
    store = Records(tmp_path / "s")
    store.append(noise(100))
    store.writer.sync()
    forged = bytearray(fmt.record_size(0))
    record = fmt.Record(
        ordinal=0xFFFF_FFF0,
        kind=fmt.RecordKind.DATA,
        codec=fmt.Codec.RAW,
        fingerprint=bytes(32),
        checksum=fmt.EMPTY_CHECKSUM,
    )
    fmt.pack_record_into(memoryview(forged), 0, record, SEED)
    with open(store.data(), "ab") as file:
        file.write(forged)
    store.table().unlink()
    (state,) = store.reopen()
    assert len(state.entries) == 1


@pytest.mark.parametrize("point", ["writer.container-created", "writer.container-ready"])
def test_a_container_that_never_held_anything_leaves_no_trace(tmp_path: Path, point: str) -> None:
    store = Records(tmp_path / "s")
    with stop_at(point):
        store.append(b"never written")
    states = store.reopen()
    assert [len(state.entries) for state in states] in ([], [0])
    store.append(b"written")
    store.writer.sync()
    store.expect_all()
    assert len(list(store.directory.glob("*.dat"))) == 1


def test_the_number_of_a_lost_container_is_not_given_out_again(tmp_path: Path) -> None:
    store = Records(tmp_path / "s", container_bytes_max=600)
    store.append(noise(500))
    store.append(noise(500, 1))
    store.writer.sync()
    store.data(2).unlink()
    store.reopen()
    (one,) = store.append(noise(500, 2))
    assert one == make_id(3, 0)


def test_files_of_other_names_in_the_store_are_left_alone(tmp_path: Path) -> None:
    store = Records(tmp_path / "s")
    store.append(noise(100))
    store.writer.sync()
    strange = ["1.dat", "\u00b2.dat", "00000002.dat.bak", "lost+found", "000000003.dat", "x.dir"]
    strange += ["4294967296.dat", "9999999999.dir"]
    for name in strange:
        (store.directory / name).write_bytes(b"not ours")
    assert len(store.reopen()) == 1
    assert all((store.directory / name).read_bytes() == b"not ours" for name in strange)
    store.expect_all()


def test_a_torn_tail_is_judged_by_the_disk_and_not_by_the_page_cache(tmp_path: Path) -> None:
    store = Records(tmp_path / "s")
    store.append(noise(5000))
    store.writer.sync()
    store.append(noise(100_000, 1))
    dropped: list[tuple[int, int, int]] = []
    real = os.posix_fadvise

    def note(fd: int, offset: int, length: int, advice: int) -> None:
        dropped.append((offset, length, advice))
        real(fd, offset, length, advice)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dedupd_core.store.container.recovery.os.posix_fadvise", note)
        store.reopen()
    assert (0, 0, os.POSIX_FADV_DONTNEED) in dropped


# --- whole volumes ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(COPIES_OF))
def test_a_volume_that_lost_its_tables_reads_and_goes_on(tmp_path: Path, kind: Kind) -> None:
    with lab_in(tmp_path) as lab:
        contents = fill(lab)
        lab.optimize()
        lab.table(kind).unlink()
        assert {name: lab.read(name) for name in contents} == contents
        lab.put("another copy", contents["base"])
        report = lab.optimize()
        assert report.sums.new_chunks == 0
        assert {name: lab.read(name) for name in contents} == contents


def test_a_volume_that_lost_its_catalogue_and_all_tables_goes_on(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        contents = fill(lab)
        lab.optimize()
        shutil.rmtree(lab.base / "catalog")
        for table in (lab.base / "store").rglob("*.dir"):
            table.unlink()
        contents["more"] = lab.put("more", noise(100_000, seed=7)).read_bytes()
        lab.optimize()
        assert {name: lab.read(name) for name in contents} == contents
        lab.unoptimize()
        assert all((lab.data / name).read_bytes() == data for name, data in contents.items())
