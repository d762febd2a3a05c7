"""Records of containers: sealing, reading and checking them; their redirection tables."""

import builtins
from collections.abc import Sequence
from typing import Final, Literal, Self, final

from typing_extensions import Buffer

from .codec import Encoded
from .rados import ClusterContent

@final
class ChunkCache:
    """Verified chunks, up to a number of bytes; the least recently used ones are dropped first.
    Safe to use from several threads."""

    def __new__(cls, bytes_max: int) -> Self: ...

    bytes: int
    """Bytes of the cached chunks."""

    uses: tuple[int, int]
    """How often a chunk was cached, and how often it had to be read."""

@final
class Unreadable:
    """The part of a stub that cannot be read, and the reason.

    A ``chunk`` has the id, the length and the start of the fingerprint in its recipe. ``direct`` is
    the chunk's record of a stub without a recipe, and ``node`` is a record of a recipe, both by
    their id; ``recipe`` is the entire recipe.
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
    """The error if ``why`` is ``errno``, else 0."""

@final
class Held:
    """Keeps a recipe in memory that is too long for the cache of recipes."""

_Stub = tuple[int, builtins.bytes, bool, int]
"""Recipe, digest, whether the recipe is a chunk, and the covered length of the file."""

@final
class RecipeLeaf:
    """A leaf of a recipe at its place in a file. Columns run in parallel, a row for each chunk or
    hole."""

    offset: Final[int]
    length: Final[int]
    node: Final[int]
    """Its id; 0 if it has no record."""
    above: Final[list[int]]
    """The nodes between it and the root that start at the same offset."""
    content: Final[builtins.bytes]
    """The digest of its content."""
    ids: Final[list[int]]
    lengths: Final[list[int]]
    fingerprint_checks: Final[list[int]]
    offsets: Final[list[int]]
    """Where the rows begin within the leaf."""

@final
class BrokenPart:
    """A part of a recipe that cannot be read, at its place in a file."""

    offset: Final[int]
    length: Final[int]
    above: Final[list[int]]
    """The nodes below the root that start at the same offset, and are not leaves."""
    unreadable: Final[Unreadable]

@final
class StubBytes:
    """The bytes of stubs: of local blocks, and of the store. Safe to use from several threads."""

    def __new__(cls, chunks: Bases, streams: Bases, cache: ChunkCache, threads: int) -> Self:
        """From containers of chunks and of recipes. Up to ``threads`` threads decode the chunks of
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
        """Return bytes [start, end) of the file ``fd``, or the parts that cannot be read. ``own``
        ranges come from the file itself, all others from the recipe, with zeros beyond it. Each
        chunk has the length and the start of the fingerprint in the recipe, and its checksum.

        Without ``waits``, the call does not wait for the disk. ``repaired``: chunks by id, length
        and start of the fingerprint, verified by the caller. ``fd`` is not used if ``own`` is
        empty. Raises ValueError, and OSError for the file's own blocks.
        """

    def hold(self, stub: _Stub) -> Held | list[Unreadable] | None:
        """Keep the recipe of a stub in memory while the result exists. None if the caches suffice
        for all recipes."""

    def described(self, stub: _Stub) -> tuple[int, int, builtins.bytes] | Unreadable:
        """The root of a stub's recipe: the length that the recipe stands for, the level, and the
        digest of the content."""

    def spans(
        self, stub: _Stub, start: int, end: int
    ) -> list[tuple[int, int, int, int]] | Unreadable:
        """The chunks and holes that a range of a stub touches, in order: offset, length, id (0 of a
        hole), and the start of the fingerprint. The stub covers the range."""

    def leaf(self, stub: _Stub, at: int) -> RecipeLeaf | BrokenPart:
        """The leaf of a recipe that has a byte of the file, also beyond what the stub covers."""

    def keep_node(
        self, record_id: int, payload: builtins.bytes, fingerprint: builtins.bytes
    ) -> bool:
        """Put the record of a recipe into the cache, verified by the caller. Returns whether it is
        a node of a recipe."""

    def keep_direct(self, record_id: int, length: int, fingerprint: builtins.bytes) -> None:
        """Put the facts of a chunk's record, verified by the caller, into the cache of recipes."""

