"""Containers: append-only files of self-describing records (docs/design/format.md, "Container")."""

import enum
import struct
from dataclasses import dataclass

import xxhash

from dedupd_core.errors import DamagedContainer, UnknownFormat
from dedupd_core.format import domain as domains
from dedupd_core.format.domain import PartitionKey
from dedupd_core.format.sealed_header import seal, unseal

FORMAT = 2
FORMAT_PUBLIC = 1
"""Older containers: their seed is computed from numbers that users can find out."""
FORMAT_APART = 3
"""Containers, and their tables, of a domain other than the volume's: a program without support for
domains must not append to them."""

FILE_MAGIC = b"DEDUPCNT"
FILE_HEADER_BYTES = 128
RECORD_MAGIC = 0x4352_4444  # "DDRC" on disk
RECORD_HEADER_BYTES = 80
ALIGN_BYTES = 8
"""Records start on multiples of this, so that a scan can find the next one after damage."""

CONTAINER_BYTES_MAX = 1 << 30

COMPRESSION_SAVING_MIN = 0.05
"""A payload that compression shrinks by less than this share is stored uncompressed."""

PUNCHES_MAX = 255
"""The limit per generation: after this, only a compaction frees space in the container."""

ORDINALS_MAX = 2 * CONTAINER_BYTES_MAX // RECORD_HEADER_BYTES
"""The limit per container: all records that fit into it before a compaction, and after it."""

_FILE = struct.Struct("<8sHBBIII16sQQQ16s")
_PLACE_OF_SEEDS = slice(48, 64)
COLLECTED_MAX = (1 << 16) - 1
"""The largest :attr:`Record.collected`."""

EMPTY_CHECKSUM = xxhash.xxh3_64_intdigest(b"")
"""The checksum of a record without a payload."""

_RECORD = struct.Struct("<IIBBHIII32sQQ")
_U64 = struct.Struct("<Q")

assert _RECORD.size + 8 == RECORD_HEADER_BYTES


class Kind(enum.IntEnum):
    """Kinds of containers, by the records in them."""

    CHUNKS = 1
    RECIPES = 2
    CHUNK_COPIES = 3
    """Second copies of records of ``CHUNKS``; each is a ``COPY`` of its ``target``."""
    RECIPE_COPIES = 4
    """Second copies of records of ``RECIPES``."""


_KINDS = frozenset(Kind)

COPIES_OF = {Kind.CHUNKS: Kind.CHUNK_COPIES, Kind.RECIPES: Kind.RECIPE_COPIES}
"""The kind of the second copies of each kind."""


class RecordKind(enum.IntEnum):
    """Kinds of records."""

    DATA = 0
    FORWARD = 1
    """No payload: the chunk was merged into ``target``."""
    TOMBSTONE = 2
    """No payload: the chunk was garbage. Represents ``target`` ordinals in a row, its own first."""
    COPY = 3
    """A second copy of the record ``target``."""


class Codec(enum.IntEnum):
    """The encoding of a payload."""

    RAW = 0
    ZSTD = 1
    DELTA = 2
    """Compressed with the raw bytes of another record, its base, which ``target`` names."""
    DICTIONARY = 3
    """Compressed with the dictionary in another record, which ``target`` names."""


LEANING = frozenset((Codec.DELTA, Codec.DICTIONARY))
"""Codecs of records that depend on the bytes of another record."""

STANDALONE = frozenset(Codec) - LEANING
"""Codecs of records that can be decoded without any other record."""


@dataclass(frozen=True, slots=True)
class FileHeader:
    """The first 128 bytes of a container.

    ``punches``: the number of punches in this generation. ``seed``: the secret seed of all
    checksums of this generation; 0 if it is :func:`public_seed`. ``domain``: the files that may
    share its records (:mod:`dedupd_core.format.domain`).
    """

    kind: Kind
    container: int
    generation: int
    partition: int
    volume_id: bytes
    created_ns: int
    punches: int = 0
    seed: int = 0
    domain: bytes = domains.VOLUME

    @property
    def partition_key(self) -> PartitionKey:
        """The partition and its domain."""
        return PartitionKey(self.domain, self.partition)

    @property
    def is_apart(self) -> bool:
        """True if its domain is not the volume's."""
        return self.domain != domains.VOLUME

    @property
    def is_forgeable(self) -> bool:
        """True if users can compute the seed, and therefore forge record headers."""
        return self.seed == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The header of one record. ``hint``: the raw length of the chunk that followed, or 0;
    ``checksum``: that of the payload."""

    ordinal: int = 0
    kind: int
    codec: int
    raw_length: int = 0
    stored_length: int = 0
    hint: int = 0
    fingerprint: bytes
    target: int = 0
    checksum: int
    collected: int = 0
    """The number of collected records right before it, which left no other trace."""

    @property
    def base(self) -> int:
        """The id of the record that this one depends on; 0 if it depends on none."""
        leans = self.codec in LEANING and self.kind == RecordKind.DATA
        return self.target if leans else 0

    @property
    def before(self) -> "Record | None":
        """The implied tombstone for the records that were collected before it."""
        return tombstone(self.ordinal - self.collected, self.collected) if self.collected else None

    @property
    def next_ordinal(self) -> int:
        """The ordinal of the next record: one more, except after a run of tombstones."""
        return self.ordinal + (max(1, self.target) if self.kind == RecordKind.TOMBSTONE else 1)


def tombstone(ordinal: int, count: int, fingerprint: bytes = bytes(32)) -> Record:
    """Return the record of ``count`` collected ones, starting with ``ordinal``."""
    return Record(
        ordinal=ordinal,
        kind=RecordKind.TOMBSTONE,
        codec=Codec.RAW,
        fingerprint=fingerprint,
        target=count,
        checksum=EMPTY_CHECKSUM,
    )


def seed_of(header: FileHeader) -> int:
    """Return the seed of all checksums in the container with this header."""
    return header.seed or public_seed(header.volume_id, header.container, header.generation)


def belongs_to(header: FileHeader, kind: Kind, number: int, volume_id: bytes) -> bool:
    """Return whether a header is that of a volume's container ``number`` of a kind."""
    return (header.kind, header.container, header.volume_id) == (kind, number, volume_id)


