"""Sealed headers, with which the files of a store begin: a magic number first, last the xxh3 of all
before it (docs/design/format.md)."""

import struct

import xxhash

_U64 = struct.Struct("<Q")


def seal(body: bytes, size: int = 64) -> bytes:
    """The header of ``size`` bytes with this body."""
    padded = body.ljust(size - _U64.size, b"\0")
    return padded + _U64.pack(xxhash.xxh3_64_intdigest(padded))


def unseal(data: bytes, magic: bytes, size: int = 64) -> bytes | None:
    """The body of the header in the first bytes of ``data``; None where there is no valid one."""
    body, checksum = bytes(data[: size - _U64.size]), data[size - _U64.size : size]
    if len(checksum) < _U64.size or not body.startswith(magic):
        return None
    return body if _U64.unpack(checksum)[0] == xxhash.xxh3_64_intdigest(body) else None
