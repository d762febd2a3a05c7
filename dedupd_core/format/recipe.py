"""Recipes: the ordered chunks of a file (docs/design/format.md, "Recipe").

A recipe is a tree of nodes, each a record in a recipe container. A leaf lists chunks and holes; an
inner node lists recipes. Most files have one leaf. Nodes are immutable, and files with equal
content share them.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from dedupd_core import native
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
