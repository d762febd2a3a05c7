"""Logs of deletions: what was written is read, and damage takes one deletion with it."""

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupd_core import native
from dedupd_core.errors import Damaged, UnknownFormat
from dedupd_core.format.deletion import (
    DELETION_BYTES_MAX,
    HEAD_BYTES,
    LOG_HEADER_BYTES,
    MAGIC,
    Cause,
    Deletion,
    LogHeader,
    decode_deletion,
    decode_header,
    encode_deletion,
    encode_header,
    encoded_bytes,
    read_log,
    spans,
)
from dedupd_core.format.stub import Flag, StubAttribute
from dedupd_core.system.files import opened
from tests.support.deletions import log_of, unproven_deletion, unproven_header
from tests.support.formats import U32, U64, UUID, flipped

I64 = st.integers(-(2**63), 2**63 - 1)
STUBS = st.builds(
    StubAttribute,
    *(U64, st.binary(min_size=16, max_size=16), U64, st.just(0)),
    st.sampled_from([Flag(0), Flag.DIRECT, Flag.WRITTEN]),
    U64,
)
NAMES = st.binary(max_size=80).map(lambda name: b"n" + name.translate(None, b"\0/"))
NAMES |= st.text(max_size=20).map(
    lambda name: b"n" + name.replace("/", "").encode(errors="ignore").translate(None, b"\0")
)
PATHS = st.lists(NAMES, max_size=4).map(b"/".join)
DELETIONS = st.builds(
    Deletion,
    *(st.sampled_from(Cause), U64, U32, PATHS, U32, U32, U32, U64, U32, U64),
    *(I64, I64, STUBS),
    st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=40)), max_size=3).map(tuple),
)
SEED = 0x1234_5678_9ABC_DEF0
HEADER = LogHeader(3, bytes(16), 0, SEED)
UNPROVEN = LogHeader(3, bytes(16), 0, native.hashing.xxh3_64(bytes(16) + b"\3\0\0\0"), False)
OFFSETS = st.integers(0, 1 << 19).map(lambda number: 8 * number)


@given(DELETIONS, OFFSETS)
def test_a_deletion_is_read_as_it_was_written(one: Deletion, offset: int) -> None:
    data = encode_deletion(one, SEED, offset)
    assert decode_deletion(data, 0, HEADER, offset) == (one, len(data))
    assert len(data) % 8 == 0


@given(DELETIONS, OFFSETS, st.data())
def test_a_flipped_bit_shows(one: Deletion, offset: int, data: st.DataObject) -> None:
    written = encode_deletion(one, SEED, offset)
    used = HEAD_BYTES + len(one.path) + sum(6 + len(n) + len(v) for n, v in one.attributes)
    bit = data.draw(st.integers(0, 8 * used - 1))
    with pytest.raises(Damaged):
        decode_deletion(flipped(written, bit), 0, HEADER, offset)


@pytest.mark.parametrize("path", [b"/", b"/a", b"..", b"a/../b", b"a\0b"])
def test_a_path_that_leads_out_of_the_volume_is_damage(path: bytes) -> None:
    with pytest.raises(Damaged, match="leads out"):
        decode_deletion(encode_deletion(_named(path), SEED, 0), 0, HEADER)


def test_a_deletion_is_valid_in_its_log_and_at_its_offset_only() -> None:
    data = encode_deletion(_named(b"a"), SEED, 64)
    assert decode_deletion(data, 0, HEADER, 64)
    for header, offset in ((HEADER, 72), (HEADER, 0), (HEADER._replace(seed=SEED + 1), 64)):
        with pytest.raises(Damaged):
            decode_deletion(data, 0, header, offset)


def test_a_deletion_that_is_too_large_is_refused() -> None:
    large = _named(b"a")._replace(attributes=((b"user.x", bytes(DELETION_BYTES_MAX)),))
    with pytest.raises(ValueError, match="too large"):
        encode_deletion(large, SEED, 64)


@given(st.lists(DELETIONS, max_size=5), st.data())
def test_damage_takes_one_deletion_with_it(found: list[Deletion], data: st.DataObject) -> None:
    rows = log_of(HEADER, found)
    hit = data.draw(st.integers(0, len(rows) - 1)) if rows else -1
    bit = data.draw(st.integers(0, 8 * HEAD_BYTES - 1))
    parts = [flipped(row, bit) if at == hit else row for at, row in enumerate(rows)]
    content = read_log(bytes(LOG_HEADER_BYTES) + b"".join(parts), HEADER)
    assert [one for _, one in content.rows] == [one for at, one in enumerate(found) if at != hit]
    assert content.lost_bytes == (len(rows[hit]) if rows else 0)


