"""The objects of a store in RADOS: names, frames and recipes (docs/design/format.md, "RADOS").

The design is that of GRATE (seed 004), with the row of a chunk stored on the chunk's own object.
"""

import enum
import json
import struct
import uuid as uuidlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import xxhash

from dedupd_core import native
from dedupd_core.errors import Damaged, DamagedRecipe, UnknownFormat
from dedupd_core.format.checked_json import NOT_VALID, take_check, with_check
from dedupd_core.format.container import COMPRESSION_SAVING_MIN
from dedupd_core.format.volume_parameters import FINGERPRINTS

FORMAT = 1
STORE_OBJECT = "store"
VOLUMES_OBJECT = "volumes"
DAMAGE_OBJECT = "damage"
FLAG_KEY = "S"
TAG_PREFIX = "r."
FILE_PREFIX = "f."
OLD_PREFIX = "old."
SESSION_KEY = "session"
NO_VERSION = "-"
GARBAGE_SHARDS = 256

LEVEL = 3
"""How a chunk is compressed by default."""

FRAME_MAGIC = 0x4652_4444  # "DDRF" in the object
FRAME_BYTES = 32
RECIPE_MAGIC = 0x4D52_4444  # "DDRM" in the object
RECIPE_BYTES = 96
ENTRY_BYTES = 44
PART_BYTES_MAX = 4 << 20
PART_ENTRIES_MAX = (PART_BYTES_MAX - RECIPE_BYTES) // ENTRY_BYTES
CHUNK_BYTES_MAX = 64 << 20
"""The limit for a chunk's content: more than any chunking, and less than
``osd_max_object_size``."""

_FRAME = struct.Struct("<IBBHIIQ")
_RECIPE = struct.Struct("<IHHIIQQ16s16sQI")
_ENTRY = struct.Struct("<QI32s")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")

assert _FRAME.size + 8 == FRAME_BYTES
assert _RECIPE.size + 4 + 8 + 8 == RECIPE_BYTES
assert _ENTRY.size == ENTRY_BYTES


class ChunkState(enum.Enum):
    """The flag of a chunk's object, under the key ``S``."""

    INVALID = "I"
    """A reader found damage, or no reference was left. The next writer of this chunk checks its
    content, and stores it again if it is damaged."""
    VALID = "V"
    """Its content is stored: a writer only needs to add its reference."""
    PINNED = "P"
    """It has very many references; no more are counted, and it is never collected."""
    PINNED_DAMAGED = "Q"
    """PINNED and INVALID."""


class FileId(NamedTuple):
    """A file of a volume: inode and generation, which are never used for another file of it."""

    inode: int
    generation: int

    @classmethod
    def held(cls, ordinal: int) -> "FileId":
        """Return an id of no file, whose version keeps the chunks of an incoming stream."""
        return cls(0, ordinal)

    @property
    def is_held(self) -> bool:
        """True if this is no file, but an id of :meth:`held`."""
        return self.inode == 0

    @property
    def key(self) -> str:
        """The key in the table of files."""
        return f"{FILE_PREFIX}{self.text}"

    @property
    def text(self) -> str:
        return f"{self.inode:016x}.{self.generation:08x}"

    @classmethod
    def parse(cls, text: str) -> "FileId":
        """Return the recipe with this number. Raises Damaged."""
        inode, _, generation = text.partition(".")
        try:
            return cls(int(inode, 16), int(generation, 16))
        except ValueError as error:
            raise Damaged(f"file {text!r}: not the name of a file in a store") from error


# --- names ------------------------------------------------------------------------------------


def chunk_object(fingerprint: bytes) -> str:
    return f"c.{fingerprint.hex()}"


def recipe_object(version: str, part: int = 0) -> str:
    """Return the object of a file version's recipe; ``version`` is 32 hex digits, never reused."""
    return f"m.{version}" if part == 0 else f"m.{version}.{part}"


def files_object(volume: str, shard: int) -> str:
    return f"o.{volume}.{shard:04x}"


def intents_object(volume: str) -> str:
    return f"g.{volume}"


def lease_object(volume: str) -> str:
    return f"h.{volume}"


def garbage_object(shard: int) -> str:
    return f"z.{shard:02x}"


def garbage_shard(fingerprint: bytes) -> int:
    return fingerprint[0]


def file_shard(file: FileId, shards: int) -> int:
    """Return the number of the table of files, of a volume, that has a file."""
    packed = struct.pack("<QI", file.inode, file.generation)
    return xxhash.xxh3_64_intdigest(packed) % shards


# --- the value of a file ----------------------------------------------------------------------


