"""Saved marks: the records that recipes name, for the next collection (docs/design/format.md)."""

import struct
from dataclasses import astuple, dataclass
from typing import NamedTuple

from dedupd_core.errors import DamagedTable
from dedupd_core.format.sealed_header import seal, unseal

MAGIC = b"DEDUPGCM"
FORMAT = 1
HEADER_BYTES = 64
SECTION_BYTES = 16

_HEADER = struct.Struct("<8sH6xII16sQQ")
_SECTION = struct.Struct("<IIQ")

assert _HEADER.size + 8 == HEADER_BYTES
assert _SECTION.size == SECTION_BYTES


@dataclass(frozen=True, slots=True)
class MarksHeader:
    """The first 64 bytes. A section for each container of chunks follows, and then one for each
    container of recipes: ``body_bytes`` in total, with ``body_checksum`` as their xxh3."""

    chunk_containers: int
    recipe_containers: int
    volume_id: bytes
    body_bytes: int
    body_checksum: int


class SectionHead(NamedTuple):
    """The start of a section: its container, the number of records, and for recipes a digest of the
    fingerprints of the needed records."""

    container: int
    records: int
    fingerprints: int


def encode_header(header: MarksHeader) -> bytes:
    return seal(_HEADER.pack(MAGIC, FORMAT, *astuple(header)))


def decode_header(data: bytes, where: str) -> MarksHeader:
    """Raises DamagedTable."""
    body = unseal(data, MAGIC)
    if body is None:
        raise DamagedTable(f"{where}: the saved marks have no valid header")
    _, version, *fields = _HEADER.unpack_from(body)
    if version != FORMAT:
        raise DamagedTable(f"{where}: saved marks of an unknown format {version}")
    return MarksHeader(*fields)


def encode_section(head: SectionHead) -> bytes:
    return _SECTION.pack(*head)


def decode_section(data: bytes) -> SectionHead:
    """Decode the first :data:`SECTION_BYTES` of a section."""
    return SectionHead._make(_SECTION.unpack(data))


def bitmap_bytes(count: int) -> int:
    """Return the bytes of a bitmap for ``count`` records: full words."""
    return -(-count // 64) * 8
