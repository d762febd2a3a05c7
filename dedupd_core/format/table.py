"""Redirection tables: one fixed-size entry per chunk ordinal.

See docs/design/format.md, "Redirection table". A table is derived from its container: every read
checks the entry against the record itself, and a scan of the container builds the table from
scratch.
"""

import enum
import struct
from dataclasses import dataclass
from typing import NamedTuple

import xxhash

from dedupd_core import native
from dedupd_core.errors import DamagedTable
from dedupd_core.format.container import (
    FORMAT,
    FORMAT_APART,
    FORMAT_PUBLIC,
    LEANING,
    Codec,
    FileHeader,
    Kind,
    public_seed,
    seed_of,
)
from dedupd_core.format.sealed_header import seal, unseal

MAGIC = b"DEDUPDIR"
HEADER_BYTES = 64
ENTRY_BYTES = 64
MAP_LINE_BYTES = 64
"""The unit of the length of a table's map; the header has the number of units."""

FINGERPRINT_BYTES = 32
"""The start of an entry."""

_HEADER = struct.Struct("<8sHBBIIIQQIHHII")
_HEADER_PUBLIC = struct.Struct("<8sHBBIII16sIHHII")
_ENTRY = struct.Struct("<32sQQIIIBB")
_WHOLE = struct.Struct("<32sQQIIIBBH")
_U16 = struct.Struct("<H")

assert _ENTRY.size + 2 == ENTRY_BYTES


class State(enum.IntEnum):
    """States of a chunk. Zero is no state, so that a hole in a table is detected."""

    LIVE = 1
    ORPHANED = 2
    """Unreferenced since the epoch in ``target``."""
    MERGED = 3
    """Its bytes are those of the chunk ``target``."""
    QUARANTINED = 4
    """Its bytes failed a check; they are needed from another source."""
    TOMBSTONE = 5
    """Its bytes are deleted, and nothing refers to it."""


RANK_MAX = 2
"""The largest :attr:`TableEntry.rank`."""

USABLE = frozenset((State.LIVE, State.ORPHANED))
"""States of chunks that still have their bytes, so that more files may refer to them."""


@dataclass(frozen=True, slots=True)
class TableHeader:
    """The first 64 bytes. All records below ``synced_bytes`` of the container are durable.

    Records with ordinals below ``reconciled`` are in the reconciled set
    (docs/design/partitions.md). ``volume_check``: the xxh3 of the volume's uuid. ``seed``: that of
    all checksums of container and table. ``punches``: the punches of the container that the table
    includes. ``map_lines``: the length of the map of records without an entry; 0 if all have one.
    ``is_apart``: the container's domain is not the volume's.
    """

    kind: Kind
    container: int
    generation: int
    partition: int
    volume_check: int
    seed: int
    synced_bytes: int
    synced_count: int
    reconciled: int = 0
    punches: int = 0
    map_lines: int = 0
    is_apart: bool = False

    @classmethod
    def of(
        cls,
        container: FileHeader,
        synced_bytes: int,
        synced_count: int,
        reconciled: int = 0,
        *,
        map_lines: int = 0,
    ) -> "TableHeader":
        """Return the header of the table of a container."""
        return cls(
            *(container.kind, container.container, container.generation, container.partition),
            *(_volume_check(container.volume_id), seed_of(container)),
            *(synced_bytes, synced_count, reconciled),
            punches=container.punches,
            map_lines=map_lines,
            is_apart=container.is_apart,
        )


class TableEntry(NamedTuple):
    """One chunk: the start of its record in the container, and its state."""

    fingerprint: bytes = bytes(32)
    offset: int = 0
    target: int = 0
    stored_length: int = 0
    raw_length: int = 0
    hint: int = 0
    state: int = 0
    codec: int = Codec.RAW

    @property
    def leans(self) -> bool:
        """True if decoding its payload needs the bytes of another record: its base, or a
        dictionary."""
        return self.codec in LEANING and self.stored_length > 0

    @property
    def rank(self) -> int:
        """A record only depends on records of lower rank: 0 depends on none, 1 on a dictionary, 2
        is the difference to another."""
        if not self.leans:
            return 0
        return 2 if self.codec == Codec.DELTA else 1

    @property
    def base(self) -> int:
        """The id of the record that this one depends on; 0 if only the record's header has it."""
        return self.target if self.leans and self.state == State.LIVE else 0