def public_seed(volume_id: bytes, container: int, generation: int) -> int:
    """Return the seed of a container without a seed of its own.

    Records of other containers do not match it. But a user can compute it, and forge records.
    """
    return xxhash.xxh3_64_intdigest(volume_id + struct.pack("<II", container, generation))


def seeds_in(data: bytes) -> tuple[int, ...]:
    """Return both copies of the seed in the first bytes of a container with a damaged header."""
    stored = data[_PLACE_OF_SEEDS].ljust(2 * _U64.size, b"\0")
    return tuple(seed for (seed,) in _U64.iter_unpack(stored) if seed)


def is_public(data: bytes) -> bool:
    """Return whether a container has no seed of its own, by the start of its damaged header."""
    return data[8:10] == FORMAT_PUBLIC.to_bytes(2, "little") and not seeds_in(data)


def encode_file_header(header: FileHeader) -> bytes:
    body = _FILE.pack(
        FILE_MAGIC,
        FORMAT_APART if header.is_apart else FORMAT,
        header.kind,
        header.punches,
        header.container,
        header.generation,
        header.partition,
        header.volume_id,
        header.created_ns,
        header.seed,
        header.seed,
        header.domain,
    )
    return seal(body, FILE_HEADER_BYTES)


def decode_file_header(data: bytes, where: str) -> FileHeader:
    """Raises DamagedContainer, or UnknownFormat for a file of another version."""
    if len(data) < FILE_HEADER_BYTES or data[:8] != FILE_MAGIC:
        raise DamagedContainer(f"{where}: has no container header; run `dedupd run scrub`")
    body = unseal(data, FILE_MAGIC, FILE_HEADER_BYTES)
    if body is None:
        raise DamagedContainer(
            f"{where}: the container header has a wrong checksum; run `dedupd run scrub`"
        )
    _, version, kind, punches, *fields = _FILE.unpack_from(body)
    container, generation, partition, volume_id, created_ns, seed, _, domain = fields
    if version not in (FORMAT_PUBLIC, FORMAT, FORMAT_APART):
        raise UnknownFormat.of(where, "container format", version, FORMAT)
    if kind not in _KINDS:
        raise UnknownFormat(f"{where}: a container of the unknown kind {kind}")
    return FileHeader(
        *(Kind(kind), container, generation, partition, volume_id, created_ns, punches),
        seed=0 if version == FORMAT_PUBLIC else seed,
        domain=domain if version == FORMAT_APART else domains.VOLUME,
    )


def record_size(stored_length: int) -> int:
    """Return the space for a record: header, payload, padding."""
    return (RECORD_HEADER_BYTES + stored_length + ALIGN_BYTES - 1) & -ALIGN_BYTES


def pack_record_into(buffer: memoryview, offset: int, record: Record, seed: int) -> None:
    """Write a record's header at ``offset`` of ``buffer``."""
    _RECORD.pack_into(
        buffer,
        offset,
        RECORD_MAGIC,
        record.ordinal,
        record.kind,
        record.codec,
        record.collected,
        record.raw_length,
        record.stored_length,
        record.hint,
        record.fingerprint,
        record.target,
        record.checksum,
    )
    body_end = offset + _RECORD.size
    _U64.pack_into(buffer, body_end, xxhash.xxh3_64_intdigest(buffer[offset:body_end], seed=seed))


def unpack_record(data: bytes | memoryview, offset: int, seed: int) -> Record | None:
    """Decode the record header at ``offset`` of ``data``; None if there is no valid one."""
    if offset + RECORD_HEADER_BYTES > len(data):
        return None
    fields = _RECORD.unpack_from(data, offset)
    if fields[0] != RECORD_MAGIC:
        return None
    body_end = offset + _RECORD.size
    expected = _U64.unpack_from(data, body_end)[0]
    if xxhash.xxh3_64_intdigest(bytes(data[offset:body_end]), seed=seed) != expected:
        return None
    _, ordinal, kind, codec, collected, raw, stored, hint, fingerprint, target, checksum = fields
    if collected > ordinal:
        return None
    return Record(
        ordinal=ordinal,
        kind=kind,
        codec=codec,
        raw_length=raw,
        stored_length=stored,
        hint=hint,
        fingerprint=fingerprint,
        target=target,
        checksum=checksum,
        collected=collected,
    )
