"""Merge logs of reconciliation: pairs of equal chunks (docs/design/format.md, "Merge log")."""

import struct
from dataclasses import dataclass

from dedupd_core.errors import DamagedTable
from dedupd_core.format.sealed_header import seal, unseal

MAGIC = b"DEDUPMRG"
FORMAT = 1
HEADER_BYTES = 64
PAIR_BYTES = 16

_HEADER = struct.Struct("<8sH6xQ16sQ")


@dataclass(frozen=True, slots=True)
class LogHeader:
    """The first 64 bytes. The pairs follow, with ``pairs_checksum`` as their xxh3."""

    pairs: int
    volume_id: bytes
    pairs_checksum: int


def encode_header(header: LogHeader) -> bytes:
    return seal(_HEADER.pack(MAGIC, FORMAT, header.pairs, header.volume_id, header.pairs_checksum))


def decode_header(data: bytes, where: str) -> LogHeader:
    """Raises DamagedTable."""
    body = unseal(data, MAGIC)
    if body is None:
        raise DamagedTable(f"{where}: the merge log has no valid header")
    _, version, pairs, volume_id, checksum = _HEADER.unpack_from(body)
    if version != FORMAT:
        raise DamagedTable(f"{where}: merge log of an unknown format {version}")
    return LogHeader(pairs, volume_id, checksum)
