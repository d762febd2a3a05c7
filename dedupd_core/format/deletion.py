"""Logs of deletions by removal, truncation and overwriting (docs/design/format.md, "Deletions")."""

import enum
import struct
from collections.abc import Iterator
from typing import NamedTuple

from dedupd_core import native
from dedupd_core.errors import Damaged, UnknownFormat
from dedupd_core.format.sealed_header import seal, unseal
from dedupd_core.format.stream import checksum_of, decode_attributes, encode_attributes
from dedupd_core.format.stub import Flag, StubAttribute
from dedupd_core.units import align_up

FORMAT = 2
UNPROVEN_FORMAT = 1
"""Logs of this format have no secret seed, so users can compute each checksum in them."""
LOG_MAGIC = b"DEDUPDEL"
LOG_HEADER_BYTES = 64
MAGIC = b"DDDL"
HEAD_BYTES = 136
PATH_BYTES_MAX = 0xFFFF
ALIGN_BYTES = 8
"""A deletion starts on a multiple of this, so that a reader finds the next one after damage."""
NO_UID = 0xFFFF_FFFF
"""The id of no user."""
DELETION_BYTES_MAX = 1 << 20
"""The largest deletion, with its path and its attributes."""

_LOG = struct.Struct("<8sH2xI16sQQII")
_FIELDS = struct.Struct("<4sBBHHHIQIIIIQIIQqqQ16sQQ")
_U64 = struct.Struct("<Q")
_CHECKSUMS = struct.Struct("<QQ")
_ATTRIBUTE_HEAD_BYTES = 6
_UNPROVEN_SEED = struct.Struct("<16sI")
_TAIL_END = _FIELDS.size + _U64.size
"""The checksum of a head covers the fields up to here, and the checksum of the data after it."""

assert _LOG.size + 8 == LOG_HEADER_BYTES
assert _FIELDS.size + _CHECKSUMS.size == HEAD_BYTES


class Cause(enum.IntEnum):
    """The operation that removed the content of a stub."""

    REMOVED = 1
    """Its last name was removed."""
    REPLACED = 2
    """Another file was renamed over its last name."""
    CUT = 3
    """It was truncated."""
    OVERWRITTEN = 4
    """It was written to, for the first time since it was optimized."""


class LogHeader(NamedTuple):
    """The header of a log; ``number`` is that in its name.

    ``seed`` is random and secret: without it, a user can make no checksum of the log. A log without
    ``is_proven`` has the format whose seed users can compute. If ``uid`` is set, all deletions are
    of files of this user. Those before offset ``first`` are dropped.
    """

    number: int
    volume_id: bytes
    created_ns: int
    seed: int
    is_proven: bool = True
    uid: int | None = None
    first: int = LOG_HEADER_BYTES


class Deletion(NamedTuple):
    """The state of a file in the store just before it was lost, with all its attributes.

    ``path`` is relative to the tree. ``keep_s``: how long it is kept, starting at ``time_ns``.
    ``stub`` has the recipe, and no local block.
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
        """True if ``path`` is a path: without a known path, it is ``#`` and the inode's number."""
        return self.path != b"#%d" % self.inode

    @property
    def lost_own_blocks(self) -> bool:
        """True if the file had local blocks, newer than the store, which are lost."""
        return bool(self.stub.local_bytes or self.stub.flags & Flag.WRITTEN)


class LogContent(NamedTuple):
    """The valid deletions of a log, each with its offset, and the number of damaged bytes.

    An incomplete end of a log after a crash does not count as damage.
    """

    rows: list[tuple[int, Deletion]]
    lost_bytes: int


def encode_header(header: LogHeader) -> bytes:
    uid = NO_UID if header.uid is None else header.uid
    return seal(
        _LOG.pack(
            *(LOG_MAGIC, FORMAT, header.number, header.volume_id, header.created_ns),
            *(header.seed, uid, header.first),
        )
    )


