"""Chunks as frames of a stream: what was read ahead is what is there."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dedupd_core import native
from dedupd_core.format import container as fmt
from dedupd_core.format import stream
from dedupd_core.format.ids import make_id, ordinal_of
from dedupd_core.format.recipe import fingerprint_check
from dedupd_core.format.stream import FINGERPRINT_BYTES, HEADER_BYTES
from dedupd_core.format.table import State
from dedupd_core.store.container.record_states import set_entries
from dedupd_core.store.reader import RecordReader
from dedupd_core.units import KIB, MIB
from tests.support.lab import cached_pages, flip_bit, noise
from tests.support.stores import Records

SEED = 12345
COUNT = 150
PAYLOADS = [noise(60 * KIB + 97 * number, number) for number in range(COUNT)]
"""Nine blocks."""

Row = tuple[int, int, int]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Records:
    store = Records(tmp_path_factory.mktemp("store"))
    store.append(*PAYLOADS)
    store.writer.sync()
    return store


@pytest.fixture(scope="module")
def rows(store: Records) -> list[Row]:
    reader = store.reader()
    records = [reader.describe(make_id(1, number)) for number in range(COUNT)]
    reader.close()
    return [
        (make_id(1, number), len(PAYLOADS[number]), fingerprint_check(record.fingerprint))
        for number, record in enumerate(records)
    ]


@pytest.fixture
def reader(store: Records) -> Iterator[RecordReader]:
    reader = store.reader()
    yield reader
    reader.close()


Framed = tuple[bytes, bytes, native.store.Unreadable | None]


def payloads(framed: Framed, sequence: int) -> list[bytes]:
    """What is in frames, each of which is whole."""
    data, fingerprints, _ = framed
    found = []
    for at in range(len(fingerprints) // FINGERPRINT_BYTES):
        head = stream.decode_head(data[:HEADER_BYTES], "here")
        assert head.sequence == sequence + at
        end = HEADER_BYTES + head.stored_length
        payload = data[HEADER_BYTES:end]
        frame = stream.decode_frame(head, data[:HEADER_BYTES], payload, SEED, "here")
        fingerprint = fingerprints[at * FINGERPRINT_BYTES : (at + 1) * FINGERPRINT_BYTES]
        assert frame.payload.startswith(fingerprint)
        found.append(frame.payload[FINGERPRINT_BYTES:])
        data = data[end:]
    assert not data
    return found


def forget(path: Path) -> None:
    """Have no page of a file in memory."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


PORTIONS = st.lists(
    st.tuples(st.integers(0, COUNT - 1), st.integers(1, 40), st.booleans()), min_size=1, max_size=8
)


@given(PORTIONS, st.integers(0, 12), st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
def test_portions_come_as_they_are_wherever_they_lie(
    store: Records,
    reader: RecordReader,
    rows: list[Row],
    portions: list[tuple[int, int, bool]],
    memory_mib: int,
    is_cold: bool,
) -> None:
    """Forwards, backwards and across, with much memory to read ahead, or none; each portion goes on
    where the one before it ended, or jumps."""
    ahead = native.store.BlocksAhead(memory_mib * MIB)
    at = 0
    for first, count, jumps in portions:
        at = first if jumps else at % COUNT
        numbers = range(at, min(at + count, COUNT))
        at = numbers.stop
        if is_cold:
            forget(store.data())
        framed = reader.frame_chunks([rows[one] for one in numbers], 7, SEED, ahead, 2)
        assert payloads(framed, 7) == [PAYLOADS[one] for one in numbers]


def test_all_of_a_container_in_order_leaves_no_pages_behind(
    store: Records, reader: RecordReader, rows: list[Row]
) -> None:
    if shutil.which("fincore") is None:
        pytest.skip("fincore is not installed")
    ahead = native.store.BlocksAhead(8 * MIB)
    forget(store.data())
    found: list[bytes] = []
    for first in range(0, COUNT, 9):
        framed = reader.frame_chunks(rows[first : first + 9], first, SEED, ahead, 2)
        found += payloads(framed, first)
    assert found == PAYLOADS
    assert cached_pages(store.data()) * 4 * KIB < MIB


def test_damage_ends_the_frames_where_it_is(tmp_path: Path, rows: list[Row]) -> None:
    store = Records(tmp_path / "s")
    store.append(*PAYLOADS)
    store.writer.sync()
    reader = store.reader()
    flip_bit(store.data(), store.data().stat().st_size // 2, 3)
    ahead = native.store.BlocksAhead(16 * MIB)
    found: list[bytes] = []
    while len(found) < COUNT:
        framed = reader.frame_chunks(rows[len(found) :][:30], 0, SEED, ahead, 2)
        found += payloads(framed, 0)
        if framed[2] is not None:
            break
    assert COUNT // 3 < len(found) < COUNT * 2 // 3
    assert found == PAYLOADS[: len(found)]
    assert framed[2] is not None
    assert (framed[2].id, framed[2].why) == (make_id(1, len(found)), "damaged")
    following = rows[len(found) + 1 :]
    framed = reader.frame_chunks(following, 0, SEED, ahead, 2)
    assert payloads(framed, 0) == PAYLOADS[-len(following) :]
    reader.close()


def test_a_container_that_is_shorter_than_its_table_says_has_fewer_frames(
    tmp_path: Path, rows: list[Row]
) -> None:
    store = Records(tmp_path / "s")
    store.append(*PAYLOADS)
    store.writer.sync()
    os.truncate(store.data(), fmt.FILE_HEADER_BYTES + 5 * MIB)
    reader = store.reader()
    ahead = native.store.BlocksAhead(16 * MIB)
    framed = reader.frame_chunks(rows, 0, SEED, ahead, 2)
    assert framed[2] is not None
    count = ordinal_of(framed[2].id)
    assert payloads(framed, 0) == PAYLOADS[:count]
    assert sum(map(len, PAYLOADS[:count])) > 4 * MIB
    reader.close()


def test_a_merged_chunk_has_the_payload_of_the_record_that_it_leads_to(tmp_path: Path) -> None:
    store = Records(tmp_path / "s")
    store.append(PAYLOADS[0], PAYLOADS[0], PAYLOADS[1])
    store.writer.sync()
    store.writer.close()
    state = store.recover_one()
    merged = state.entries[0]._replace(state=State.MERGED, target=make_id(1, 1))
    with store.opened() as directory:
        set_entries(directory, state.header, {0: merged})
    flip_bit(store.data(), merged.offset + fmt.RECORD_HEADER_BYTES)
    keys = [
        (make_id(1, at), entry.raw_length, fingerprint_check(entry.fingerprint))
        for at, entry in enumerate(state.entries)
    ]
    reader = store.reader()
    ahead = native.store.BlocksAhead(0)
    framed = reader.frame_chunks(keys, 0, SEED, ahead, 2)
    assert (payloads(framed, 0), framed[2]) == ([PAYLOADS[0], PAYLOADS[0], PAYLOADS[1]], None)
    other = [(keys[0][0], keys[2][1], keys[2][2])]
    framed = reader.frame_chunks(other, 0, SEED, ahead, 2)
    assert framed[2] is not None
    assert (framed[1], framed[2].why) == (b"", "not meant")
    reader.close()
