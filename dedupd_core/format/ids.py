"""Chunk ids: container number (32 bit) and ordinal (32 bit). An id never changes its meaning."""

HOLE = 0
"""The id that stands for zeros; container numbers begin at 1, so no record has it."""

MAX_ORDINAL = 0xFFFF_FFFF


def make_id(container: int, ordinal: int) -> int:
    """The id of record ``ordinal`` in ``container``."""
    return container << 32 | ordinal


def container_of(chunk_id: int) -> int:
    return chunk_id >> 32


def ordinal_of(chunk_id: int) -> int:
    return chunk_id & MAX_ORDINAL


def show_id(chunk_id: int) -> str:
    """An id as it appears in messages."""
    return f"{container_of(chunk_id):08d}:{ordinal_of(chunk_id)}"
