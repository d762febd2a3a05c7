"""Chunks of stubs: native code gives the right ones, and says of all others why it does not."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dedupd_core.format import container as fmt
from dedupd_core.format import table as tbl
from dedupd_core.format.container import Kind
from dedupd_core.format.ids import make_id
from dedupd_core.format.recipe import fingerprint_check
from dedupd_core.store.reader import RecordReader
from tests.support.lab import flip_bit, noise, prose
from tests.support.stores import SECRET, VOLUME, Records
from tests.support.stub_chunks import StubOfChunks, read_chunks

PAYLOADS = [noise(3000, 1), prose(20_000), b"x", bytes(5000), noise(70_000, 2), prose(100_000, 3)]
SEED = SECRET.seed(fmt.Kind.CHUNKS, 1, 1)


@pytest.fixture
def store(tmp_path: Path) -> Records:
    store = Records(tmp_path / "s")
    store.append(*PAYLOADS)
    store.writer.sync()
    return store


@pytest.fixture
def reader(store: Records) -> Iterator[RecordReader]:
    reader = store.reader()
    yield reader
    reader.close()


def wanted(reader: RecordReader, ids: list[int]) -> list[tuple[int, int, int]]:
    found = [(one, reader.read(one)) for one in ids]
    return [(one, len(raw), fingerprint_check(record.fingerprint)) for one, (record, raw) in found]


def all_of(reader: RecordReader) -> list[tuple[int, int, int]]:
    return wanted(reader, [make_id(1, ordinal) for ordinal in range(len(PAYLOADS))])


@given(st.lists(st.integers(0, len(PAYLOADS) - 1), max_size=12), st.integers(1, 3))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_chunks_come_in_the_order_in_which_they_were_wanted(
    reader: RecordReader, ordinals: list[int], threads: int
) -> None:
    rows = wanted(reader, [make_id(1, ordinal) for ordinal in ordinals])
    stub = StubOfChunks(reader, rows, threads=threads)
    assert stub.chunks() == [PAYLOADS[ordinal] for ordinal in ordinals]
    whole = b"".join(PAYLOADS[ordinal] for ordinal in ordinals)
    assert stub.read(0, len(whole)) == whole


def test_chunks_of_several_containers_come_in_order(tmp_path: Path) -> None:
    store = Records(tmp_path / "s", container_bytes_max=fmt.FILE_HEADER_BYTES + 90_000)
    ids = [one for payload in PAYLOADS for one in store.append(payload)]
    store.writer.sync()
    reader = store.reader()
    assert len({one >> 32 for one in ids}) > 1
    assert read_chunks(reader, wanted(reader, ids)) == PAYLOADS
    reader.close()


def test_no_chunk_is_answered_that_is_not_the_one_that_is_meant(reader: RecordReader) -> None:
    one, length, check = all_of(reader)[1]
    rows = [(one, length + 1, check), (one, length - 1, check), (one, length, check ^ 1)]
    assert StubOfChunks(reader, rows).reasons() == ["not meant"] * 3
    beyond = make_id(1, len(PAYLOADS)), length, check
    elsewhere = make_id(7, 0), length, check
    assert StubOfChunks(reader, [beyond, elsewhere]).reasons() == ["damaged", "not open"]


def test_damage_anywhere_is_never_answered(tmp_path: Path) -> None:
    store = Records(tmp_path / "s")
    payload = prose(300)
    store.append(payload)
    store.writer.sync()
    reader = store.reader()
    rows = wanted(reader, [make_id(1, 0)])
    entry = tbl.decode_entry(store.table().read_bytes()[tbl.HEADER_BYTES :], SEED)
    assert entry is not None
    in_record = range(entry.offset, entry.offset + fmt.RECORD_HEADER_BYTES + entry.stored_length)
    in_entry = range(tbl.HEADER_BYTES, tbl.HEADER_BYTES + tbl.ENTRY_BYTES)
    for path, offsets in ((store.data(), in_record), (store.table(), in_entry)):
        for offset in offsets:
            flip_bit(path, offset, offset % 8)
            assert read_chunks(reader, rows) == [None], f"{path.name} {offset}"
            flip_bit(path, offset, offset % 8)
    assert read_chunks(reader, rows) == [payload]
    reader.close()


@pytest.mark.parametrize("state", [state for state in tbl.State if state != tbl.State.LIVE])
def test_only_live_chunks_are_answered(
    store: Records, reader: RecordReader, state: tbl.State
) -> None:
    rows = all_of(reader)
    with open(store.table(), "r+b") as file:
        offset = tbl.HEADER_BYTES + 2 * tbl.ENTRY_BYTES
        entry = tbl.decode_entry(os.pread(file.fileno(), tbl.ENTRY_BYTES, offset), SEED)
        assert entry is not None
        os.pwrite(file.fileno(), tbl.encode_entry(entry._replace(state=state), SEED), offset)
    # The others are read, too; a merged one leads nowhere here.
    assert read_chunks(reader, rows) == [*PAYLOADS[:2], None, *PAYLOADS[3:]]
    expected = {tbl.State.QUARANTINED: "quarantined", tbl.State.MERGED: "not open"}
    assert StubOfChunks(reader, rows).reasons()[2] == expected.get(state, "not live")


def test_without_waiting_only_what_is_in_memory_is_answered(
    store: Records, reader: RecordReader
) -> None:
    rows = all_of(reader)
    deadline = time.monotonic() + 120
    # The kernel drops pages where it can, which on a busy machine is not always at once.
    while None not in read_chunks(reader, rows, waits=False):
        assert time.monotonic() < deadline
        with open(store.data(), "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    assert read_chunks(reader, rows) == PAYLOADS
    assert read_chunks(reader, rows, waits=False) == PAYLOADS


def test_without_waiting_no_container_is_opened(store: Records, reader: RecordReader) -> None:
    rows = all_of(reader)
    other = store.reader()
    # A thread of its own opens it, for the next read.
    assert StubOfChunks(other, rows[:1]).reasons(waits=False) == ["not in memory"]
    other.close()


def test_a_container_without_a_table_is_left_to_the_scan(store: Records) -> None:
    first = store.reader()
    rows = all_of(first)
    first.close()
    store.table().unlink()
    reader = RecordReader(str(store.data().parent), Kind.CHUNKS, VOLUME)
    assert read_chunks(reader, rows) == [None] * len(PAYLOADS)
    assert [reader.read(one)[1] for one, _, _ in rows] == PAYLOADS
    reader.close()
