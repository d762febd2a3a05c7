"""The chunk store: appended records come back verified, whatever happens to the tables."""

import errno
import os
import threading
from array import array
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupd_core import native
from dedupd_core.errors import DamagedChunk, DamagedContainer, NoSpace
from dedupd_core.format import container as fmt
from dedupd_core.format import table as tbl
from dedupd_core.format.container import Kind
from dedupd_core.format.ids import container_of, make_id
from dedupd_core.store.container.scan import Gap, ScannedRecord, scan
from dedupd_core.store.reader import RecordReader
from dedupd_core.store.writer import NewRecords
from dedupd_core.system.disk import Disk
from tests.support.lab import (
    descriptors,
    descriptors_to_begin_with,
    flip_bit,
    noise,
    prose,
    stop_at,
)
from tests.support.stores import SECRET, VOLUME, FullDisk, Records

SEED = SECRET.seed(fmt.Kind.CHUNKS, 1, 1)


def test_records_come_back_as_they_were(tmp_path: Path) -> None:
    store = Records(tmp_path / "s")
    store.append(noise(1000), prose(50_000), b"x", bytes(3000))
    store.writer.sync()
    store.expect_all()


def test_what_does_not_shrink_is_stored_raw(tmp_path: Path) -> None:
    store = Records(tmp_path / "s")
    raw, packed = store.append(noise(40_000), prose(40_000))
    reader = store.reader()
    assert reader.read(raw)[0].codec == fmt.Codec.RAW
    assert reader.read(packed)[0].codec == fmt.Codec.ZSTD
    assert reader.describe(raw).stored_length == 40_000
    assert reader.describe(packed).stored_length < 20_000
    reader.close()


def sealed(store: Records, kind: fmt.RecordKind, target: int = 0) -> int:
    """A record without payload, as compaction will leave them; returns its id."""
    ordinal = len(store.contents)
    buffer = bytearray(fmt.record_size(0))
    record = fmt.Record(
        ordinal=ordinal,
        kind=kind,
        codec=fmt.Codec.RAW,
        fingerprint=bytes(32),
        target=target,
        checksum=fmt.EMPTY_CHECKSUM,
    )
    fmt.pack_record_into(memoryview(buffer), 0, record, SEED)
    with open(store.data(), "ab") as file:
        file.write(buffer)
    store.contents[make_id(1, ordinal)] = b""
    return make_id(1, ordinal)


def test_a_chunk_that_was_merged_is_read_from_the_one_that_survives(tmp_path: Path) -> None:
    store = Records(tmp_path / "s")
    (kept,) = store.append(noise(500))
    merged = sealed(store, fmt.RecordKind.FORWARD, kept)
    merged_again = sealed(store, fmt.RecordKind.FORWARD, merged)
    reader = store.reader()
    assert reader.read(merged_again)[1] == noise(500)
    assert reader.describe(merged_again) == reader.describe(kept)
    reader.close()


def test_a_circle_of_merges_is_refused(tmp_path: Path) -> None:
    store = Records(tmp_path / "s")
    store.append(noise(500))
    circle = sealed(store, fmt.RecordKind.FORWARD, make_id(1, 1))
    reader = store.reader()
    for get in (reader.read, reader.describe):
        with pytest.raises(DamagedChunk, match="forwarded in a circle"):
            get(circle)
    reader.close()


def test_a_collected_chunk_is_refused(tmp_path: Path) -> None:
    store = Records(tmp_path / "s")
    store.append(noise(500))
    gone = sealed(store, fmt.RecordKind.TOMBSTONE)
    reader = store.reader()
    for get in (reader.read, reader.describe):
        with pytest.raises(DamagedChunk, match="was collected"):
            get(gone)
    reader.close()


def test_ids_are_given_out_before_the_bytes_are_there(tmp_path: Path) -> None:
    store = Records(tmp_path / "s")
    first = store.writer.reserve(2, 100)
    assert store.writer.reserve(1, 100) == first + 2


def test_containers_end_at_their_limit_and_numbers_go_up(tmp_path: Path) -> None:
    store = Records(tmp_path / "s", container_bytes_max=100_000)
    ids = [one for seed in range(8) for one in store.append(noise(30_000, seed))]
    store.writer.sync()
    assert [container_of(one) for one in ids] == [1, 1, 1, 2, 2, 2, 3, 3]
    assert store.data(1).stat().st_size <= 100_000
    store.expect_all()


