"""Records of containers: sealed, read and checked; their redirection tables."""

import builtins
from collections.abc import Sequence
from typing import Final, Literal, Self, final

from typing_extensions import Buffer

from dedupd_core.format.ids import PackedOrdinals

from .codec import Encoded
from .rados import ClusterContent

@final
class ChunkCache:
    """Verified chunks, up to a number of bytes; the longest unused go first. Safe to use from
    several threads."""

    def __new__(cls, bytes_max: int) -> Self: ...

    bytes: int
    """Of the chunks that are there."""

    uses: tuple[int, int]
    """How often a chunk was there, and how often it had to be read."""

@final
class Unreadable:
    """What cannot be read of a stub, and why.

    A ``chunk`` has the id, the length and the start of the fingerprint that its recipe names;
    ``direct`` is the record of the chunk that a stub names in place of a recipe, ``node`` one of a
    recipe, both by their id; ``recipe`` is the entire recipe.
    """

    part: Literal["chunk", "direct", "node", "recipe"]
    id: int
    length: int
    check: int
    why: Literal[
        "not in memory",
        "not open",
        "merged",
        "not live",
        "quarantined",
        "damaged",
        "not meant",
        "too long",
        "errno",
    ]
    errno: int
    """Where ``why`` is ``errno``, else 0."""

@final
class Held:
    """Keeps a recipe in memory that is too long for the cache of recipes."""

_Stub = tuple[int, builtins.bytes, bool, int]
"""Recipe, digest, whether the recipe is a chunk, and how much of the file it stands for."""

@final
class StubBytes:
    """The bytes of stubs: of blocks of their own, and of the store. Safe to use from several
    threads."""

    def __new__(cls, chunks: Bases, streams: Bases, cache: ChunkCache, threads: int) -> Self:
        """Of containers of chunks and of recipes. Up to ``threads`` threads decode the chunks of
        one read."""

    @staticmethod
    def of_cluster(content: ClusterContent, cache: ChunkCache) -> StubBytes: ...
    def read(
        self,
        fd: int,
        stub: _Stub,
        own: Sequence[tuple[int, int]],
        start: int,
        end: int,
        *,
        waits: bool,
        repaired: Sequence[tuple[tuple[int, int, int], builtins.bytes]] = ...,
    ) -> builtins.bytes | list[Unreadable]:
        """Bytes [start, end) of the file ``fd``: those of its ``own`` ranges; else those that the
        recipe stands for, and zeros beyond it; or what of them cannot be read. Each chunk has
        the length and the start of the fingerprint that the recipe names, and its checksum.

        Without ``waits`` the disk is not waited for. ``repaired``: chunks by id, length and start
        of the fingerprint, verified by the caller. ``fd`` is not used if ``own`` is empty.
        Raises OSError of the file's own blocks, ValueError.
        """

    def hold(self, stub: _Stub) -> Held | list[Unreadable] | None:
        """Have the recipe of a stub be in memory as long as the result is. None where the caches do
        for all recipes."""

    def keep_node(
        self, record_id: int, payload: builtins.bytes, fingerprint: builtins.bytes
    ) -> None:
        """Put the record of a recipe into the cache, verified by the caller."""

    def keep_direct(self, record_id: int, length: int, fingerprint: builtins.bytes) -> None:
        """Put what the record of a chunk says into the cache of recipes, verified by the caller."""

@final
class Bases:
    """The raw bytes of records on which others lean, read from the containers of a directory by id.

    Some of them, up to ``bytes_max``, are kept. Safe to use from several threads.
    """

    def __new__(cls, dir_fd: int, volume_id: bytes, bytes_max: int) -> Self:
        """``dir_fd`` stays the caller's. Raises OSError where there is no descriptor left."""

    def raw(self, record_id: int) -> bytes | None:
        """The raw bytes of a live, orphaned or merged record that is no difference; None where
        anything else is the case, or anything is not as expected."""

    def is_live(self, record_id: int) -> bool:
        """Whether a record is live, or leads to one that is, and is no difference."""

    def drop(self, numbers: Sequence[int]) -> None:
        """Let go of containers that were replaced."""

    def close(self) -> None:
        """Let go of every file. Nothing is found any more."""

@final
class BlocksAhead:
    """Reads blocks of containers in threads of its own, past the page cache, before
    :func:`frame_chunks` asks for them: once it goes forward, what follows is likely to be next.

    Keeps up to ``bytes_max`` in memory. Used by one thread at a time.
    """

    def __new__(cls, bytes_max: int) -> Self: ...

def frame_chunks(
    number: int,
    data_fd: int,
    table_fd: int,
    seed: int,
    wanted: Sequence[tuple[int, int, int]],
    sequence: int,
    stream_seed: int,
    ahead: BlocksAhead,
    threads: int,
) -> tuple[bytes, bytes, int]:
    """Chunks of container ``number`` as frames of a stream: these, the fingerprints of the chunks,
    and how many they are.

    Of the first of ``wanted``, given as in :func:`read_chunks`, up to one about which anything is
    not as expected, or that leans on another. Payloads are checked, and not decoded. ``sequence``
    is that of the first frame; ``ahead`` always serves the same store. Raises MemoryError only.
    """

def seal(
    encoded: Encoded,
    fingerprints: Buffer,
    raw_lengths: Buffer,
    hints: Buffer,
    *,
    seed: int,
    ordinal: int,
    offset: int,
) -> bytes:
    """Fill in the record headers of ``encoded`` and return the entries for the redirection table.

    ``raw_lengths`` and ``hints`` are u32 arrays; ``ordinal`` is the first record's, ``offset``
    where the buffer goes in the container, ``seed`` the container's
    (``format.container.seed_of``). The bytes are those of ``pack_record_into`` and
    ``encode_entry`` of ``dedupd_core.format``. Raises ValueError if the columns differ in length.
    """

