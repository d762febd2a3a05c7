"""Merge logs of reconciliation: which chunks are the same (docs/format.md, "Merge log")."""

import struct
from dataclasses import dataclass

import xxhash

from dedupd.errors import DamagedTable

MAGIC = b"DEDUPMRG"
FORMAT = 1
HEADER_BYTES = 64
PAIR_BYTES = 16

_HEADER = struct.Struct("<8sH6xQ16sQ")
_U64 = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class LogHeader:
    """The first 64 bytes. After them come the pairs, of which ``pairs_checksum`` is the xxh3."""

    pairs: int
    volume_id: bytes
    pairs_checksum: int


def encode_header(header: LogHeader) -> bytes:
    body = _HEADER.pack(MAGIC, FORMAT, header.pairs, header.volume_id, header.pairs_checksum).ljust(
        HEADER_BYTES - 8, b"\0"
    )
    return body + _U64.pack(xxhash.xxh3_64_intdigest(body))


def decode_header(data: bytes, where: str) -> LogHeader:
    """Raises DamagedTable."""
    body = data[: HEADER_BYTES - 8]
    if (
        len(data) < HEADER_BYTES
        or body[:8] != MAGIC
        or _U64.unpack_from(data, HEADER_BYTES - 8)[0] != xxhash.xxh3_64_intdigest(body)
    ):
        raise DamagedTable(f"{where}: the merge log has no valid header")
    _, version, pairs, volume_id, checksum = _HEADER.unpack_from(body)
    if version != FORMAT:
        raise DamagedTable(f"{where}: merge log of an unknown format {version}")
    return LogHeader(pairs, volume_id, checksum)
