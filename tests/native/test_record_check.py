"""The native check of a container says of each record what the independent reader says."""

import os
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupd_core import native
from dedupd_core.format import container as fmt
from dedupd_core.format import table as tbl
from dedupd_core.system.files import opened
from dedupd_reader import reader
from tests.support.lab import noise, prose
from tests.support.stores import SECRET, VOLUME, Records

SEED = SECRET.seed(fmt.Kind.CHUNKS, 1, 1)
START = fmt.FILE_HEADER_BYTES


class Checked(NamedTuple):
    """The entries that the records imply, by ordinal, and the differences by kind."""

    entries: dict[int, tbl.TableEntry]
    found: list[tuple[str, int, int]]


def check(path: Path, threads: int = 2) -> Checked:
    """A check of a container without its table."""
    entries: dict[int, tbl.TableEntry] = {}
    found: list[native.store.Difference] = []
    with path.open("rb") as file:
        end = path.stat().st_size
        one = native.store.ContainerCheck(
            file.fileno(),
            b"",
            seed=SEED,
            start=START,
            end=end,
            is_forgeable=False,
            algorithm="blake3",
            threads=threads,
        )
        while one.reached.offset < end:
            found += one.step(1 << 30)
            for first, after, data in one.take_implied():
                entry = tbl.decode_entry(data, SEED)
                assert entry is not None
                entries.update(dict.fromkeys(range(first, after), entry))
        found += one.finish()
    return Checked(entries, [(one.what, one.start, one.end) for one in found])


def scanned(path: Path) -> dict[int, tbl.TableEntry]:
    """The entries that the records imply for the independent reader."""
    container = reader.Container(str(path), fmt.Kind.CHUNKS, VOLUME, list(SECRET.keys))
    return {
        ordinal: tbl.TableEntry(
            *(record.fingerprint, at, record.target, record.stored_length, record.raw_length),
            *(record.hint, tbl.State.LIVE, record.codec),
        )
        for ordinal in container.places
        for at, record in container.records(ordinal)
    }


@pytest.fixture
def container(tmp_path: Path) -> Path:
    """A container with raw and compressed records."""
    records = Records(tmp_path / "store")
    payloads = [noise(900, 1), prose(5000), b"x", prose(70_000, 2), noise(3001, 3)]
    records.append(*payloads)
    records.writer.sync()
    records.writer.close()
    return records.data()


def padding_of(data: bytes) -> set[int]:
    """The bytes between the end of a payload and the next record."""
    found: set[int] = set()
    at = START
    while at < len(data):
        record = fmt.unpack_record(data, at, SEED)
        assert record is not None
        end = at + fmt.RECORD_HEADER_BYTES + record.stored_length
        at += fmt.record_size(record.stored_length)
        found |= set(range(end, at))
    return found


def test_it_finds_the_records_that_a_scan_finds(container: Path) -> None:
    checked = check(container)
    assert checked.found == []
    assert checked.entries == scanned(container)
    assert len(checked.entries) == 5


def test_any_flipped_bit_shows(container: Path) -> None:
    data = container.read_bytes()
    whole, padding = check(container), padding_of(data)

    @given(st.integers(START * 8, len(data) * 8 - 1))
    def flip(bit: int) -> None:
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        container.write_bytes(damaged)
        checked = check(container)
        if bit // 8 in padding:
            assert checked == whole
        else:
            assert checked.found
        assert checked.entries == scanned(container)

    flip()


def test_data_may_end_anywhere(container: Path) -> None:
    data = container.read_bytes()
    whole = check(container)

    @given(st.integers(START, len(data) - 1))
    def cut(end: int) -> None:
        container.write_bytes(data[:end])
        checked = check(container)
        assert checked.entries.items() <= whole.entries.items()
        last = max(
            (one.offset + fmt.record_size(one.stored_length) for one in checked.entries.values()),
            default=START,
        )
        assert checked.found == ([("gap", last, end)] if last < end else [])

    cut()


def test_other_bytes_with_right_checksums_show_by_their_fingerprint(container: Path) -> None:
    data = bytearray(container.read_bytes())
    record = fmt.unpack_record(bytes(data), START, SEED)
    assert record is not None
    payload = noise(record.stored_length, 9)
    start = START + fmt.RECORD_HEADER_BYTES
    data[start : start + len(payload)] = payload
    forged = replace(record, checksum=native.hashing.xxh3_64(payload))
    fmt.pack_record_into(memoryview(data), START, forged, SEED)
    container.write_bytes(data)
    assert check(container).found == [("fingerprint", 0, 0)]


def test_a_record_is_intact_where_its_entry_says(container: Path) -> None:
    (entry, other, *_) = check(container).entries.values()

    def is_intact(ordinal: int, one: tbl.TableEntry) -> bool:
        with opened(os.open(container, os.O_RDONLY)) as fd:
            return native.store.is_intact(
                fd, ordinal, tbl.encode_entry(one, SEED), seed=SEED, algorithm="blake3"
            )

    assert is_intact(0, entry) and is_intact(1, other)
    assert not is_intact(1, entry)
    assert not is_intact(0, entry._replace(fingerprint=other.fingerprint))
    assert not is_intact(0, entry._replace(offset=entry.offset + 8))
    data = bytearray(container.read_bytes())
    data[entry.offset + fmt.RECORD_HEADER_BYTES] ^= 1
    container.write_bytes(data)
    assert not is_intact(0, entry) and is_intact(1, other)


def test_the_number_of_threads_changes_nothing(container: Path) -> None:
    assert check(container, threads=1) == check(container, threads=8)
