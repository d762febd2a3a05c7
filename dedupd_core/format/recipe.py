"""Recipes: the ordered chunks of a file (docs/design/format.md, "Recipe").

A recipe is a tree of nodes, each a record in a recipe container. A leaf lists chunks and holes; an
inner node lists recipes. Most files have one leaf. Nodes are immutable, and files with equal
content share them.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from dedupd_core import native
from dedupd_core.errors import DamagedRecipe
from dedupd_core.format.ids import HOLE

FORMAT = 1
MAGIC = 0x5052_4444  # "DDRP" on disk
FANOUT_MAX = 4096
"""Entries in a node: a leaf of 80 KiB chunks covers 320 MiB, and one small I/O reads it."""

HEADER_BYTES = 40
ENTRY_BYTES = 16

_HEADER = struct.Struct("<IBBHIIQ16s")
_ENTRY = struct.Struct("<QQ")
_CHECK_SHIFT = 32
_CHUNK_LENGTH_MASK = 0xFFFF_FFFF
"""In a leaf, the second word of a chunk's entry is its raw length and, above that, its check."""

assert _HEADER.size == HEADER_BYTES


DIGEST_BYTES = 16


class RecipeRef(NamedTuple):
    """A stub's reference to its recipe: the root's id, and half of that record's fingerprint.

    ``direct``: the file is a single chunk, and this is the chunk's id and fingerprint. Small files
    then need no recipe record, and their readers need not look it up.
    """

    recipe: int
    digest: bytes
    direct: bool = False


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


def fingerprint_check(fingerprint: bytes) -> int:
    """Return the part of a chunk's fingerprint that a leaf stores (32 bit).

    An id can only name other bytes if a part of the store was lost or restored from an older copy.
    The check detects this at every read, without reading anything else.
    """
    return int.from_bytes(fingerprint[:4], "little")


def content_digest(parts: Sequence[tuple[bytes, int]]) -> bytes:
    """Return the 16-byte digest of (fingerprint or child digest, raw length) pairs."""
    return native.hashing.fingerprint(b"".join(fp + struct.pack("<Q", n) for fp, n in parts))[:16]


def encode_node(level: int, content: bytes, entries: Sequence[tuple[int, int, bytes]]) -> bytes:
    """Return the payload of a node with ``entries`` of (id, raw length, fingerprint)."""
    assert 0 < len(entries) <= FANOUT_MAX
    length = sum(n for _, n, _ in entries)
    head = _HEADER.pack(MAGIC, FORMAT, level, 0, len(entries), 0, length, content)
    if level > 0:
        return head + b"".join(_ENTRY.pack(i, n) for i, n, _ in entries)
    assert all(n <= _CHUNK_LENGTH_MASK for i, n, _ in entries if i != HOLE)
    return head + b"".join(
        _ENTRY.pack(i, n if i == HOLE else n | fingerprint_check(fp) << _CHECK_SHIFT)
        for i, n, fp in entries
    )


def named_by(payload: bytes, end: int, where: str) -> tuple[int, list[int], int]:
    """Return the ids in the first ``end`` bytes of a node: far cheaper than :func:`decode_node`.

    The result is the node's level, the ids including holes, and the needed bytes of the last one.
    Raises DamagedRecipe.
    """
    if len(payload) < HEADER_BYTES:
        raise DamagedRecipe(f"{where}: the recipe is truncated")
    magic, version, level, _, count, _, length, _ = _HEADER.unpack_from(payload)
    if (magic, version, len(payload)) != (MAGIC, FORMAT, HEADER_BYTES + count * ENTRY_BYTES):
        raise DamagedRecipe(f"{where}: not a recipe of format {FORMAT}")
    words = memoryview(payload)[HEADER_BYTES:].cast("Q")
    ids = words[0::2].tolist()
    if end >= length:
        return level, ids, end
    start = 0
    for at, (one, size) in enumerate(zip(ids, words[1::2], strict=True)):
        if level == 0 and one != HOLE:
            size &= _CHUNK_LENGTH_MASK
        if start + size >= end:
            return level, ids[: at + 1], end - start
        start += size
    raise DamagedRecipe(f"{where}: the lengths in the recipe do not add up")


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
