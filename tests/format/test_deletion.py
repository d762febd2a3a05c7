"""Logs of deletions: what was written is read, and damage takes one deletion with it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupd.errors import Damaged, UnknownFormat
from dedupd.format.deletion import (
    HEAD_BYTES,
    LOG_HEADER_BYTES,
    MAGIC,
    Cause,
    Deletion,
    LogHeader,
    decode_deletion,
    decode_header,
    deletions_in,
    encode_deletion,
    encode_header,
    seed_of,
)
from dedupd.format.stub import Flag, StubAttribute
from tests.support.formats import U32, U64, UUID, flipped

I64 = st.integers(-(2**63), 2**63 - 1)
STUBS = st.builds(
    StubAttribute,
    *(U64, st.binary(min_size=16, max_size=16), U64, st.just(0)),
    st.sampled_from([Flag(0), Flag.DIRECT, Flag.WRITTEN]),
    U64,
)
NAMES = st.binary(max_size=80).map(lambda name: b"n" + name.translate(None, b"\0/"))
PATHS = st.lists(NAMES, max_size=4).map(b"/".join)
DELETIONS = st.builds(
    Deletion,
    *(st.sampled_from(Cause), U64, U32, PATHS, U32, U32, U32, U64, U32, U64),
    *(I64, I64, STUBS),
    st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=40)), max_size=3).map(tuple),
)
SEED = seed_of(bytes(16), 3)


@given(DELETIONS)
def test_a_deletion_is_read_as_it_was_written(one: Deletion) -> None:
    data = encode_deletion(one, SEED)
    assert decode_deletion(data, 0, SEED) == (one, len(data))
    assert len(data) % 8 == 0


@given(DELETIONS, st.data())
def test_a_flipped_bit_shows(one: Deletion, data: st.DataObject) -> None:
    written = encode_deletion(one, SEED)
    used = HEAD_BYTES + len(one.path) + sum(6 + len(n) + len(v) for n, v in one.attributes)
    bit = data.draw(st.integers(0, 8 * used - 1))
    with pytest.raises(Damaged):
        decode_deletion(flipped(written, bit), 0, SEED)


@pytest.mark.parametrize("path", [b"/", b"/a", b"..", b"a/../b", b"a\0b"])
def test_a_path_that_leads_out_of_the_volume_is_damage(path: bytes) -> None:
    with pytest.raises(Damaged, match="leads out"):
        decode_deletion(encode_deletion(_named(path), SEED), 0, SEED)


def test_a_deletion_of_another_log_is_none() -> None:
    with pytest.raises(Damaged):
        decode_deletion(encode_deletion(_named(b"a"), SEED), 0, seed_of(bytes(16), 4))


@given(st.lists(DELETIONS, max_size=5), st.data())
def test_damage_takes_one_deletion_with_it(found: list[Deletion], data: st.DataObject) -> None:
    rows = [encode_deletion(one, SEED) for one in found]
    hit = data.draw(st.integers(0, len(rows) - 1)) if rows else -1
    parts = [flipped(row, 70) if at == hit else row for at, row in enumerate(rows)]
    text = bytes(LOG_HEADER_BYTES) + b"".join(parts)
    read = [one for _, one in deletions_in(text, SEED)]
    assert read == [one for at, one in enumerate(found) if at != hit]


def test_a_name_that_looks_like_a_deletion_hides_none_behind_damage() -> None:
    first = flipped(encode_deletion(_named(MAGIC * 40), SEED), 3)
    second = encode_deletion(_named(b"second"), SEED)
    text = bytes(LOG_HEADER_BYTES) + first + bytes(64) + second
    assert [one.path for _, one in deletions_in(text, SEED)] == [b"second"]


@given(U32, UUID, U64)
def test_the_header_is_read_as_it_was_written(number: int, uuid: bytes, created: int) -> None:
    header = LogHeader(number, uuid, created)
    data = encode_header(header)
    assert decode_header(data, "log") == header
    with pytest.raises((Damaged, UnknownFormat)):
        decode_header(flipped(data, 77), "log")
    with pytest.raises(Damaged):
        decode_header(data[:-1], "log")


def _named(path: bytes) -> Deletion:
    stub = StubAttribute(1, bytes(16), 10, 0)
    return Deletion(Cause.CUT, 1, 2, path, 0o100644, 0, 0, 5, 6, 10, 0, 0, stub)
