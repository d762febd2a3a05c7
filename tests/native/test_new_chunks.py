"""What becomes of chunks: which are new, and the ids of all; and files that are one chunk."""

import itertools
import struct
from collections.abc import Sequence
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupd_core import native
from dedupd_core.format.volume_parameters import new_parameters
from dedupd_core.units import KIB
from tests.support.lab import noise

CHUNKER = new_parameters("4k", "blake3", "user.x").chunker()
FIRST, FIRST_AS_IS = 7 << 32, (9 << 32) + 5

# Contents of files: some whole chunks, some of many, zeros, and the same again.
contents = st.lists(
    st.builds(
        lambda size, seed, zeros: noise(size, seed) + bytes(zeros),
        st.integers(0, 40) | st.integers(0, 60 * KIB),
        st.integers(0, 3),
        st.sampled_from([0, 0, 30, 20 * KIB]),
    ).filter(bool),
    max_size=8,
)


def packed(numbers: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def unpacked(column: bytes, item: Literal["B", "I", "Q"]) -> list[int]:
    return list(memoryview(column).cast(item))


def cut(files: list[bytes]) -> native.chunker.Chunks:
    ends = list(itertools.accumulate(map(len, files)))
    segments = [(end - len(file), end, True) for file, end in zip(files, ends, strict=True)]
    return CHUNKER.process(b"".join(files), segments)


def all_taken(found: native.chunker.Chunks, count: int) -> native.ingest.Judgement:
    """Every segment is to be stored, whatever that saves."""
    placed = found.place(bytes(8 * len(found)), bytes(count))
    new = placed.new[0]
    columns = bytes(8 * len(new)), b""
    modes = bytes([native.ingest.STORE]) * count
    recall = native.admission.Recall()
    return placed.judge(columns, (new.lengths, b""), modes, bytes(8 * count), recall, 0.05)


@given(contents, st.lists(st.booleans(), min_size=8, max_size=8), st.sets(st.integers(0, 200)))
def test_chunks_are_known_or_repeated_or_zeros_or_new(
    files: list[bytes], flags: list[bool], known_at: set[int]
) -> None:
    found = cut(files)
    ends, zero = unpacked(found.ends, "I"), found.zero
    starts = [0, *ends[:-1]]
    prints = [found.fingerprints[at : at + 32] for at in range(0, len(found) * 32, 32)]
    chosen = {prints[at] for at in known_at if at < len(found) and not zero[at]}
    known = [1000 + at if prints[at] in chosen else 0 for at in range(len(found))]
    placed = found.place(packed(known), bytes(flags[: len(files)]))

    ids: list[int] = []
    new: tuple[list[int], list[int]] = ([], [])
    met: dict[bytes, int] = {}
    duplicate_bytes = zero_bytes = at = 0
    hints: dict[int, int] = {}
    for count, as_is in zip(unpacked(found.counts, "I"), flags, strict=False):
        for n in range(at, at + count):
            length = ends[n] - starts[n]
            hints[n] = ends[n + 1] - ends[n] if n + 1 < at + count else 0
            if zero[n]:
                ids.append(0)
                zero_bytes += length
            elif known[n] or prints[n] in met:
                ids.append(known[n] or met[prints[n]])
                duplicate_bytes += length
            else:
                met[prints[n]] = (FIRST_AS_IS if as_is else FIRST) + len(new[as_is])
                ids.append(met[prints[n]])
                new[as_is].append(n)
        at += count

    assert unpacked(placed.ids(FIRST, FIRST_AS_IS), "Q") == ids
    assert (placed.duplicate_bytes, placed.zero_bytes) == (duplicate_bytes, zero_bytes)
    for chunks, expected in zip(placed.new, new, strict=True):
        lengths = [ends[n] - starts[n] for n in expected]
        assert (len(chunks), chunks.raw_bytes) == (len(expected), sum(lengths))
        assert unpacked(chunks.starts, "I") == [starts[n] for n in expected]
        assert unpacked(chunks.lengths, "I") == lengths
        assert unpacked(chunks.hints, "I") == [hints[n] for n in expected]
        assert chunks.fingerprints == b"".join(prints[n] for n in expected)


@given(contents)
def test_a_file_that_is_one_chunk_is_named_by_it_and_others_have_rows(files: list[bytes]) -> None:
    found = cut(files)
    several = native.ingest.FileList()
    for number, file in enumerate(files):
        several.add(b"%d" % number, (number, len(file), -number, 5), as_is=False)
    numbers = [77 + n for n in range(len(found))]
    ids = packed(numbers)
    single = native.commit.CommitRequests()
    others = several.single(found, ids, all_taken(found, len(files)), single)
    rows = [found.rows(number, ids) for number in range(len(files))]
    assert [row for one in rows for row in one] == [
        (id_, end - start, found.fingerprints[n * 32 : n * 32 + 32])
        for n, (id_, start, end) in enumerate(
            zip(numbers, [0, *unpacked(found.ends, "I")], unpacked(found.ends, "I"), strict=False)
        )
    ]
    assert others == [n for n, file in enumerate(files) if len(rows[n]) > 1 or not any(file)]
    assert list(single) == [
        (b"%d" % n, (n, len(file), -n, 5), (rows[n][0][0], rows[n][0][2][:16], True), None, False)
        for n, file in enumerate(files)
        if n not in others
    ]


@given(
    st.lists(st.integers(0, 20), max_size=12),
    st.integers(0, 13),
    st.integers(0, 20),
    st.integers(0, 60),
    st.integers(0, 6),
)
def test_files_are_taken_up_to_the_first_that_does_not_fit(
    sizes: list[int], at: int, size_max: int, room: int, count_max: int
) -> None:
    source, taken = native.ingest.FileList(), native.ingest.FileList()
    for number, size in enumerate(sizes):
        source.add(b"%d" % number, (number, size, 0, 0), as_is=number % 3 == 0)
    count = 0
    for size in sizes[at : at + count_max]:
        if size > size_max or sum(sizes[at : at + count]) + size > room:
            break
        count += 1
    assert taken.take(source, at, size_max, room, count_max) == count
    assert list(taken) == list(source)[at : at + count]
    assert taken.size_bytes == sum(sizes[at : at + count])
    assert taken.as_is == bytes(number % 3 == 0 for number in range(at, at + count))


def test_columns_of_another_length_are_refused() -> None:
    found = cut([noise(30 * KIB), b"x"])
    ids, several = packed([1] * len(found)), native.ingest.FileList()
    several.add(b"one", (1, 1, 1, 1), as_is=False)
    with pytest.raises(ValueError, match="known must have"):
        found.place(ids[8:], b"\0\0")
    with pytest.raises(ValueError, match="as_is for each segment"):
        found.place(ids, b"\0")
    with pytest.raises(ValueError, match="segment, not 2"):
        found.rows(2, ids)
    with pytest.raises(ValueError, match="ids of all chunks"):
        found.rows(0, ids[8:])
    with pytest.raises(ValueError, match="not the chunks of these files"):
        several.single(found, ids, all_taken(found, 2), native.commit.CommitRequests())
    with pytest.raises(IndexError, match="no file 1"):
        several[1]
