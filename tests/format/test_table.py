"""Redirection tables: what is encoded comes back, and no flipped bit goes unseen."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupd_core.errors import DamagedTable
from dedupd_core.format import container as fmt
from dedupd_core.format import table as tbl
from tests.support.formats import HASH, U32, U64, flipped

headers = st.builds(
    tbl.TableHeader,
    kind=st.sampled_from(fmt.Kind),
    container=U32,
    generation=U32,
    partition=U32,
    volume_check=U64,
    seed=U64,
    synced_bytes=st.integers(0, (1 << 48) - 1),
    synced_count=U32,
    reconciled=U32,
    map_lines=st.integers(0, (1 << 16) - 1),
)
entries = st.builds(
    tbl.TableEntry,
    fingerprint=HASH,
    offset=U64,
    target=U64,
    stored_length=U32,
    raw_length=U32,
    hint=U32,
    state=st.sampled_from(tbl.State),
    codec=st.sampled_from(fmt.Codec),
)


@given(headers)
def test_a_table_header_comes_back_as_it_was(header: tbl.TableHeader) -> None:
    data = tbl.encode_header(header)
    assert len(data) == tbl.HEADER_BYTES
    assert tbl.decode_header(data, "here") == header


@given(headers)
def test_every_flipped_bit_of_a_table_header_is_noticed(header: tbl.TableHeader) -> None:
    data = tbl.encode_header(header)
    for bit in range(len(data) * 8):
        with pytest.raises(DamagedTable, match="here"):
            tbl.decode_header(flipped(data, bit), "here")


@given(headers, st.integers(0, tbl.HEADER_BYTES - 1))
def test_a_table_header_cut_short_is_noticed(header: tbl.TableHeader, length: int) -> None:
    with pytest.raises(DamagedTable):
        tbl.decode_header(tbl.encode_header(header)[:length], "here")


def test_a_table_of_a_newer_format_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tbl, "FORMAT", 4)
    newer = tbl.encode_header(tbl.TableHeader(fmt.Kind.CHUNKS, 1, 1, 0, 0, 1, 0, 0))
    monkeypatch.setattr(tbl, "FORMAT", 2)
    with pytest.raises(DamagedTable, match="unknown format 4"):
        tbl.decode_header(newer, "here")


@given(entries, U64)
def test_an_entry_comes_back_as_it_was(entry: tbl.TableEntry, seed: int) -> None:
    data = tbl.encode_entry(entry, seed)
    assert len(data) == tbl.ENTRY_BYTES
    assert tbl.decode_entry(data, seed) == entry


@given(entries)
def test_every_flipped_bit_of_an_entry_is_noticed(entry: tbl.TableEntry) -> None:
    """Its check has only 16 bits, so one in 65,536 may pass: the record itself is the judge."""
    data = tbl.encode_entry(entry, 1)
    unseen = [
        bit for bit in range(len(data) * 8) if tbl.decode_entry(flipped(data, bit), 1) is not None
    ]
    assert len(unseen) <= 1


def test_a_hole_in_a_table_is_no_entry() -> None:
    assert tbl.decode_entry(bytes(tbl.ENTRY_BYTES), 1) is None


@given(entries, st.integers(0, tbl.ENTRY_BYTES - 1))
def test_an_entry_cut_short_is_none(entry: tbl.TableEntry, length: int) -> None:
    assert tbl.decode_entry(tbl.encode_entry(entry, 1)[:length], 1) is None


def test_an_entry_in_no_known_state_is_none() -> None:
    data = tbl.encode_entry(tbl.TableEntry(bytes(32), 128, 0, 1, 1, 0, 99, 0), 1)
    assert tbl.decode_entry(data, 1) is None


def test_many_entries_decode_as_one_by_one() -> None:
    rng = random.Random(1)
    entries = [
        tbl.TableEntry(rng.randbytes(32), at, at + 1, at + 2, at + 3, at + 4, 1 + at % 5, at % 2)
        for at in range(50)
    ]
    data = bytearray(b"".join(tbl.encode_entry(entry, 7) for entry in entries))
    for at in rng.sample(range(len(data)), 10):
        data[at] ^= 1
    data += bytes(tbl.ENTRY_BYTES) + b"a part of one"
    expected = [
        tbl.decode_entry(bytes(data[at : at + tbl.ENTRY_BYTES]), 7)
        for at in range(0, 51 * tbl.ENTRY_BYTES, tbl.ENTRY_BYTES)
    ]
    assert tbl.decode_entries(bytes(data), 7) == expected
    assert (None in expected and entries[0] in expected) or entries[1] in expected
