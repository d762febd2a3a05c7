"""The stream of a volume that is sent (docs/design/format.md, "Stream")."""

import enum
import json
import struct
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dedupd_core import native
from dedupd_core.errors import Damaged, UnknownFormat
from dedupd_core.format.container import STANDALONE

FORMAT = 1
MAGIC = 0x4653_4444  # "DDSF" on the wire
HEADER_BYTES = 32
PAYLOAD_BYTES_MAX = 16 << 20
"""The limit for one frame: a larger length counts as damage, and is not read."""
TREE_BYTES = 256 << 10
"""The amount of nodes that is collected for one frame."""

_HEADER = struct.Struct("<IBBHIIII")
_U64 = struct.Struct("<Q")
_KNOWN = struct.Struct("<32sI")
_RECIPE = struct.Struct("<IB3x16s")
_ROW = struct.Struct("<IQ")
PATH_BYTES_MAX = 0xFFFF
"""The limit for a node; a longer path cannot be sent."""

_NODE = struct.Struct("<BxHHHIIIIIQQQqq")
_ATTRIBUTE = struct.Struct("<HI")

FINGERPRINT_BYTES = 32


class FrameKind(enum.IntEnum):
    """The contents of a frame."""

    BEGIN = 1
    CHUNK = 2
    KNOWN = 3
    RECIPE = 4
    TREE = 5
    END = 6
    OFFER = 7
    ANSWER = 8
    HELLO = 9
    DONE = 10


_KINDS = frozenset(FrameKind)
_TEXTS: dict[FrameKind, dict[str, type]] = {
    FrameKind.BEGIN: {
        "stream": str,
        "volume": str,
        "fingerprint": str,
        "since": str,
        "resumes": str,
        "chunks": int,
        "negotiates": bool,
        "moment_ns": int,
    },
    FrameKind.END: {"stream": str, "chunks": int, "recipes": int, "nodes": int},
    FrameKind.HELLO: {"hello": str, "point": str},
    FrameKind.DONE: {"point": str},
}
"""The fields of each text frame, besides its format."""
_UUIDS = ("stream", "hello")
_NUMBERS_END = 1 << 63


class Frame(NamedTuple):
    """A frame. ``payload`` is as stored: by ``codec``, of ``raw_length`` bytes."""

    kind: FrameKind
    codec: int
    raw_length: int
    payload: bytes

    @property
    def stored_length(self) -> int:
        return len(self.payload)

    @property
    def fingerprint(self) -> bytes:
        """The fingerprint of the chunk, in a frame with a chunk."""
        return self.payload[:FINGERPRINT_BYTES]

    @property
    def stored(self) -> bytes:
        """The payload of the record, in a frame with a chunk."""
        return self.payload[FINGERPRINT_BYTES:]


class FrameHead(NamedTuple):
    """The header of a frame."""

    kind: int
    codec: int
    sequence: int
    raw_length: int
    stored_length: int
    checksum: int


class NodeFlag(enum.IntFlag):
    """Properties of a node's content."""

    SAME = 1
    """All of it is unchanged since the state that the stream builds on."""
    RECIPE = 2
    """It is a file with the content of ``recipe``."""
    LINKED = 4
    """It has several names: all nodes of this inode are one."""
    KEPT = 8
    """It could not be sent: the receiver keeps its own, if any."""


@dataclass(frozen=True, slots=True)
class StreamNode:
    """A node of the tree that is sent; ``path`` is empty for the tree itself."""

    path: bytes
    flags: NodeFlag
    mode: int
    uid: int
    gid: int
    device: int
    inode: int
    size: int
    atime_ns: int
    mtime_ns: int
    recipe: int = 0
    target: bytes = b""
    attributes: tuple[tuple[bytes, bytes], ...] = ()


def encode_frame(frame: Frame, sequence: int, seed: int) -> bytes:
    """Encode a frame. ``seed``: xxh3 of the stream's id; 0 for the first frame each way."""
    head = _HEADER.pack(
        MAGIC, frame.kind, frame.codec, 0, sequence, frame.raw_length, frame.stored_length, 0
    )
    return b"".join((head, _U64.pack(checksum_of(head, frame.payload, seed)), frame.payload))