COLLECTED = TableEntry(state=State.TOMBSTONE)
"""Represents a record that was collected and has no entry."""


def encode_header(header: TableHeader) -> bytes:
    return seal(
        _HEADER.pack(
            MAGIC,
            FORMAT_APART if header.is_apart else FORMAT,
            header.kind,
            header.punches,
            header.container,
            header.generation,
            header.partition,
            header.volume_check,
            header.seed,
            header.synced_bytes & 0xFFFF_FFFF,
            header.synced_bytes >> 32,
            header.map_lines,
            header.synced_count,
            header.reconciled,
        )
    )


def decode_header(data: bytes, where: str) -> TableHeader:
    """Raises DamagedTable."""
    body = unseal(data, MAGIC)
    if body is None:
        raise DamagedTable(f"{where}: the redirection table has no valid header")
    _, version, kind, punches, *fields = _HEADER.unpack_from(body)
    container, generation, partition, volume_check, seed, low, high, *rest = fields
    lines, count, reconciled = rest
    if version == FORMAT_PUBLIC:
        volume_id = _HEADER_PUBLIC.unpack_from(body)[7]
        volume_check = _volume_check(volume_id)
        seed = public_seed(volume_id, container, generation)
    elif version not in (FORMAT, FORMAT_APART):
        raise DamagedTable(f"{where}: redirection table of an unknown format {version}")
    if kind not in Kind.__members__.values():
        raise DamagedTable(f"{where}: redirection table of an unknown kind {kind}")
    return TableHeader(
        *(Kind(kind), container, generation, partition, volume_check, seed, high << 32 | low),
        *(count, reconciled, punches, lines),
        is_apart=version == FORMAT_APART,
    )


def _volume_check(volume_id: bytes) -> int:
    return xxhash.xxh3_64_intdigest(volume_id)


def decode_map(lines: bytes, table: TableHeader, where: str) -> native.store.TableMap:
    """Decode which entries a table with this header has. Raises DamagedTable."""
    try:
        if len(lines) == table.map_lines * MAP_LINE_BYTES:
            return native.store.TableMap(lines, table.seed)
    except ValueError:
        pass
    raise DamagedTable(f"{where}: the map of the redirection table is damaged")


def belongs(table: TableHeader, container: FileHeader) -> bool:
    """Return whether a table belongs to a container and its generation, and includes all punches.

    In an older copy of a table, records without payloads may be live.
    """
    return table.punches >= container.punches and (
        *(table.kind, table.container, table.generation),
        *(table.volume_check, table.seed),
    ) == (
        *(container.kind, container.container, container.generation),
        *(_volume_check(container.volume_id), seed_of(container)),
    )


def encode_entry(entry: TableEntry, seed: int) -> bytes:
    body = _ENTRY.pack(*entry)
    return body + _U16.pack(xxhash.xxh3_64_intdigest(body, seed=seed) & 0xFFFF)


def decode_entry(data: bytes | memoryview, seed: int) -> TableEntry | None:
    """Decode the entry in 64 bytes of ``data``; None if it is damaged or was never written."""
    if len(data) < ENTRY_BYTES:
        return None
    body = bytes(data[: _ENTRY.size])
    if _U16.unpack_from(data, _ENTRY.size)[0] != xxhash.xxh3_64_intdigest(body, seed=seed) & 0xFFFF:
        return None
    entry = TableEntry._make(_ENTRY.unpack(body))
    return entry if entry.state in _STATES else None


def unpack_entry(data: bytes | memoryview, offset: int) -> TableEntry:
    """Decode the entry at ``offset``, which is known to be valid."""
    return tuple.__new__(TableEntry, _ENTRY.unpack_from(data, offset))


def decode_entries(data: bytes, seed: int) -> list[TableEntry | None]:
    """Like :func:`decode_entry` for each complete entry of ``data``, in a third of the time."""
    digest, unpack, new = xxhash.xxh3_64_intdigest, _WHOLE.unpack_from, tuple.__new__
    body_bytes = _ENTRY.size
    found: list[TableEntry | None] = []
    for at in range(0, len(data) - ENTRY_BYTES + 1, ENTRY_BYTES):
        row = unpack(data, at)
        is_valid = row[8] == digest(data[at : at + body_bytes], seed) & 0xFFFF
        found.append(new(TableEntry, row[:8]) if is_valid and row[6] in _STATES else None)
    return found


_STATES = frozenset(State)