def decode_header(data: bytes, where: str) -> LogHeader:
    """Raises Damaged, UnknownFormat."""
    if len(data) < LOG_HEADER_BYTES:
        raise Damaged(f"{where}: the header is incomplete; the deletions of this log are lost")
    body = unseal(data, LOG_MAGIC)
    if body is None:
        raise Damaged(f"{where}: the header is damaged; the deletions of this log are lost")
    _, version, number, volume_id, created_ns, seed, uid, first = _LOG.unpack_from(body)
    if version == UNPROVEN_FORMAT:
        seed = native.hashing.xxh3_64(_UNPROVEN_SEED.pack(volume_id, number))
        return LogHeader(number, volume_id, created_ns, seed, is_proven=False)
    if version != FORMAT:
        raise UnknownFormat.of(where, "log format", version, FORMAT)
    if not seed:
        raise Damaged(f"{where}: the header has no seed; the deletions of this log are lost")
    if first < LOG_HEADER_BYTES or first % ALIGN_BYTES:
        raise Damaged(f"{where}: the header is invalid; the deletions of this log are lost")
    owner = None if uid == NO_UID else uid
    return LogHeader(number, volume_id, created_ns, seed, uid=owner, first=first)


def encode_deletion(one: Deletion, seed: int, offset: int) -> bytes:
    """Encode a deletion; it is only valid at ``offset`` of the log with this ``seed``.

    Raises ValueError if it is too large, struct.error.
    """
    attributes = encode_attributes(one.attributes)
    fields = _FIELDS.pack(
        *(MAGIC, int(one.cause), int(one.stub.flags & (Flag.DIRECT | Flag.WRITTEN))),
        *(len(one.path), len(one.attributes), 0, len(attributes)),
        *(one.time_ns, one.keep_s, one.mode, one.uid, one.gid),
        *(one.inode, one.generation, 0, one.size, one.atime_ns, one.mtime_ns),
        *(one.stub.recipe, one.stub.digest, one.stub.covered, one.stub.local_bytes),
    )
    tail, place = one.path + attributes, _seed_at(seed, offset)
    head = fields + _U64.pack(native.hashing.xxh3_64(tail, place))
    data = head + _U64.pack(native.hashing.xxh3_64(head, place)) + tail
    if len(data) > DELETION_BYTES_MAX:
        raise ValueError(f"a deletion of {len(data)} bytes is too large")
    return data.ljust(align_up(len(data), ALIGN_BYTES), b"\0")


def encoded_bytes(one: Deletion) -> int:
    """Return the length of :func:`encode_deletion`."""
    attributes = sum(
        _ATTRIBUTE_HEAD_BYTES + len(name) + len(value) for name, value in one.attributes
    )
    return align_up(HEAD_BYTES + len(one.path) + attributes, ALIGN_BYTES)


def decode_deletion(data: bytes, at: int, header: LogHeader, base: int = 0) -> tuple[Deletion, int]:
    """Decode the deletion at ``at``; also return its end. Both are positions in ``data``, which
    starts at offset ``base`` of the log. Raises Damaged."""
    try:
        if not header.is_proven:
            return _decoded_unproven(data, at, header.seed)
        one, end = _decoded(data, at, _seed_at(header.seed, base + at))
        if header.uid not in (None, one.uid):
            raise ValueError("the owner of its file is not the user of this log")
        return one, end
    except (struct.error, ValueError) as error:
        raise Damaged(f"not a valid deletion ({error})") from error


def deletion_bytes(head: bytes, header: LogHeader, offset: int) -> int | None:
    """Return the length of the deletion of a proven log that starts at ``offset`` with ``head``;
    None if no deletion was written there."""
    if len(head) < HEAD_BYTES or not head.startswith(MAGIC):
        return None
    (checksum,) = _U64.unpack_from(head, _TAIL_END)
    if checksum != native.hashing.xxh3_64(head[:_TAIL_END], _seed_at(header.seed, offset)):
        return None
    fields = _FIELDS.unpack_from(head)
    return align_up(HEAD_BYTES + fields[3] + fields[6], ALIGN_BYTES)


