"""Saved notes: the files that would save too little, and what is noted of their chunks, kept for
the next run (docs/design/format.md). Native code reads and writes the rows."""

import struct
from dataclasses import dataclass

from dedupd_core.errors import DamagedTable
from dedupd_core.format.sealed_header import seal, unseal

MAGIC = b"DEDUPNOT"
FORMAT = 1
HEADER_BYTES = 64
ROW_BYTES = 16
"""Of a judged file, and of a note."""

_JOINED = 1

_HEADER = struct.Struct("<8sHH4x16sIIQQ")

assert _HEADER.size + 8 == HEADER_BYTES


@dataclass(frozen=True, slots=True)
class NotesHeader:
    """The first 64 bytes. After them come ``judged`` rows of files, by inode, of which
    ``judged_checksum`` is the xxh3, and ``notes`` rows of notes, by prefix.

    ``policy`` digests what the judgements depend on. ``is_joined``: no note is new.
    """

    volume_id: bytes
    judged: int
    policy: int
    notes: int
    judged_checksum: int
    is_joined: bool


def encode_header(header: NotesHeader) -> bytes:
    return seal(
        _HEADER.pack(
            MAGIC,
            FORMAT,
            _JOINED if header.is_joined else 0,
            header.volume_id,
            header.judged,
            header.policy,
            header.notes,
            header.judged_checksum,
        )
    )


def decode_header(data: bytes, where: str) -> NotesHeader:
    """Raises DamagedTable."""
    body = unseal(data, MAGIC)
    if body is None:
        raise DamagedTable(f"{where}: the saved notes have no valid header")
    _, version, flags, volume_id, judged, policy, notes, checksum = _HEADER.unpack_from(body)
    if version != FORMAT:
        raise DamagedTable(f"{where}: saved notes of an unknown format {version}")
    return NotesHeader(volume_id, judged, policy, notes, checksum, bool(flags & _JOINED))
