"""Sketches of the chunks of a container, in a file beside it (docs/format.md, "Sketches")."""

import struct

import xxhash

from dedupd.errors import DamagedTable

MAGIC = b"DEDUPSKT"
FORMAT = 1
HEADER_BYTES = 64
SKETCH_BYTES = 48
"""Six super-features."""

_HEADER = struct.Struct("<8sHxxII4x16sQ")
_U64 = struct.Struct("<Q")


def encode_sketches(container: int, volume_id: bytes, sketches: bytes) -> bytes:
    """The file of the sketches of the ordinals from 0 on."""
    count = len(sketches) // SKETCH_BYTES
    checksum = xxhash.xxh3_64_intdigest(sketches)
    body = _HEADER.pack(MAGIC, FORMAT, container, count, volume_id, checksum)
    body = body.ljust(HEADER_BYTES - 8, b"\0")
    return body + _U64.pack(xxhash.xxh3_64_intdigest(body)) + sketches


def decode_sketches(data: bytes, container: int, volume_id: bytes) -> bytes:
    """The sketches in a file. Raises DamagedTable where it is not whole, or another's."""
    head, sketches = data[:HEADER_BYTES], data[HEADER_BYTES:]
    body = head[: HEADER_BYTES - 8]
    if len(head) == HEADER_BYTES and xxhash.xxh3_64_intdigest(body) == _U64.unpack(head[-8:])[0]:
        magic, version, number, count, owner, checksum = _HEADER.unpack_from(body)
        is_own = (magic, version, number, owner) == (MAGIC, FORMAT, container, volume_id)
        is_whole = len(sketches) == count * SKETCH_BYTES
        if is_own and is_whole and xxhash.xxh3_64_intdigest(sketches) == checksum:
            return sketches
    raise DamagedTable(f"the sketches of container {container} are damaged, or of another one")