def test_a_record_larger_than_a_container_gets_one_for_itself(tmp_path: Path) -> None:
    store = Records(tmp_path / "s", container_bytes_max=10_000)
    ids = store.append(noise(5000)) + store.append(noise(50_000, 1)) + store.append(noise(50, 2))
    assert [container_of(one) for one in ids] == [1, 2, 3]
    store.expect_all()


def test_writing_goes_on_where_it_ended(tmp_path: Path) -> None:
    store = Records(tmp_path / "s")
    store.append(noise(100))
    store.writer.sync()
    store.reopen()
    (second,) = store.append(noise(100, 1))
    assert second == make_id(1, 1)
    store.expect_all()


class CountingDisk(Disk):
    """Counts the syncs of files."""

    syncs = 0

    def sync_data(self, fd: int) -> None:
        self.syncs += 1
        super().sync_data(fd)


def test_one_sync_makes_a_batch_durable(tmp_path: Path) -> None:
    disk = CountingDisk()
    store = Records(tmp_path / "s", disk=disk)
    store.append(b"the container is there")
    disk.syncs = 0
    for seed in range(50):
        store.append(noise(500, seed))
    store.writer.sync()
    assert disk.syncs == 1


def test_a_sync_covers_what_was_appended_when_it_began(tmp_path: Path) -> None:
    store = Records(tmp_path / "s")
    store.append(noise(500))
    point = store.writer.begin_sync()
    before = store.data().stat().st_size
    store.append(noise(500, 1))
    store.writer.finish_sync(point)
    header = tbl.decode_header(store.table().read_bytes()[: tbl.HEADER_BYTES], "")
    assert (header.synced_count, header.synced_bytes) == (1, before)


def test_readers_see_records_while_a_writer_appends(tmp_path: Path) -> None:
    store = Records(tmp_path / "s", container_bytes_max=400_000)
    store.append(b"first")
    failures: list[Exception] = []
    done = threading.Event()

    def read_all() -> None:
        reader = store.reader()
        try:
            while not done.is_set():
                for one, content in list(store.contents.items()):
                    assert reader.read(one)[1] == content
        except Exception as failure:
            failures.append(failure)
        finally:
            reader.close()

    threads = [threading.Thread(target=read_all) for _ in range(3)]
    for thread in threads:
        thread.start()
    for seed in range(60):
        store.append(noise(20_000, seed), prose(9_000, seed))
        if seed % 20 == 0:
            store.writer.sync()
    done.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(list(store.directory.glob("*.dat"))) > 3


@pytest.mark.parametrize("room", [0, 1, 90, 5000, 5100])
def test_a_full_disk_leaves_the_container_as_it_was(tmp_path: Path, room: int) -> None:
    disk = FullDisk()
    store = Records(tmp_path / "s", disk=disk)
    store.append(noise(4000))
    before = store.data().read_bytes(), store.table().read_bytes()
    payload = noise(5000, 1)
    first = store.writer.reserve(1, len(payload))
    encoded = native.codec.encode(
        payload,
        array("I", [0]),
        array("I", [len(payload)]),
        level=0,
        saving_min=0.05,
        header_bytes=fmt.RECORD_HEADER_BYTES,
        align_bytes=fmt.ALIGN_BYTES,
    )
    rows = NewRecords(
        native.hashing.fingerprint(payload), array("I", [len(payload)]), array("I", [0])
    )
    disk.room = room
    with pytest.raises(NoSpace):
        store.writer.append(first, rows, encoded)
    assert (store.data().read_bytes(), store.table().read_bytes()) == before
    disk.room = 1 << 40
    store.writer.append(first, rows, encoded)
    store.contents[first] = payload
    store.writer.sync()
    store.expect_all()


# --- damage -----------------------------------------------------------------------------------