@final
class Bases:
    """The raw bytes of bases, read by id from the containers of a directory.

    Up to ``bytes_max`` are kept in memory. Safe to use from several threads.
    """

    def __new__(cls, dir_fd: int, volume_id: bytes, bytes_max: int) -> Self:
        """``dir_fd`` stays the caller's. Raises OSError if there are too many open files."""

    def raw(self, record_id: int) -> bytes | None:
        """Return the raw bytes of a live, orphaned or merged record that is no delta. Returns None
        in all other cases."""

    def is_live(self, record_id: int) -> bool:
        """Return whether a record is live, or redirected to a live one, and is no delta."""

    def drop(self, numbers: Sequence[int]) -> None:
        """Close containers that were replaced."""

    def close(self) -> None:
        """Close every file. Later look-ups find nothing."""

@final
class BlocksAhead:
    """Reads blocks of containers ahead in separate threads, without the page cache. After forward
    reads by :func:`frame_chunks`, the following blocks are likely to be next.

    Keeps up to ``bytes_max`` in memory. Used by one thread at a time.
    """

    def __new__(cls, bytes_max: int) -> Self: ...

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

    ``raw_lengths`` and ``hints`` are u32 arrays; ``ordinal`` is the first record's, ``offset`` the
    place of the buffer in the container, ``seed`` the container's (``format.container.seed_of``).
    The bytes are those of ``pack_record_into`` and ``encode_entry`` of ``dedupd_core.format``.
    Raises ValueError if the columns differ in length.
    """

@final
class TableMap:
    """The places of the entries of a table without collected records. See "Table map" in
    docs/design/format.md."""

    def __new__(cls, lines: Buffer, seed: int) -> Self:
        """``lines`` follow the header of the table. Raises ValueError if they are damaged."""

    @staticmethod
    def without(rows: Sequence[tuple[int, int]], seed: int) -> TableMap:
        """Return the map of a table without the records [first, end) of each ascending row."""

    def lines(self) -> bytes:
        """Return the lines after the header of the table."""

    @property
    def left_out(self) -> int:
        """Number of records without an entry."""

    def offset(self, ordinal: int) -> int | None:
        """Return the offset of a record's entry in the table; None if it has none."""

    def offset_below(self, end: int) -> int:
        """Return the end in the table of the entries of records below an ordinal."""

    def expand(self, entries: Buffer, first: int, end: int) -> bytes:
        """Return the entries of records [first, end), as far as the table's ``entries`` reach.
        Records without an entry get a tombstone."""

@final
class Weight:
    """Sums over the records of a table."""

    kept: Final[int]
    """Records that a compaction keeps."""
    kept_bytes: Final[int]
    """Bytes in the new container, after its header."""
    table_bytes: Final[int]
    """Bytes of its table."""
    orphaned: Final[int]
    orphaned_bytes: Final[int]
    quarantined: Final[int]
    raw_bytes: Final[int]
    """Of live records, and the parts that are not stored due to compression or refinement."""
    compressed_away_bytes: Final[int]
    refined_away_bytes: Final[int]

def weigh_table(entries: Buffer, seed: int) -> Weight:
    """Sum up a table. Invalid entries are skipped."""

def table_states(entries: Buffer, seed: int) -> bytes:
    """Return the u8 state of each complete entry of a redirection table; 0 if it is invalid."""

def frame_chunks(
    bases: Bases,
    wanted: Sequence[tuple[int, int, int]],
    sequence: int,
    seed: int,
    ahead: BlocksAhead,
    threads: int,
) -> tuple[bytes, bytes, Unreadable | None]:
    """Encode chunks as frames of a stream. ``wanted`` has id, length and start of the fingerprint
    of each chunk. ``sequence`` is the number of the first frame, ``seed`` belongs to the stream.

    Returns the frames, the fingerprints, and the chunk after them if it cannot be read. Payloads
    are verified, and copied from the records. A payload that depends on another record is
    compressed again, alone.
    """

def frame_cluster_chunks(
    content: ClusterContent, wanted: Sequence[tuple[int, int, int]], sequence: int, seed: int
) -> tuple[bytes, bytes, Unreadable | None]:
    """As :func:`frame_chunks`, of chunks in a cluster by their numbers."""