class FileVersions(NamedTuple):
    """The value of a file's key: the version for readers, and the replaced version.

    Both are live until the commit is finished. ``old`` is ``-`` if the file had no version.
    """

    new: str
    old: str | None = None

    @property
    def value(self) -> str:
        return self.new if self.old is None else f"{self.new},{self.old}"

    @property
    def live(self) -> set[str]:
        return {one for one in self if one is not None and one != NO_VERSION}


def parse_versions(value: str) -> FileVersions:
    new, comma, old = value.partition(",")
    return FileVersions(new, old if comma else None)


# --- frames -----------------------------------------------------------------------------------


class Frame(NamedTuple):
    """The content of a chunk's object: a header, and the compressed payload."""

    codec: int
    stored_length: int
    raw_length: int
    checksum: int


def encode_frame(payload: bytes, codec: int, raw_length: int, fingerprint: bytes) -> bytes:
    """Encode a frame. ``codec`` as in a record: 0 raw, 1 zstd."""
    checksum = native.hashing.xxh3_64(payload)
    head = _FRAME.pack(FRAME_MAGIC, FORMAT, codec, 0, len(payload), raw_length, checksum)
    return head + _U64.pack(_frame_check(head, fingerprint)) + payload


def frame_of(raw: bytes, fingerprint: bytes, *, level: int = LEVEL) -> bytes:
    """Return the frame of a chunk, compressed if that saves enough."""
    encoded = native.codec.encode(
        raw,
        _U32.pack(0),
        _U32.pack(len(raw)),
        level=level,
        saving_min=COMPRESSION_SAVING_MIN,
        header_bytes=0,
        align_bytes=1,
    )
    (start,), (stored,) = _U32.unpack(encoded.starts), _U32.unpack(encoded.stored_lengths)
    payload = bytes(memoryview(encoded)[start : start + stored])
    return encode_frame(payload, encoded.codecs[0], len(raw), fingerprint)


def stored_in(data: bytes) -> tuple[int, int, bytes]:
    """Return codec, raw length and payload of a frame that :func:`decode_frame` has accepted."""
    _, _, codec, _, _, raw_length, _ = _FRAME.unpack_from(data)
    return codec, raw_length, data[FRAME_BYTES:]


def decode_frame(data: bytes, fingerprint: bytes) -> bytes:
    """Return the raw bytes of the chunk with this fingerprint. Raises Damaged.

    The header's check is seeded by the fingerprint, so the frame of another chunk is rejected.
    """
    where = f"chunk {fingerprint.hex()}"
    if len(data) < FRAME_BYTES:
        raise Damaged(f"{where}: its object is truncated")
    head = data[: _FRAME.size]
    (check,) = _U64.unpack_from(data, _FRAME.size)
    magic, version, codec, flags, stored, raw_length, checksum = _FRAME.unpack(head)
    if magic != FRAME_MAGIC or check != _frame_check(head, fingerprint):
        raise Damaged(f"{where}: its object has a wrong checksum, or belongs to another chunk")
    if version != FORMAT or flags:
        raise UnknownFormat.of(where, "frame format", version, FORMAT)
    if len(data) != FRAME_BYTES + stored or raw_length > CHUNK_BYTES_MAX:
        raise Damaged(
            f"{where}: its object has {len(data)} bytes, but its header states another number"
        )
    try:
        return native.codec.decode(
            memoryview(data)[FRAME_BYTES:], codec, raw_length, checksum, None
        )
    except (native.codec.CorruptPayload, ValueError) as error:
        raise Damaged(f"{where}: {error}") from error


def _frame_check(head: bytes, fingerprint: bytes) -> int:
    (seed,) = _U64.unpack_from(fingerprint)
    return native.hashing.xxh3_64(head, seed)


# --- recipes ----------------------------------------------------------------------------------


class ChunkEntry(NamedTuple):
    """A chunk of a file. The gap between two entries is zeros."""

    offset: int
    length: int
    fingerprint: bytes


@dataclass(frozen=True, slots=True)
class FileRecipe:
    """All chunks of one version of a file, by offset. ``length`` is that of the file."""

    version: str
    volume: str
    file: FileId
    length: int
    entries: Sequence[ChunkEntry]

    @property
    def fingerprints(self) -> list[bytes]:
        """Each fingerprint once, in the order of the file."""
        return list(dict.fromkeys(entry.fingerprint for entry in self.entries))


