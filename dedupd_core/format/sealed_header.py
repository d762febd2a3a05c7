"""Sealed headers of the files of a store: a magic number first, and the xxh3 of the rest last
(docs/design/format.md)."""

import struct

import xxhash

_U64 = struct.Struct("<Q")


def seal(body: bytes, size: int = 64) -> bytes:
    """Return the header of ``size`` bytes with this body."""
    padded = body.ljust(size - _U64.size, b"\0")
    return padded + _U64.pack(xxhash.xxh3_64_intdigest(padded))


def unseal(data: bytes, magic: bytes, size: int = 64) -> bytes | None:
    """Return the body of the header in the first bytes of ``data``; None if it is invalid."""
    body, checksum = bytes(data[: size - _U64.size]), data[size - _U64.size : size]
    if len(checksum) < _U64.size or not body.startswith(magic):
        return None
    return body if _U64.unpack(checksum)[0] == xxhash.xxh3_64_intdigest(body) else None