def checksum_of(head: bytes, payload: bytes, seed: int) -> int:
    """Return the checksum of a header and its payload."""
    return native.hashing.xxh3_64(head, native.hashing.xxh3_64(payload, seed))


def decode_head(data: bytes, where: str) -> FrameHead:
    """Decode the header of a frame. Raises Damaged if no frame starts here."""
    if len(data) != HEADER_BYTES:
        raise Damaged(f"{where}: the stream ends within a frame")
    magic, kind, codec, flags, sequence, raw, stored, reserved = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise Damaged(f"{where}: not a frame of a dedupd stream")
    if flags or reserved or kind not in _KINDS:
        raise UnknownFormat(f"{where}: a frame of the unknown kind {kind}")
    if codec not in STANDALONE:  # a payload that depends on another record is never sent
        raise UnknownFormat(f"{where}: a frame of the unknown codec {codec}")
    if max(raw, stored) > PAYLOAD_BYTES_MAX:
        raise Damaged(f"{where}: a frame of {max(raw, stored)} bytes, which is too large")
    return FrameHead(kind, codec, sequence, raw, stored, _U64.unpack_from(data, 24)[0])


def decode_frame(head: FrameHead, data: bytes, payload: bytes, seed: int, where: str) -> Frame:
    """Decode the frame with this header (``data``) and payload. Raises Damaged."""
    if len(payload) != head.stored_length:
        raise Damaged(f"{where}: the stream ends within a frame")
    if checksum_of(data[:24], payload, seed) != head.checksum:
        raise Damaged(f"{where}: frame {head.sequence} has a wrong checksum")
    return Frame(FrameKind(head.kind), head.codec, head.raw_length, payload)


def told(kind: FrameKind, fields: dict[str, Any]) -> Frame:
    """Return a text frame."""
    data = json.dumps(fields, sort_keys=True).encode()
    return Frame(kind, 0, len(data), data)


_SEND_AGAIN = "send the volume again, by `dedupd send` of this version"