def parts_of(recipe: FileRecipe) -> int:
    return max(1, -(-len(recipe.entries) // PART_ENTRIES_MAX))


def encode_parts(recipe: FileRecipe) -> Iterator[bytes]:
    """Yield the contents of the recipe's objects, from part 0 on."""
    parts = parts_of(recipe)
    for part in range(parts):
        entries = recipe.entries[part * PART_ENTRIES_MAX : (part + 1) * PART_ENTRIES_MAX]
        body = b"".join(_ENTRY.pack(*entry) for entry in entries)
        head = _RECIPE.pack(
            RECIPE_MAGIC,
            FORMAT,
            0,
            part,
            parts,
            len(entries),
            recipe.length,
            bytes.fromhex(recipe.version),
            bytes.fromhex(recipe.volume),
            recipe.file.inode,
            recipe.file.generation,
        )
        head += bytes(4) + _U64.pack(native.hashing.xxh3_64(body))
        yield head + _U64.pack(native.hashing.xxh3_64(head)) + body


class RecipePart(NamedTuple):
    """One object of a recipe, decoded."""

    part: int
    parts: int
    recipe: FileRecipe


def decode_part(data: bytes, version: str, part: int) -> RecipePart:
    """Raises DamagedRecipe, UnknownFormat."""
    where = f"recipe {recipe_object(version, part)}"
    if len(data) < RECIPE_BYTES:
        raise DamagedRecipe(f"{where}: its object is truncated")
    magic, found_format, _, found, parts, count, length, mid, volume, inode, generation = (
        _RECIPE.unpack_from(data)
    )
    body_checksum, checksum = struct.unpack_from("<QQ", data, RECIPE_BYTES - 16)
    if magic != RECIPE_MAGIC or checksum != native.hashing.xxh3_64(data[: RECIPE_BYTES - 8]):
        raise DamagedRecipe(f"{where}: its object has a wrong checksum, or is not a recipe")
    if found_format != FORMAT:
        raise UnknownFormat.of(where, "format", found_format, FORMAT)
    body = memoryview(data)[RECIPE_BYTES:]
    if mid.hex() != version or found != part or not part < parts:
        raise DamagedRecipe(f"{where}: its object is part {found} of another recipe")
    if len(body) != count * ENTRY_BYTES or body_checksum != native.hashing.xxh3_64(body):
        raise DamagedRecipe(f"{where}: its entries have a wrong checksum")
    entries = [ChunkEntry(*row) for row in _ENTRY.iter_unpack(body)]
    return RecipePart(
        part,
        parts,
        FileRecipe(version, volume.hex(), FileId(inode, generation), length, entries),
    )


def join_parts(parts: Sequence[RecipePart]) -> FileRecipe:
    """Join all parts of a recipe, in order. Raises DamagedRecipe if they do not match."""
    first = parts[0].recipe
    entries = [entry for part in parts for entry in part.recipe.entries]
    end = 0
    for entry in entries:
        if entry.offset < end or not entry.length:
            raise DamagedRecipe(f"recipe m.{first.version}: its chunks overlap")
        end = entry.offset + entry.length
    if end > first.length or len(parts) != parts[0].parts:
        raise DamagedRecipe(f"recipe m.{first.version}: the lengths of its chunks do not add up")
    return FileRecipe(first.version, first.volume, first.file, first.length, entries)


# --- the store and its volumes ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoreParameters:
    """The content of the object ``store``, written once, when the store is created."""

    uuid: str
    fingerprint: str
    format: int = FORMAT

    def to_json(self) -> bytes:
        return json.dumps(with_check(asdict(self)), sort_keys=True).encode()

    @classmethod
    def from_json(cls, data: bytes, where: str) -> "StoreParameters":
        """Raises Damaged, UnknownFormat."""
        fields = _checked(data, where)
        if fields["fingerprint"] not in FINGERPRINTS:
            raise Damaged(f"{where}: fingerprint {fields['fingerprint']!r}")
        uuidlib.UUID(fields["uuid"])
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class VolumeEntry:
    """A volume of the store: the number of its tables of files, and its place, for people."""

    host: str
    path: str
    shards: int
    format: int = FORMAT

    def to_json(self) -> bytes:
        return json.dumps(with_check(asdict(self)), sort_keys=True).encode()

    @classmethod
    def from_json(cls, data: bytes, where: str) -> "VolumeEntry":
        """Raises Damaged, UnknownFormat."""
        entry = cls(**_checked(data, where))
        if not 0 < entry.shards <= 1 << 16:
            raise Damaged(f"{where}: {entry.shards} tables of files")
        return entry


def _checked(data: bytes, where: str) -> dict[str, Any]:
    try:
        fields: dict[str, Any] = json.loads(data)
        if fields["format"] != FORMAT:
            raise UnknownFormat.of(where, "format", fields["format"], FORMAT)
        take_check(fields)
    except NOT_VALID as error:
        raise Damaged(f"{where}: not valid ({error})") from error
    return fields


def tag_key(version: str) -> str:
    """Return the key of a file version's reference in a chunk's object."""
    return f"{TAG_PREFIX}{version}"
