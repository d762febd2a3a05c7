"""The native check of records says what the formats in Python say, record by record."""

import random
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dedupd_core import native
from dedupd_core.format import container as fmt
from dedupd_core.format import table as tbl
from dedupd_core.store.container.recovery import entry_of
from dedupd_core.store.container.scan import ScannedRecord, scan
from tests.support.lab import noise, prose
from tests.support.stores import SECRET, Records

SEED = SECRET.seed(fmt.Kind.CHUNKS, 1, 1)
START = fmt.FILE_HEADER_BYTES


def check(data: bytes, offset: int = START, threads: int = 2) -> native.store.CheckedRecords:
    return native.store.check_records(
        data, seed=SEED, offset=offset, algorithm="blake3", threads=threads
    )


def container(directory: Path) -> bytes:
    """A container's records, raw and compressed ones."""
    records = Records(directory)
    payloads = [noise(900, 1), prose(5000), b"x", prose(70_000, 2), noise(3001, 3)]
    records.append(*payloads)
    records.writer.sync()
    records.writer.close()
    return records.data().read_bytes()[START:]


def test_it_finds_the_records_that_a_scan_finds(tmp_path: Path) -> None:
    data = container(tmp_path / "store")
    with open(tmp_path / "store/00000001.dat", "rb") as file:
        items = list(scan(file.fileno(), SEED, START, START + len(data)))
    found = [item for item in items if isinstance(item, ScannedRecord)]
    checked = check(data)
    assert (checked.consumed, checked.is_lost) == (len(data), False)
    assert checked.statuses == bytes(len(found))
    assert checked.kinds == bytes(item.record.kind for item in found)
    assert list(memoryview(checked.ordinals).cast("I")) == list(range(len(found)))
    assert checked.raw_bytes == sum(item.record.raw_length for item in found)
    assert checked.entries == b"".join(tbl.encode_entry(entry_of(item), SEED) for item in found)


def test_any_flipped_bit_shows(tmp_path: Path) -> None:
    data = container(tmp_path / "store")
    whole = check(data)
    padding = padding_of(data)

    @given(st.integers(0, len(data) * 8 - 1))
    def flip(bit: int) -> None:
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        checked = check(bytes(damaged))
        if bit // 8 in padding:
            assert checked.statuses == whole.statuses
        else:
            assert checked.is_lost or any(checked.statuses)

    flip()


def padding_of(data: bytes) -> set[int]:
    """The bytes between the end of a payload and the next record."""
    found: set[int] = set()
    at = 0
    while at < len(data):
        record = fmt.unpack_record(data, at, SEED)
        assert record is not None
        end = at + fmt.RECORD_HEADER_BYTES + record.stored_length
        at += fmt.record_size(record.stored_length)
        found |= set(range(end, at))
    return found


def test_data_may_end_anywhere(tmp_path: Path) -> None:
    data = container(tmp_path / "store")
    whole = check(data)
    for end in random.Random(1).sample(range(len(data)), 200):
        checked = check(data[:end])
        assert not checked.is_lost
        assert checked.consumed <= end
        assert whole.entries.startswith(checked.entries)
        rest = check(data[checked.consumed :], START + checked.consumed)
        assert checked.entries + rest.entries == whole.entries


def test_other_bytes_with_right_checksums_show_by_their_fingerprint(
    tmp_path: Path,
) -> None:
    data = bytearray(container(tmp_path / "store"))
    record = fmt.unpack_record(bytes(data), 0, SEED)
    assert record is not None
    payload = noise(record.stored_length, 9)
    data[fmt.RECORD_HEADER_BYTES : fmt.RECORD_HEADER_BYTES + len(payload)] = payload
    forged = replace(record, checksum=native.hashing.xxh3_64(payload))
    fmt.pack_record_into(memoryview(data), 0, forged, SEED)
    assert check(bytes(data)).statuses[:2] == bytes([2, 0])


def test_the_number_of_threads_changes_nothing(tmp_path: Path) -> None:
    data = container(tmp_path / "store") * 9
    assert check(data, threads=1).entries == check(data, threads=8).entries
