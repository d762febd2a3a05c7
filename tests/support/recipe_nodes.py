"""Nodes of recipes, decoded in plain Python: what native code is compared with."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from dedupd_core.errors import DamagedRecipe
from dedupd_core.format.ids import HOLE
from dedupd_core.format.recipe import (
    _CHECK_SHIFT,
    _CHUNK_LENGTH_MASK,
    _HEADER,
    ENTRY_BYTES,
    FANOUT_MAX,
    FORMAT,
    HEADER_BYTES,
    MAGIC,
)


@dataclass(frozen=True, slots=True)
class Node:
    """One node. ``ids`` and ``lengths`` are parallel; lengths are raw bytes.

    ``offsets``: the starts of the entries in the node. In a leaf (``level`` 0) an id names a chunk,
    or is ``HOLE``; in other nodes it names a node one level down. ``fingerprint_checks``: for the
    chunks of a leaf (:func:`fingerprint_check`), otherwise 0. ``content`` digests the fingerprints
    below, independent of where chunks are stored.
    """

    level: int
    length: int
    content: bytes
    ids: Sequence[int]
    lengths: Sequence[int]
    fingerprint_checks: Sequence[int]
    offsets: Sequence[int]


def decode_node(payload: bytes, where: str) -> Node:
    """Raises DamagedRecipe."""
    if len(payload) < HEADER_BYTES:
        raise DamagedRecipe(f"{where}: the recipe is truncated")
    magic, version, level, _, count, _, length, content = _HEADER.unpack_from(payload)
    if magic != MAGIC or version != FORMAT:
        raise DamagedRecipe(f"{where}: not a recipe of format {FORMAT}")
    if len(payload) != HEADER_BYTES + count * ENTRY_BYTES:
        raise DamagedRecipe(
            f"{where}: the recipe states {count} entries, but contains another number"
        )
    if not 0 < count <= FANOUT_MAX:
        raise DamagedRecipe(f"{where}: a node of {count} entries, which is not a valid number")
    words = memoryview(payload)[HEADER_BYTES:].cast("Q")
    ids, lengths = words[0::2].tolist(), words[1::2].tolist()
    checks: Sequence[int] = bytes(count)
    if level == 0:
        pairs = list(zip(ids, lengths, strict=True))
        checks = [0 if i == HOLE else n >> _CHECK_SHIFT for i, n in pairs]
        lengths = [n if i == HOLE else n & _CHUNK_LENGTH_MASK for i, n in pairs]
    if sum(lengths) != length or 0 in lengths:
        raise DamagedRecipe(f"{where}: the lengths in the recipe do not add up")
    offsets = list(accumulate(lengths[:-1], initial=0))
    return Node(level, length, content, ids, lengths, checks, offsets)