def spans(data: bytes, header: LogHeader, base: int) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of each deletion of a log, in order, as offsets in the log.

    ``data`` starts at offset ``base``, where a deletion starts; the last one may be incomplete.
    After damage, this searches for the next deletion. Its head has a separate checksum, which
    depends on the secret seed and on the offset, so no bytes of users can be taken for a head. A
    log that is not proven is only read in order, up to the first damage.
    """
    at = 0
    while 0 <= at < len(data):
        end = _end(data, at, header, base)
        if end is not None:
            yield base + at, base + end
            at = end
        elif header.is_proven:
            at = _next_magic(data, at + ALIGN_BYTES)
        else:
            return


def read_log(data: bytes, header: LogHeader) -> LogContent:
    """Decode a log; ``data`` is the entire log, with its header."""
    rows, lost_bytes, last = list[tuple[int, Deletion]](), 0, header.first
    for start, end in spans(data[header.first :], header, header.first):
        lost_bytes += start - last
        last = end
        try:
            rows.append((start, decode_deletion(data, start, header)[0]))
        except Damaged:
            lost_bytes += end - start if end <= len(data) else 0
    rest = data[last:]
    if len(rest) >= HEAD_BYTES and any(rest):  # more than a crash leaves
        lost_bytes += len(rest)
    return LogContent(rows, lost_bytes)


def _seed_at(seed: int, offset: int) -> int:
    return native.hashing.xxh3_64(_U64.pack(offset), seed)


def _end(data: bytes, at: int, header: LogHeader, base: int) -> int | None:
    """Return the end of the deletion at ``at``; None if no deletion starts there."""
    if header.is_proven:
        length = deletion_bytes(data[at : at + HEAD_BYTES], header, base + at)
        return None if length is None else at + length
    try:
        return decode_deletion(data, at, header, base)[1]
    except Damaged:
        return None


def _decoded(data: bytes, at: int, place: int) -> tuple[Deletion, int]:
    head, start = data[at : at + _TAIL_END], at + HEAD_BYTES
    tail_sum, head_sum = _CHECKSUMS.unpack_from(data, at + _FIELDS.size)
    if not head.startswith(MAGIC) or head_sum != native.hashing.xxh3_64(head, place):
        raise ValueError("the checksum of its header is wrong")
    tail = _tail(data, head, start)
    if tail_sum != native.hashing.xxh3_64(tail, place):
        raise ValueError("the checksum of its path and attributes is wrong")
    return _deletion(head, tail), align_up(start + len(tail), ALIGN_BYTES)


def _decoded_unproven(data: bytes, at: int, seed: int) -> tuple[Deletion, int]:
    head, start = data[at : at + _FIELDS.size], at + _FIELDS.size + _U64.size
    (checksum,) = _U64.unpack_from(data, at + _FIELDS.size)
    tail = _tail(data, head, start)
    if not head.startswith(MAGIC) or checksum != checksum_of(head, tail, seed):
        raise ValueError("its checksum is wrong")
    return _deletion(head, tail), align_up(start + len(tail), ALIGN_BYTES)


def _tail(data: bytes, head: bytes, start: int) -> bytes:
    """Return path and attributes, which start at ``start``."""
    fields = _FIELDS.unpack_from(head)
    return data[start : start + fields[3] + fields[6]]


def _deletion(head: bytes, tail: bytes) -> Deletion:
    """Raises ValueError, struct.error."""
    fields = _FIELDS.unpack_from(head)
    path = tail[: fields[3]]
    if path.startswith(b"/") or b".." in path.split(b"/") or b"\0" in path:
        raise ValueError("its path leads out of the volume")
    return _made(head, path, tuple(decode_attributes(tail[fields[3] :], fields[4])))


def _made(head: bytes, path: bytes, attributes: tuple[tuple[bytes, bytes], ...]) -> Deletion:
    _, cause, flags, _, _, _, _, *numbers = _FIELDS.unpack_from(head)
    time_ns, keep_s, mode, uid, gid, inode, generation, _, length, *rest = numbers
    atime_ns, mtime_ns, recipe, digest, covered, local = rest
    stub = StubAttribute(recipe, digest, covered, 0, Flag(flags), local)
    return Deletion(
        *(Cause(cause), time_ns, keep_s, path, mode, uid, gid, inode, generation),
        *(length, atime_ns, mtime_ns, stub, attributes),
    )


def _next_magic(data: bytes, at: int) -> int:
    """Return the next possible start of a deletion at or after ``at``; -1 if there is none."""
    while (at := data.find(MAGIC, at)) >= 0 and at % ALIGN_BYTES:
        at += 1
    return at