@final
class TableMap:
    """Which entries a table has whose collected records have none (docs/design/format.md, "Table
    map")."""

    def __new__(cls, lines: Buffer, seed: int) -> Self:
        """``lines`` follow the header of the table. Raises ValueError where they are damaged."""

    @staticmethod
    def without(rows: Sequence[tuple[int, int]], seed: int) -> TableMap:
        """That of a table without the entries of records [first, end) of each row; they ascend."""

    def lines(self) -> bytes:
        """As they follow the header of the table."""

    @property
    def left_out(self) -> int:
        """How many records have no entry."""

    def offset(self, ordinal: int) -> int | None:
        """Where in the table the entry of a record begins; None where it has none."""

    def offset_below(self, end: int) -> int:
        """Where in the table the entries end that are of records below an ordinal."""

    def expand(self, entries: Buffer, first: int, end: int) -> bytes:
        """The entries of records [first, end), as far as ``entries`` go, those of the table: with a
        tombstone for each that has none."""

@final
class Weight:
    """Sums over the records of a table."""

    kept: Final[int]
    """Records that a compaction keeps."""
    kept_bytes: Final[int]
    """Of the new container, after its header."""
    table_bytes: Final[int]
    """Of its table."""
    orphaned: Final[int]
    orphaned_bytes: Final[int]
    quarantined: Final[int]
    raw_bytes: Final[int]
    """Of live records, and what of it is not stored: because they were compressed, or refined."""
    compressed_away_bytes: Final[int]
    refined_away_bytes: Final[int]

def weigh_table(entries: Buffer, seed: int) -> Weight:
    """Entries that are not valid are left out."""

def table_states(entries: Buffer, seed: int) -> bytes:
    """u8 state of each whole entry of a redirection table; 0 where it has no valid one."""

@final
class CheckedRecords:
    """Result of :func:`check_records`: parallel arrays, one element per record."""

    consumed: Final[int]
    """Bytes of whole records, from the start of the data."""
    is_lost: Final[bool]
    """Whether the bytes after them are no valid record header. False where there are too few
    bytes."""
    ordinals: Final[PackedOrdinals]
    """That of each record."""
    next_ordinals: Final[PackedOrdinals]
    """The ordinal after each record: one more, except after a run of tombstones."""
    kinds: Final[bytes]
    """u8 kind of each record."""
    statuses: Final[bytes]
    """u8: 0 intact, 1 its payload is damaged, 2 its bytes have another fingerprint, 3 what it leans
    on cannot be read."""
    entries: Final[bytes]
    """64 bytes each: the entries for the redirection table that the records imply."""
    raw_bytes: Final[int]
    """Sum of the raw lengths."""

def check_records(
    data: Buffer,
    *,
    seed: int,
    offset: int,
    algorithm: str,
    threads: int,
    bases: Bases | None = None,
) -> CheckedRecords:
    """Check the records that ``data`` begins with: headers, checksums, payloads, fingerprints.

    ``offset`` is where the data lies in the container, ``seed`` the container's. Every payload is
    decompressed and its fingerprint computed. Ends at the first header that is not valid, or the
    first record that the data does not hold whole.
    """

@final
class PassedRecords:
    """Result of :func:`pass_records`."""

    ordinal: Final[int]
    offset: Final[int]
    """After the last portion that passed, without a gap from the first one."""
    records: Final[int]
    raw_bytes: Final[int]
    """Up to there."""
    read_bytes: Final[int]
    """Including portions that did not pass."""

def pass_records(
    fd: int,
    table: Buffer,
    *,
    seed: int,
    ordinal: int,
    offset: int,
    end: int,
    bytes_max: int,
    algorithm: str,
    threads: int,
    bases: Bases | None = None,
) -> PassedRecords:
    """The end of the records of a container that are intact, and as the entries of its ``table``
    say.

    Looks at about ``bytes_max`` bytes from ``offset`` on, below ``end``, where the record
    ``ordinal`` should begin: portions are read past the page cache, and headers, checksums,
    payloads and fingerprints are checked as by :func:`check_records`. Payloads of merged records
    and tombstones are never used, and need not be intact. Where the first portion does not pass,
    the position is ``ordinal`` and ``offset``.
    """

def headers_agree(fd: int, table: Buffer, *, seed: int, first: int = 0, threads: int = 1) -> bool:
    """Whether every live or orphaned record has the header that its entry implies, at the offset of
    the entry. False also where an entry is not valid. ``table`` begins with the entry of the
    ordinal ``first``."""

def dead_payloads(
    fd: int,
    table: Buffer,
    *,
    seed: int,
    block_bytes: int,
    threads: int,
    is_seen: bool = False,
) -> list[tuple[int, int, int]]:
    """Payloads of a container that nothing needs and whose blocks are still there: (ordinal, start,
    end) of the whole blocks inside each, by ordinal.

    Those of orphaned, merged and collected records, by the entries of its ``table``. Left out is a
    record that is not what its entry says; no orphan is looked at for that where ``is_seen``.
    Raises OSError.
    """

def places_digest(entries: Buffer, seed: int) -> int | None:
    """A digest of the seed and of what each entry says of its record's place and bytes, whatever
    states the records are in. None where an entry is damaged, or in quarantine."""
