"""Saved notes, kept for the next run: files that save too little, with notes of their chunks.

See docs/design/format.md. Native code reads and writes the rows.
"""

import struct
from dataclasses import dataclass

from dedupd_core.errors import DamagedTable
from dedupd_core.format.sealed_header import seal, unseal

MAGIC = b"DEDUPNOT"
FORMAT = 1
HEADER_BYTES = 64
ROW_BYTES = 16
"""The size of a row of a judged file or of a note."""

_JOINED = 1

_HEADER = struct.Struct("<8sHH4x16sIIQQ")

assert _HEADER.size + 8 == HEADER_BYTES


@dataclass(frozen=True, slots=True)
class NotesHeader:
    """The first 64 bytes of a file of saved notes.

    ``judged`` rows of files by inode follow, with ``judged_checksum`` as their xxh3, and then
    ``notes`` rows of notes by prefix. ``policy`` digests the parameters of the judgements.
    ``is_joined``: no note is new.
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