def test_a_bit_flipped_anywhere_in_a_container_is_never_returned(tmp_path: Path) -> None:
    store = Records(tmp_path / "s")
    ids = store.append(noise(200), prose(600), noise(77, 1))
    store.writer.sync()
    for bit in range(store.data().stat().st_size * 8):
        flip_bit(store.data(), bit // 8, bit % 8)
        reader = store.reader()
        refused = 0
        for one in ids:
            try:
                assert reader.read(one)[1] == store.contents[one]
            except DamagedContainer:
                refused += 1
        # Only the padding behind a payload means nothing.
        assert refused == len(ids) if bit < fmt.FILE_HEADER_BYTES * 8 else refused <= 1
        reader.close()
        flip_bit(store.data(), bit // 8, bit % 8)


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    store = Records(tmp_path / "s")
    _, second = store.append(noise(200), noise(300, 1))
    flip_bit(store.data(), store.data().stat().st_size - 50)
    reader = store.reader()
    with pytest.raises(DamagedChunk, match=r"chunks/00000001\.dat: record 00000001:1") as caught:
        reader.read(second)
    assert caught.value.chunk_id == second
    reader.close()


def test_any_bit_of_a_table_may_flip_and_everything_is_still_read(tmp_path: Path) -> None:
    store = Records(tmp_path / "s")
    store.append(noise(200), prose(600), noise(77, 1))
    store.writer.sync()
    for bit in range(store.table().stat().st_size * 8):
        flip_bit(store.table(), bit // 8, bit % 8)
        store.expect_all()
        flip_bit(store.table(), bit // 8, bit % 8)


@given(st.data())
def test_no_table_however_wrong_makes_a_reader_return_wrong_bytes(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Entries with valid checks that say anything: only the record itself is believed."""
    store = Records(tmp_path_factory.mktemp("t") / "s")
    ids = store.append(noise(200), prose(600), noise(77, 1))
    store.writer.sync()
    size = store.data().stat().st_size
    offsets = st.sampled_from([0, 128, size - 8, size, 2**40]) | st.integers(0, size)
    entry = data.draw(
        st.builds(
            tbl.TableEntry,
            fingerprint=st.just(bytes(32)),
            offset=offsets,
            target=st.just(0),
            stored_length=st.integers(0, 2 * size),
            raw_length=st.integers(0, 1000),
            hint=st.just(0),
            state=st.sampled_from(tbl.State),
            codec=st.integers(0, 255),
        )
    )
    at = data.draw(st.integers(0, len(ids) - 1))
    with open(store.table(), "r+b") as file:
        file.seek(tbl.HEADER_BYTES + at * tbl.ENTRY_BYTES)
        file.write(tbl.encode_entry(entry, SEED))
    store.expect_all()


def test_a_lost_table_is_no_loss_to_readers(tmp_path: Path) -> None:
    store = Records(tmp_path / "s")
    for seed in range(20):
        store.append(noise(2000, seed), prose(2000, seed))
    store.table().unlink()
    store.expect_all()


def test_a_reader_without_a_table_notices_a_rewritten_end(
    tmp_path: Path,
) -> None:
    store = Records(tmp_path / "s")
    first = store.append(noise(300))
    kept = store.data().stat().st_size
    (second,) = store.append(noise(500, 1))
    store.table().unlink()
    reader = store.reader()
    assert reader.read(second)[1] == noise(500, 1)
    store.writer.close()
    os.truncate(store.data(), kept)
    again = Records(store.directory)
    rewritten = again.append(noise(700, 2), noise(900, 3), noise(80, 4))
    assert rewritten[0] == second
    again.table().unlink()
    for one, content in (*again.contents.items(), (first[0], noise(300))):
        assert reader.read(one)[1] == content
    reader.close()


def test_a_table_of_another_container_is_not_believed(tmp_path: Path) -> None:
    store = Records(tmp_path / "s", container_bytes_max=3000)
    store.append(noise(2000))
    store.append(noise(2000, 1))
    store.table(1).write_bytes(store.table(2).read_bytes())
    store.expect_all()


def test_a_container_of_another_volume_is_refused(tmp_path: Path) -> None:
    store = Records(tmp_path / "s")
    (one,) = store.append(noise(200))
    reader = RecordReader(str(store.directory), Kind.CHUNKS, bytes(16))
    with pytest.raises(DamagedContainer, match="this file is another container"):
        reader.read(one)
    reader.close()


def test_a_container_in_the_place_of_another_is_refused(tmp_path: Path) -> None:
    store = Records(tmp_path / "s", container_bytes_max=3000)
    (one,) = store.append(noise(2000))
    store.append(noise(2000, 1))
    os.replace(store.data(2), store.data(1))
    with pytest.raises(DamagedContainer, match="this file is another container"):
        store.read([one])


def test_a_reader_without_a_descriptor_left_sees_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Records(tmp_path / "s")
    (one,) = store.append(noise(200))
    noted: list[int] = []
    reader = RecordReader(str(store.directory), Kind.CHUNKS, VOLUME, on_damage=noted.append)

    def refuse(*_arguments: object, **_named: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(OSError, match="Too many open files"):
            reader.read(one)
    assert noted == []
    assert reader.read(one)[1] == noise(200)
    reader.close()


def test_a_missing_container_is_named(tmp_path: Path) -> None:
    store = Records(tmp_path / "s")
    (one,) = store.append(noise(200))
    store.data().unlink()
    with pytest.raises(DamagedContainer, match=r"chunks/00000001\.dat: the container is missing"):
        store.read([one])


def test_a_reader_keeps_few_files_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dedupd_core.store.reader.CONTAINERS_OPEN_MAX", 4)
    store = Records(tmp_path / "s", container_bytes_max=300)
    for seed in range(30):
        store.append(noise(200, seed))
    store.writer.sync()
    reader = store.reader()
    before = descriptors_to_begin_with()
    for one, content in store.contents.items():
        assert reader.read(one)[1] == content
    assert descriptors() <= before + 2 * 4
    reader.close()


# --- scanning ---------------------------------------------------------------------------------


def items_of(store: Records) -> list[ScannedRecord | Gap]:
    with open(store.data(), "rb") as file:
        size = store.data().stat().st_size
        return list(scan(file.fileno(), SEED, fmt.FILE_HEADER_BYTES, size))


def test_a_scan_finds_every_record(tmp_path: Path) -> None:
    store = Records(tmp_path / "s")
    for seed in range(30):
        store.append(noise(700 + seed, seed))
    items = items_of(store)
    assert [item.record.ordinal for item in items if isinstance(item, ScannedRecord)] == list(
        range(30)
    )
    assert not any(isinstance(item, Gap) for item in items)


@pytest.mark.parametrize("before", [0, (4 << 20) - 1500, (4 << 20) - 700, (4 << 20) - 160])
def test_a_scan_goes_on_after_damage(tmp_path: Path, before: int) -> None:
    """Although payloads hold the magic number, and if a window of the scan ends anywhere."""
    store = Records(tmp_path / "s")
    magic = fmt.RECORD_MAGIC.to_bytes(4, "little")
    payloads = [noise(500), magic * 100, noise(500, 1), magic * 77, noise(90, 2)]
    store.append(*([noise(before)] if before else []), *payloads, level=0)
    whole = [item for item in items_of(store) if isinstance(item, ScannedRecord)]
    first, count = len(whole) - len(payloads), len(whole)
    for lost in range(first, count):
        begin = whole[lost].offset
        flip_bit(store.data(), begin + 9)
        items = items_of(store)
        end = whole[lost + 1].offset if lost < count - 1 else store.data().stat().st_size
        assert Gap(begin, end) in items
        assert [item for item in items if isinstance(item, ScannedRecord)] == [
            replace(item, is_searched=at > lost) for at, item in enumerate(whole) if at != lost
        ]
        flip_bit(store.data(), begin + 9)


@given(st.binary(max_size=3000))
def test_a_scan_of_anything_ends_and_accounts_for_every_byte(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.mktemp("t") / "file"
    path.write_bytes(content)
    with open(path, "rb") as file:
        items = list(scan(file.fileno(), SEED, 0, len(content)))
    assert items == ([Gap(0, len(content))] if content else [])


def test_stopping_before_a_sync_returns_keeps_what_was_synced_before(tmp_path: Path) -> None:
    store = Records(tmp_path / "s")
    store.append(noise(900))
    store.writer.sync()
    store.append(noise(800, 1))
    with stop_at("writer.synced"):
        store.writer.sync()
    store.reopen()
    store.expect_all()
