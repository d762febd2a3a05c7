"""Container headers and records: what is encoded comes back, and no flipped bit goes unseen."""

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupd_core.errors import DamagedContainer, UnknownFormat
from dedupd_core.format import container as fmt
from tests.support.formats import HASH, U32, U64, UUID, flipped

headers = st.builds(
    fmt.FileHeader,
    kind=st.sampled_from(fmt.Kind),
    container=U32,
    generation=U32,
    partition=U32,
    volume_id=UUID,
    created_ns=U64,
)
records = st.builds(
    fmt.Record,
    ordinal=U32,
    kind=st.sampled_from(fmt.RecordKind),
    codec=st.sampled_from(fmt.Codec),
    raw_length=U32,
    stored_length=U32,
    hint=U32,
    fingerprint=HASH,
    target=U64,
    checksum=U64,
)


def packed(record: fmt.Record, seed: int) -> bytes:
    buffer = bytearray(fmt.RECORD_HEADER_BYTES)
    fmt.pack_record_into(memoryview(buffer), 0, record, seed)
    return bytes(buffer)


@given(headers)
def test_a_container_header_comes_back_as_it_was(header: fmt.FileHeader) -> None:
    data = fmt.encode_file_header(header)
    assert len(data) == fmt.FILE_HEADER_BYTES
    assert fmt.decode_file_header(data, "here") == header


@given(headers)
def test_every_flipped_bit_of_a_container_header_is_noticed(header: fmt.FileHeader) -> None:
    data = fmt.encode_file_header(header)
    for bit in range(len(data) * 8):
        with pytest.raises(DamagedContainer, match="here"):
            fmt.decode_file_header(flipped(data, bit), "here")


@given(headers, st.integers(0, fmt.FILE_HEADER_BYTES - 1))
def test_a_container_header_cut_short_is_noticed(header: fmt.FileHeader, length: int) -> None:
    with pytest.raises(DamagedContainer):
        fmt.decode_file_header(fmt.encode_file_header(header)[:length], "here")


def test_a_container_of_a_newer_format_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    header = fmt.FileHeader(fmt.Kind.CHUNKS, 1, 1, 0, bytes(16), 0)
    monkeypatch.setattr(fmt, "FORMAT", 4)
    newer = fmt.encode_file_header(header)
    monkeypatch.setattr(fmt, "FORMAT", 2)
    with pytest.raises(UnknownFormat, match="format 4; this program reads 2"):
        fmt.decode_file_header(newer, "here")


def test_a_container_of_an_unknown_kind_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    header = fmt.FileHeader(fmt.Kind.CHUNKS, 1, 1, 0, bytes(16), 0)
    strange = fmt.FileHeader(
        **{f.name: getattr(header, f.name) for f in fields(header)} | {"kind": 77}
    )
    with pytest.raises(UnknownFormat, match="kind 77"):
        fmt.decode_file_header(fmt.encode_file_header(strange), "here")


@given(records, U64)
def test_a_record_header_comes_back_as_it_was(record: fmt.Record, seed: int) -> None:
    assert fmt.unpack_record(packed(record, seed), 0, seed) == record


@given(records, U64)
def test_every_flipped_bit_of_a_record_header_is_noticed(record: fmt.Record, seed: int) -> None:
    data = packed(record, seed)
    for bit in range(len(data) * 8):
        assert fmt.unpack_record(flipped(data, bit), 0, seed) is None


@given(records, UUID, st.tuples(U32, U32), st.tuples(U32, U32))
def test_a_record_does_not_pass_for_one_of_another_container(
    record: fmt.Record, volume: bytes, here: tuple[int, int], there: tuple[int, int]
) -> None:
    if here != there:
        data = packed(record, fmt.public_seed(volume, *here))
        assert fmt.unpack_record(data, 0, fmt.public_seed(volume, *there)) is None


@given(records, st.integers(0, fmt.RECORD_HEADER_BYTES - 1))
def test_a_record_header_cut_short_is_none(record: fmt.Record, length: int) -> None:
    assert fmt.unpack_record(packed(record, 0)[:length], 0, 0) is None


@given(st.integers(0, 2**32 - 1))
def test_records_begin_at_aligned_offsets_and_lose_less_than_one_unit(stored: int) -> None:
    size = fmt.record_size(stored)
    assert size % fmt.ALIGN_BYTES == 0
    assert 0 <= size - fmt.RECORD_HEADER_BYTES - stored < fmt.ALIGN_BYTES