@final
class HeaderScan:
    """The parts of a container in the order of their offsets: start, end, and the header of the
    record, which is empty for a range without a valid record.

    The last item of a record is True if a search after damage has found it. Unreadable blocks
    count as zeros. Raises OSError.
    """

    def __new__(cls, fd: int, seed: int, start: int, end: int) -> Self:
        """The caller keeps ``fd`` open."""
    def __iter__(self) -> Self: ...
    def __next__(self) -> tuple[int, int, builtins.bytes, bool]: ...

def valid_seed(fd: int, seeds: Sequence[int], start: int, end: int) -> int | None:
    """The first of ``seeds`` that any record header between two offsets is valid with. Raises
    OSError."""

@final
class Difference:
    """A difference between a container and its table.

    ``order``: a record at ``start`` does not follow the one before it, ``end`` is the expected
    ordinal. ``entry``: the entry is not that of the record. ``payload``: the stored bytes of the
    record are damaged. ``fingerprint``: its raw bytes have another fingerprint. ``missing``: there
    is an entry and no record. ``unknown``: there is neither. ``gap``: no record lies between
    ``start`` and ``end``.
    """

    what: Literal["order", "entry", "payload", "fingerprint", "unknown", "missing", "gap"]
    ordinal: int
    start: int
    end: int
    entry: builtins.bytes | None
    """The entry that the record implies, if there is a record."""

@final
class Reached:
    """The part of a container that a check has passed."""

    offset: Final[int]
    ordinal: Final[int]
    """The ordinal that comes next."""
    is_disordered: Final[bool]
    """Whether a record did not come in order, so that a later check cannot start here."""
    records: Final[int]
    raw_bytes: Final[int]
    read_bytes: Final[int]
    released: Final[list[int]]
    """Ordinals of records in quarantine that are intact."""
    without_base: Final[list[int]]
    """Ordinals of live records whose own bytes are intact, and that lean on an unreadable one."""

@final
class ContainerCheck:
    """Checks all records of a container, and compares them with its table.

    Headers, checksums, payloads and fingerprints are checked. Payloads of merged records and
    tombstones are never used, and need not be intact.
    """

    def __new__(
        cls,
        fd: int,
        table: builtins.bytes,
        *,
        seed: int,
        start: int,
        end: int,
        ordinal: int = 0,
        is_forgeable: bool,
        algorithm: str,
        threads: int,
        bases: Bases | None = None,
    ) -> Self:
        """From the record ``ordinal``, which begins at ``start``. The caller keeps ``fd`` open.
        ``is_forgeable``: users can compute the seed. Raises ValueError."""
    def step(self, bytes_max: int) -> list[Difference]:
        """Check about ``bytes_max`` more bytes, or as many as a quarter of a second allows, past
        the page cache. Raises OSError."""
    def finish(self) -> list[Difference]:
        """The differences of the entire container, after the last step. Raises OSError."""
    def take_implied(self) -> list[tuple[int, int, builtins.bytes]]:
        """If the table is empty: of each new record the first ordinal, the one after the last, and
        the entry that it implies."""
    @property
    def reached(self) -> Reached: ...

def is_intact(
    fd: int,
    ordinal: int,
    entry: builtins.bytes,
    *,
    seed: int,
    algorithm: str,
    bases: Bases | None = None,
) -> bool:
    """Whether the bytes of a record are where its entry says, with the fingerprint of the entry."""

def headers_agree(fd: int, table: Buffer, *, seed: int, first: int = 0, threads: int = 1) -> bool:
    """Return whether all live and orphaned records have the headers that their entries imply. The
    headers must be at the places in the entries. False for an invalid entry. ``table`` starts with
    the entry of the ordinal ``first``."""

def dead_payloads(
    fd: int,
    table: Buffer,
    *,
    seed: int,
    block_bytes: int,
    threads: int,
    is_seen: bool = False,
) -> list[tuple[int, int, int]]:
    """Find unneeded payloads of a container whose blocks are still allocated. Return (ordinal,
    start, end) of the complete blocks inside each, by ordinal.

    The payloads are of orphaned, merged and collected records, by the entries of its ``table``.
    Records that differ from their entries are skipped; with ``is_seen``, orphans are not checked
    for that. Raises OSError.
    """

def places_digest(entries: Buffer, seed: int) -> int | None:
    """Return a digest of the seed, and of the places and bytes of all records in the entries.
    States do not matter. None if an entry is damaged, or in quarantine."""