def test_a_name_that_looks_like_a_deletion_hides_none_behind_damage() -> None:
    rows = log_of(HEADER, [_named(MAGIC * 40), _named(b"second")])
    text = bytes(LOG_HEADER_BYTES) + flipped(rows[0], 3) + rows[1]
    assert _paths(text, HEADER) == [b"second"]


@pytest.mark.parametrize("kept", [0, 1, HEAD_BYTES - 1, HEAD_BYTES, HEAD_BYTES + 5])
def test_what_a_crash_leaves_at_the_end_is_no_damage(kept: int) -> None:
    rows = log_of(HEADER, [_named(b"first"), _named(b"second" * 20)])
    torn = bytes(LOG_HEADER_BYTES) + rows[0] + rows[1][:kept]
    for text in (torn, bytes(LOG_HEADER_BYTES) + rows[0] + bytes(len(rows[1]))):
        content = read_log(text, HEADER)
        assert [one.path for _, one in content.rows] == [b"first"]
        assert content.lost_bytes == 0


def forgeries(one: Deletion, volume_id: bytes) -> Iterator[bytes]:
    """The deletion as any user can write it: with each seed that follows from public numbers, of
    both formats."""
    public = (volume_id, volume_id + b"\3\0\0\0", b"\3\0\0\0", b"")
    seeds = [0, 1, 3, *map(native.hashing.xxh3_64, public)]
    for seed in seeds:
        yield unproven_deletion(one, seed)
        for offset in (0, 64, 64 + 136, 200, 256):
            yield encode_deletion(one, seed, offset)


