"""Logs of deletions: what removals, cuts and overwrites took (docs/format.md, "Deletions")."""

import enum
import struct
from collections.abc import Iterator
from typing import NamedTuple

from dedupd import native
from dedupd.errors import Damaged, UnknownFormat
from dedupd.format.sealed_header import seal, unseal
from dedupd.format.stream import checksum_of, decode_attributes, encode_attributes
from dedupd.format.stub import Flag, StubAttribute
from dedupd.units import align_up

FORMAT = 1
LOG_MAGIC = b"DEDUPDEL"
LOG_HEADER_BYTES = 64
MAGIC = b"DDDL"
HEAD_BYTES = 128
PATH_BYTES_MAX = 0xFFFF
ALIGN_BYTES = 8
"""A deletion begins on a multiple of this, so a reader finds the next one behind damage."""

_LOG = struct.Struct("<8sH2xI16sQ16x")
_HEAD = struct.Struct("<4sBBHHHIQIIIIQIIQqqQ16sQQ")
_U64 = struct.Struct("<Q")
_SEED = struct.Struct("<16sI")

assert _LOG.size + 8 == LOG_HEADER_BYTES
assert _HEAD.size + 8 == HEAD_BYTES


class Cause(enum.IntEnum):
    """What took the content of a stub."""

    REMOVED = 1
    """Its last name was removed."""
    REPLACED = 2
    """Another file was renamed over its last name."""
    CUT = 3
    """It was cut shorter."""
    OVERWRITTEN = 4
    """It was written to, for the first time since it was optimized."""


class LogHeader(NamedTuple):
    """``number`` is the one in the name of the log."""

    number: int
    volume_id: bytes
    created_ns: int


class Deletion(NamedTuple):
    """A file as the store has it, with all that belonged to it, just before that was lost.

    ``path`` is relative to the tree; ``keep_s`` says how long it is kept, from ``time_ns`` on.
    ``stub`` has the recipe, and no block of its own.
    """

    cause: Cause
    time_ns: int
    keep_s: int
    path: bytes
    mode: int
    uid: int
    gid: int
    inode: int
    generation: int
    size: int
    atime_ns: int
    mtime_ns: int
    stub: StubAttribute
    attributes: tuple[tuple[bytes, bytes], ...] = ()

    @property
    def has_path(self) -> bool:
        """Whether ``path`` is one: it is ``#`` and the inode's number if none was known."""
        return self.path != b"#%d" % self.inode

    @property
    def lost_own_blocks(self) -> bool:
        """Whether the file had blocks of its own, newer than the store, which are gone."""
        return bool(self.stub.local_bytes or self.stub.flags & Flag.WRITTEN)


def seed_of(volume_id: bytes, number: int) -> int:
    """Seed of the checksums of a log: a deletion of another one fails them."""
    return native.hashing.xxh3_64(_SEED.pack(volume_id, number))


def encode_header(header: LogHeader) -> bytes:
    return seal(_LOG.pack(LOG_MAGIC, FORMAT, header.number, header.volume_id, header.created_ns))


def decode_header(data: bytes, where: str) -> LogHeader:
    """Raises Damaged, UnknownFormat."""
    if len(data) < LOG_HEADER_BYTES:
        raise Damaged(f"{where}: cut short; no deletion in it can be had back")
    body = unseal(data, LOG_MAGIC)
    if body is None:
        raise Damaged(f"{where}: not a valid log of deletions")
    _, version, number, volume_id, created_ns = _LOG.unpack_from(body)
    if version != FORMAT:
        raise UnknownFormat.of(where, "log format", version, FORMAT)
    return LogHeader(number, volume_id, created_ns)


def encode_deletion(one: Deletion, seed: int) -> bytes:
    attributes = encode_attributes(one.attributes)
    head = _HEAD.pack(
        *(MAGIC, int(one.cause), int(one.stub.flags & (Flag.DIRECT | Flag.WRITTEN))),
        *(len(one.path), len(one.attributes), 0, len(attributes)),
        *(one.time_ns, one.keep_s, one.mode, one.uid, one.gid),
        *(one.inode, one.generation, 0, one.size, one.atime_ns, one.mtime_ns),
        *(one.stub.recipe, one.stub.digest, one.stub.covered, one.stub.local_bytes),
    )
    tail = one.path + attributes
    data = head + _U64.pack(checksum_of(head, tail, seed)) + tail
    return data.ljust(align_up(len(data), ALIGN_BYTES), b"\0")


def decode_deletion(data: bytes, at: int, seed: int) -> tuple[Deletion, int]:
    """The deletion that begins at ``at``, and where it ends. Raises Damaged."""
    try:
        magic, cause, flags, paths, count, _, size, *numbers = _HEAD.unpack_from(data, at)
        (checksum,) = _U64.unpack_from(data, at + _HEAD.size)
        start = at + HEAD_BYTES
        tail = data[start : start + paths + size]
        if magic != MAGIC or checksum != checksum_of(data[at : at + _HEAD.size], tail, seed):
            raise ValueError("its checksum fails")
        path = tail[:paths]
        if path.startswith(b"/") or b".." in path.split(b"/") or b"\0" in path:
            raise ValueError("its path leads out of the volume")
        attributes = tuple(decode_attributes(tail[paths:], count))
        time_ns, keep_s, mode, uid, gid, inode, generation, _, length, *rest = numbers
        atime_ns, mtime_ns, recipe, digest, covered, local = rest
        stub = StubAttribute(recipe, digest, covered, 0, Flag(flags), local)
        one = Deletion(
            *(Cause(cause), time_ns, keep_s, path, mode, uid, gid, inode, generation),
            *(length, atime_ns, mtime_ns, stub, attributes),
        )
    except (struct.error, ValueError) as error:
        raise Damaged(f"not a valid deletion ({error})") from error
    return one, align_up(start + len(tail), ALIGN_BYTES)


def deletions_in(data: bytes, seed: int) -> Iterator[tuple[int, Deletion]]:
    """(where it begins, deletion) of each that is sound, in the order of the log."""
    at = LOG_HEADER_BYTES
    while 0 <= at < len(data):
        try:
            one, end = decode_deletion(data, at, seed)
        except Damaged:
            at = _next_head(data, at + ALIGN_BYTES)
            continue
        yield at, one
        at = end


def _next_head(data: bytes, at: int) -> int:
    """Where a deletion may begin, at ``at`` or behind it; -1 where none does."""
    while (at := data.find(MAGIC, at)) >= 0 and at % ALIGN_BYTES:
        at += 1
    return at
