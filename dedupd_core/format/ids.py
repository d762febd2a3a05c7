"""Chunk ids: container number (32 bit) and ordinal (32 bit). An id never changes its meaning.

Native code handles many ids at once, as a sequence of little-endian integers in bytes; each kind of
such a column has a type.
"""

from array import array
from collections.abc import Iterable
from typing import NewType

PackedIds = NewType("PackedIds", bytes)
"""Ids of records, u64 each; 0 for none."""

PackedOrdinals = NewType("PackedOrdinals", bytes)
"""u32 each: ordinals of records in their container, or positions in the input of a call."""

PackedLengths = NewType("PackedLengths", bytes)
"""u64 each: for each record, a number of bytes from its start."""

PackedPairs = NewType("PackedPairs", bytes)
"""Pairs of ids, two u64 each: the record to merge, and the record that stays."""

HOLE = 0
"""The id for zeros; container numbers start at 1, so no record has it."""

MAX_ORDINAL = 0xFFFF_FFFF


def make_id(container: int, ordinal: int) -> int:
    """Return the id of record ``ordinal`` in ``container``."""
    return container << 32 | ordinal


def container_of(chunk_id: int) -> int:
    return chunk_id >> 32


def ordinal_of(chunk_id: int) -> int:
    return chunk_id & MAX_ORDINAL


def show_id(chunk_id: int) -> str:
    """Format an id for messages."""
    return f"{container_of(chunk_id):08d}:{ordinal_of(chunk_id)}"


def pack_ids(ids: Iterable[int]) -> PackedIds:
    return PackedIds(array("Q", ids).tobytes())


def unpack_ids(packed: PackedIds) -> "memoryview[int]":
    return memoryview(packed).cast("Q")


def unpack_ordinals(packed: PackedOrdinals) -> "memoryview[int]":
    return memoryview(packed).cast("I")


def unpack_pairs(packed: PackedPairs) -> list[tuple[int, int]]:
    ids = memoryview(packed).cast("Q").tolist()
    return list(zip(ids[::2], ids[1::2], strict=True))