def fields_of(frame: Frame, kind: FrameKind, where: str) -> dict[str, Any]:
    """Decode a text frame of this kind, and check that all fields are present and valid. Raises
    Damaged, UnknownFormat."""
    if frame.kind is not kind:
        raise Damaged(f"{where}: a frame of kind {frame.kind.name} instead of {kind.name}")
    try:
        fields: dict[str, Any] = json.loads(frame.payload)
        version = fields["format"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Damaged(f"{where}: not a valid frame of text ({error})") from error
    if version != FORMAT:
        raise UnknownFormat.of(where, "stream format", version, FORMAT, _SEND_AGAIN)
    try:
        for name, type_ in _TEXTS[kind].items():
            _require_value(name, type_, fields[name])
    except (ValueError, KeyError) as error:
        raise Damaged(
            f"{where}: not a valid frame of kind {kind.name} ({error}); {_SEND_AGAIN}"
        ) from error
    return fields


def _require_value(name: str, type_: type, value: object) -> None:
    """Raise ValueError for a value that neither a sender nor a receiver writes."""
    is_number = type(value) is int and 0 <= value < _NUMBERS_END
    if type(value) is not type_ or (type_ is int and not is_number):
        raise ValueError(f"{name} is {value!r:.40}")
    if name in _UUIDS:
        uuid.UUID(str(value))


def encode_known(rows: Sequence[tuple[bytes, int]]) -> bytes:
    """Encode (fingerprint, raw length) of chunks that the receiver has."""
    return b"".join(_KNOWN.pack(*row) for row in rows)


def decode_known(data: bytes, where: str) -> list[tuple[bytes, int]]:
    """Return the recipe with this number. Raises Damaged."""
    if len(data) % _KNOWN.size:
        raise Damaged(f"{where}: an incomplete list of chunks")
    return list(_KNOWN.iter_unpack(data))


class RecipePart(NamedTuple):
    """Rows of a recipe: (chunk number + 1, or 0 for a hole; length). ``digest`` is that of all rows
    up to this part: :func:`chained`."""

    recipe: int
    is_last: bool
    digest: bytes
    rows: list[tuple[int, int]]


def encode_recipe(part: RecipePart) -> bytes:
    head = _RECIPE.pack(part.recipe, part.is_last, part.digest)
    return head + b"".join(_ROW.pack(*row) for row in part.rows)


def decode_recipe(data: bytes, where: str) -> RecipePart:
    """Return the recipe with this number. Raises Damaged."""
    if len(data) < _RECIPE.size or (len(data) - _RECIPE.size) % _ROW.size:
        raise Damaged(f"{where}: a truncated recipe")
    recipe, is_last, digest = _RECIPE.unpack_from(data)
    return RecipePart(recipe, bool(is_last), digest, list(_ROW.iter_unpack(data[_RECIPE.size :])))


def chained(digest: bytes, rows: Sequence[tuple[bytes, int]]) -> bytes:
    """Return the digest of a recipe after more (fingerprint, length) rows; the first is empty."""
    parts = [digest]
    for fingerprint, length in rows:
        parts += (fingerprint, _U64.pack(length))
    return native.hashing.fingerprint(b"".join(parts))[:16]


def encode_node(node: StreamNode) -> bytes:
    attributes = encode_attributes(node.attributes)
    head = _NODE.pack(
        *(node.flags, len(node.path), len(node.target), len(node.attributes), len(attributes)),
        *(node.mode, node.uid, node.gid, node.recipe, node.device, node.inode, node.size),
        *(node.atime_ns, node.mtime_ns),
    )
    return head + node.path + node.target + attributes


def decode_nodes(data: bytes, where: str) -> Iterator[StreamNode]:
    """Return the recipe with this number. Raises Damaged."""
    at = 0
    while at < len(data):
        try:
            flags, paths, targets, count, size, *numbers = _NODE.unpack_from(data, at)
            at += _NODE.size
            end = at + paths + targets + size
            if end > len(data):
                raise ValueError("it is truncated")
            path, target = data[at : at + paths], data[at + paths : at + paths + targets]
            attributes = tuple(decode_attributes(data[at + paths + targets : end], count))
            _require_names(path, target, [name for name, _ in attributes])
        except (struct.error, ValueError) as error:
            raise Damaged(f"{where}: not a valid node ({error})") from error
        at = end
        mode, uid, gid, recipe, device, inode, length, atime_ns, mtime_ns = numbers
        yield StreamNode(
            *(path, NodeFlag(flags), mode, uid, gid, device, inode, length, atime_ns, mtime_ns),
            *(recipe, target, attributes),
        )


def _require_names(path: bytes, target: bytes, attributes: Sequence[bytes]) -> None:
    """Raise ValueError for names that no file system has: a stream may come from any source."""
    parts = path.split(b"/") if path else []
    if b"\0" in path or any(part in (b"", b".", b"..") or len(part) > 255 for part in parts):
        raise ValueError("its path is empty, or leaves the tree")
    if b"\0" in target:
        raise ValueError("its link has no target")
    if any(not 0 < len(name) <= 255 or b"\0" in name for name in attributes):
        raise ValueError("the name of an attribute is not valid")


def encode_attributes(attributes: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Encode extended attributes, as (name, value)."""
    return b"".join(
        _ATTRIBUTE.pack(len(name), len(value)) + name + value for name, value in attributes
    )


def decode_attributes(data: bytes, count: int) -> Iterator[tuple[bytes, bytes]]:
    """Raises ValueError, struct.error."""
    at = 0
    for _ in range(count):
        name, value = _ATTRIBUTE.unpack_from(data, at)
        at += _ATTRIBUTE.size
        yield data[at : at + name], data[at + name : at + name + value]
        at += name + value
    if at != len(data):
        raise ValueError("the length of its attributes is wrong")
