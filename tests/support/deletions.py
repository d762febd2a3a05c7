"""Logs of deletions as bytes, also of the format that had no secret seed."""

import os
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dedupd_core.deleted.log import DeletionId, DeletionLogs
from dedupd_core.deleted.undelete import DeletedFile
from dedupd_core.format.deletion import (
    LOG_HEADER_BYTES,
    LOG_MAGIC,
    MAGIC,
    Cause,
    Deletion,
    LogHeader,
    encode_deletion,
)
from dedupd_core.format.sealed_header import seal
from dedupd_core.format.stream import checksum_of, encode_attributes
from dedupd_core.format.stub import Flag, StubAttribute

_FIELDS = struct.Struct("<4sBBHHHIQIIIIQIIQqqQ16sQQ")


def newest_first(logs: DeletionLogs) -> Iterator[tuple[DeletionId, Deletion]]:
    """All deletions of a volume."""
    for number in reversed(logs.numbers()):
        yield from reversed(logs.read(number))


def log_of(header: LogHeader, deletions: Sequence[Deletion]) -> list[bytes]:
    """The deletions as they follow the header of a log."""
    rows, end = list[bytes](), LOG_HEADER_BYTES
    for one in deletions:
        rows.append(encode_deletion(one, header.seed, end))
        end += len(rows[-1])
    return rows


def unproven_header(number: int, volume_id: bytes) -> bytes:
    """The header of a log of format 1."""
    return seal(struct.pack("<8sH2xI16sQ16x", LOG_MAGIC, 1, number, volume_id, 0))


def unproven_deletion(one: Deletion, seed: int) -> bytes:
    """A deletion of format 1, which any user can make who knows the public seed."""
    attributes = encode_attributes(one.attributes)
    fields = _FIELDS.pack(
        *(MAGIC, int(one.cause), int(one.stub.flags & (Flag.DIRECT | Flag.WRITTEN))),
        *(len(one.path), len(one.attributes), 0, len(attributes)),
        *(one.time_ns, one.keep_s, one.mode, one.uid, one.gid),
        *(one.inode, one.generation, 0, one.size, one.atime_ns, one.mtime_ns),
        *(one.stub.recipe, one.stub.digest, one.stub.covered, one.stub.local_bytes),
    )
    tail = one.path + attributes
    data = fields + struct.pack("<Q", checksum_of(fields, tail, seed)) + tail
    return data.ljust(-(-len(data) // 8) * 8, b"\0")


def deletion_of(uid: int, path: bytes, value: bytes = b"", *, recipe: int = 1) -> Deletion:
    """The removal of a file of a user, right now, that is kept for an hour."""
    stub = StubAttribute(recipe, bytes(16), 10, 0)
    attributes = ((b"user.x", value),) if value else ()
    return Deletion(
        *(Cause.REMOVED, time.time_ns(), 3600, path, 0o100644, uid, 8, 5, 6, 10, 0, 0),
        *(stub, attributes),
    )


def wanted_of(row: Mapping[str, Any], time_s: float = 0.0) -> DeletedFile:
    """An order for a deletion of a listing, at its place."""
    return DeletedFile(row["id"], os.fsencode(row["path"]), row["uid"], row["gid"], time_s)
