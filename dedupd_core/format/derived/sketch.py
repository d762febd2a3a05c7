"""Sketches of a container's chunks, in a separate file (docs/design/format.md, "Sketches")."""

import struct

import xxhash

from dedupd_core import native
from dedupd_core.errors import DamagedTable
from dedupd_core.format.sealed_header import seal, unseal

MAGIC = b"DEDUPSKT"
FORMAT = 1
HEADER_BYTES = 64
SKETCH_BYTES = 64
"""Eight features in memory; in the file they need less."""

_HEADER = struct.Struct("<8sHxxII4x16sQ")


def encode_sketches(container: int, volume_id: bytes, sketches: bytes) -> bytes:
    """Encode the sketches of the ordinals from 0 on as a file."""
    count = len(sketches) // SKETCH_BYTES
    packed = native.upkeep.pack_sketches(sketches)
    checksum = xxhash.xxh3_64_intdigest(packed)
    body = _HEADER.pack(MAGIC, FORMAT, container, count, volume_id, checksum)
    return seal(body) + packed


def decode_sketches(data: bytes, container: int, volume_id: bytes) -> bytes:
    """Decode the sketches of a file. Raises DamagedTable for an incomplete or other file."""
    body, packed = unseal(data, MAGIC), data[HEADER_BYTES:]
    if body is not None:
        _, version, number, count, owner, checksum = _HEADER.unpack_from(body)
        is_own = (version, number, owner) == (FORMAT, container, volume_id)
        if is_own and xxhash.xxh3_64_intdigest(packed) == checksum:
            try:
                return native.upkeep.unpack_sketches(packed, count)
            except ValueError:
                pass  # the count does not match
    raise DamagedTable(
        f"the sketches of container {container} are damaged, or belong to another container"
    )