@st.composite
def hostile_logs(draw: st.DrawFn) -> tuple[list[Deletion], bytes]:
    """What was appended, and the log: paths and attributes have forged deletions in them, and
    copies of those that the log has elsewhere; then damage of all kinds."""
    evil = _named(b"evil")._replace(mode=0o104755)
    pieces = [*forgeries(evil, HEADER.volume_id), MAGIC]
    noted, rows, end = list[Deletion](), list[bytes](), LOG_HEADER_BYTES
    for number in range(draw(st.integers(1, 5))):
        filling = draw(st.integers(0, 16))
        chosen = draw(st.lists(st.sampled_from([*pieces, *rows]), max_size=4))
        value = bytes(filling) + b"".join(chosen)
        name = bytes(filling) + draw(st.sampled_from(pieces))
        path = b"p%d" % number + name.translate(None, b"\0/.")
        attributes = ((b"user.x", value[:60_000]),)
        noted.append(_named(path)._replace(attributes=attributes, inode=number))
        rows.append(encode_deletion(noted[-1], SEED, end))
        end += len(rows[-1])
    text = bytearray(bytes(LOG_HEADER_BYTES) + b"".join(rows))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(LOG_HEADER_BYTES, max(LOG_HEADER_BYTES, len(text) - 1)))
        kind = draw(st.sampled_from(["bit", "cut", "torn", "zeros", "swap"]))
        if kind == "bit" and at < len(text):
            text[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "cut":
            del text[at:]
        elif kind == "torn":  # the start of another row over it, as of an append that failed
            row = draw(st.sampled_from(rows))
            text[at // 8 * 8 : at // 8 * 8 + len(row)] = row
        elif kind == "zeros":
            text[at : at + 512] = bytes(len(text[at : at + 512]))
        else:
            sector = at // 512 * 512
            other = draw(st.integers(0, len(text) // 512)) * 512
            here, there = bytes(text[sector : sector + 512]), bytes(text[other : other + 512])
            if len(here) == len(there) and min(sector, other) >= LOG_HEADER_BYTES:
                text[sector : sector + 512], text[other : other + 512] = there, here
    return noted, bytes(text)


@given(hostile_logs())
def test_nothing_is_read_that_was_not_appended(log: tuple[list[Deletion], bytes]) -> None:
    noted, text = log
    content = read_log(text, HEADER)
    found = [one for _, one in content.rows]
    assert found == [one for one in noted if one in found], "a part of it, in its order"
    assert 0 <= content.lost_bytes <= max(0, len(text) - LOG_HEADER_BYTES)
    assert {start for start, _ in content.rows} <= {
        start for start, _ in spans(text[LOG_HEADER_BYTES:], HEADER, LOG_HEADER_BYTES)
    }


def told(one: Deletion, offset: int, keep_ns: int = 2**64 - 1) -> dict[str, Any]:
    """What a listing says of a deletion of :data:`HEADER`'s log."""
    end_ns = min(one.time_ns + min(one.keep_s * 10**9, keep_ns), 2**64 - 1)
    names = [name for name, _ in one.attributes]
    return {
        "id": f"{HEADER.number}-{offset}",
        "path": os.fsdecode(one.path),
        "cause": one.cause.name.lower(),
        "time_s": one.time_ns / 10**9,
        "end_s": end_ns / 10**9,
        "length_bytes": one.stub.covered if one.lost_own_blocks else one.size,
        "uid": one.uid,
        "gid": one.gid,
        "mode": one.mode,
        "mtime_ns": one.mtime_ns,
        "lost_own_blocks": one.lost_own_blocks,
        "privileged": bool(one.mode & 0o6000) or b"security.capability" in names,
    }


def lines_of(
    log: native.deletions.DeletionLog,
    below: bytes = b"",
    uid: int | None = None,
    before: int = 2**32 - 1,
    now_ns: int = 0,
    keep_ns: int = 2**64 - 1,
    limit: int = 100,
) -> tuple[list[dict[str, Any]], int]:
    """What a log tells, and where it goes on. Nothing is below ``tree``, which is no directory."""
    with opened(os.open(os.devnull, os.O_PATH)) as tree:
        lines, rest = log.lines(
            below,
            number=HEADER.number,
            uid=uid,
            before=before,
            now_ns=now_ns,
            keep_ns=keep_ns,
            limit=limit,
            data_fd=tree,
            attribute=b"trusted.dedupd",
            seed=SEED,
        )
    assert all(line.endswith(b"\n") and line.isascii() for line in lines)
    return [json.loads(line) for line in lines], rest


def listed(text: bytes, header: LogHeader) -> tuple[list[dict[str, Any]], int]:
    """What native code tells of a log, in the order of the log, and how much is damaged."""
    log = native.deletions.DeletionLog(
        text,
        seed=header.seed,
        is_proven=header.is_proven,
        uid=header.uid,
        first=header.first,
    )
    rows, rest = lines_of(log)
    assert len(rows) == len(log)
    assert rest == 0
    return rows[::-1], log.lost_bytes


def agrees(text: bytes, header: LogHeader) -> None:
    """Native code finds in a log what :func:`read_log` finds."""
    content = read_log(text, header)
    assert listed(text, header) == (
        [told(one, at) for at, one in content.rows],
        content.lost_bytes,
    )
    starts, lengths = native.deletions.spans(
        text[LOG_HEADER_BYTES:],
        seed=header.seed,
        is_proven=header.is_proven,
        base=LOG_HEADER_BYTES,
    )
    found = zip(memoryview(starts).cast("I"), memoryview(lengths).cast("I"), strict=True)
    known = spans(text[LOG_HEADER_BYTES:], header, LOG_HEADER_BYTES)
    assert [(start, start + length) for start, length in found] == list(known)


NAMED = DELETIONS.map(lambda one: one._replace(time_ns=one.time_ns | 1, keep_s=one.keep_s | 1))
"""None that expires at 0, and no attribute with a NUL in its name, which no file has."""


@given(st.lists(NAMED, max_size=5), st.data())
def test_native_code_reads_the_same(found: list[Deletion], data: st.DataObject) -> None:
    clean = [
        one._replace(attributes=tuple((n.replace(b"\0", b"n"), v) for n, v in one.attributes))
        for one in found
    ]
    text = bytearray(bytes(LOG_HEADER_BYTES) + b"".join(log_of(HEADER, clean)))
    for _ in range(data.draw(st.integers(0, 2))):
        bit = data.draw(st.integers(8 * LOG_HEADER_BYTES, 8 * len(text) + 7))
        if bit < 8 * len(text):
            text = bytearray(flipped(bytes(text), bit))
    text = text[: data.draw(st.just(len(text)) | st.integers(0, len(text)))]
    owner = data.draw(st.sampled_from([None, *(one.uid for one in clean)]))
    agrees(bytes(text), HEADER._replace(uid=owner))


@given(hostile_logs())
def test_native_code_reads_the_same_of_hostile_logs(log: tuple[list[Deletion], bytes]) -> None:
    agrees(log[1], HEADER)


@given(st.lists(NAMED, max_size=4), st.integers(0, 2000), st.integers(0, 1 << 14))
def test_native_code_reads_the_same_of_the_older_format(
    found: list[Deletion], kept: int, bit: int
) -> None:
    clean = [one._replace(attributes=()) for one in found]
    rows = b"".join(unproven_deletion(one, UNPROVEN.seed) for one in clean)
    text = (unproven_header(3, bytes(16)) + rows)[: LOG_HEADER_BYTES + kept]
    agrees(text, UNPROVEN)
    if LOG_HEADER_BYTES <= bit // 8 < len(text):
        agrees(flipped(text, bit), UNPROVEN)


@given(st.lists(NAMED, max_size=6), st.data())
def test_a_listing_has_the_newest_of_a_path_and_of_a_user(
    found: list[Deletion], data: st.DataObject
) -> None:
    clean = [one._replace(attributes=()) for one in found]
    text = bytes(LOG_HEADER_BYTES) + b"".join(log_of(HEADER, clean))
    uid = data.draw(st.sampled_from([None, *(one.uid for one in clean)]))
    below = data.draw(st.sampled_from([b"", *(one.path.rpartition(b"/")[0] for one in clean)]))
    before, limit = data.draw(st.integers(0, len(text))), data.draw(st.integers(1, 4))
    now_ns, keep_ns = data.draw(U64), data.draw(U64)
    log = native.deletions.DeletionLog(
        text, seed=SEED, is_proven=True, uid=None, first=LOG_HEADER_BYTES
    )
    rows, rest = lines_of(log, below, uid, before, now_ns, keep_ns, limit)
    wanted = [
        (at, one)
        for at, one in reversed(read_log(text, HEADER).rows)
        if at < before
        and uid in (None, one.uid)
        and (not below or one.path == below or one.path.startswith(below + b"/"))
        and min(one.time_ns + min(one.keep_s * 10**9, keep_ns), 2**64 - 1) > now_ns
    ]
    assert rows == [told(one, at, keep_ns) for at, one in wanted[:limit]]
    assert rest == (wanted[limit - 1][0] if len(wanted) > limit else 0)


@given(st.lists(DELETIONS, min_size=1, max_size=5), st.data())
def test_what_is_before_the_first_deletion_that_is_kept_is_not_read(
    found: list[Deletion], data: st.DataObject
) -> None:
    text = bytes(LOG_HEADER_BYTES) + b"".join(log_of(HEADER, found))
    rows = read_log(text, HEADER).rows
    at = data.draw(st.integers(0, len(rows)))
    first = rows[at][0] if at < len(rows) else len(text)
    assert read_log(text, HEADER._replace(first=first)) == (rows[at:], 0)
    assert [encoded_bytes(one) for one in found] == [
        end - start for start, end in spans(text[LOG_HEADER_BYTES:], HEADER, LOG_HEADER_BYTES)
    ]


def test_a_deletion_of_another_user_than_that_of_the_log_is_damage() -> None:
    found = [_named(b"own")._replace(uid=7), _named(b"other")._replace(uid=0)]
    text = bytes(LOG_HEADER_BYTES) + b"".join(rows := log_of(HEADER, found))
    content = read_log(text, HEADER._replace(uid=7))
    assert [one.path for _, one in content.rows] == [b"own"]
    assert content.lost_bytes == len(rows[1])


def test_a_log_of_the_older_format_is_read_in_order_up_to_the_first_damage() -> None:
    found = [_named(b"%d" % number) for number in range(4)]
    rows = [unproven_deletion(one, UNPROVEN.seed) for one in found]
    data = unproven_header(3, bytes(16))
    assert decode_header(data, "log") == UNPROVEN
    assert read_log(data + b"".join(rows), UNPROVEN).rows[3][1] == found[3]
    damaged = data + rows[0] + flipped(rows[1], 70) + rows[2] + rows[3]
    content = read_log(damaged, UNPROVEN)
    assert [one for _, one in content.rows] == found[:1]
    assert content.lost_bytes == sum(map(len, rows[1:]))


@given(U32, UUID, U64, st.integers(1, 2**64 - 1), st.none() | st.integers(0, 2**32 - 2), OFFSETS)
def test_the_header_is_read_as_it_was_written(
    number: int, uuid: bytes, created: int, seed: int, uid: int | None, first: int
) -> None:
    header = LogHeader(number, uuid, created, seed, uid=uid, first=LOG_HEADER_BYTES + first)
    data = encode_header(header)
    assert decode_header(data, "log") == header
    with pytest.raises((Damaged, UnknownFormat)):
        decode_header(flipped(data, 77), "log")
    with pytest.raises(Damaged):
        decode_header(data[:-1], "log")
    with pytest.raises(Damaged, match="no seed"):
        decode_header(encode_header(header._replace(seed=0)), "log")
    for wrong in (0, LOG_HEADER_BYTES - 8, LOG_HEADER_BYTES + 4):
        with pytest.raises(Damaged, match="is invalid"):
            decode_header(encode_header(header._replace(first=wrong)), "log")


def _paths(text: bytes, header: LogHeader) -> list[bytes]:
    return [one.path for _, one in read_log(text, header).rows]


def _named(path: bytes) -> Deletion:
    stub = StubAttribute(1, bytes(16), 10, 0)
    return Deletion(Cause.CUT, 1, 2, path, 0o100644, 0, 0, 5, 6, 10, 0, 0, stub)
