"""Types of the Rust extension ``dedupd.native`` (source: ``native/``).

Every function that works on bulk data takes any C-contiguous bytes-like object without
copying it, releases the GIL while it works, and returns packed little-endian arrays as
``bytes``; ``memoryview(x).cast("I")`` (or ``"Q"``) gives the typed view.
"""

from collections.abc import Callable, Iterator, Sequence, Set

from typing_extensions import Buffer

HASH_BYTES: int

class CorruptPayload(Exception):
    """Stored bytes do not match their checksum, or do not decode to the stated length."""

def simd_paths() -> list[str]:
    """Chunker code paths this CPU can run, slowest first: scalar, avx2, avx512, gfni.

    A path is listed only after it reproduced the scalar path's answers in this process.
    """

class Chunks:
    """Result of :meth:`Chunker.process`: parallel arrays, one element per chunk."""

    @property
    def ends(self) -> bytes:
        """u32 end offset of each chunk, absolute in ``data``."""
    @property
    def fingerprints(self) -> bytes:
        """32 bytes per chunk."""
    @property
    def zero(self) -> bytes:
        """1 where every byte of the chunk is zero, else 0."""
    @property
    def counts(self) -> bytes:
        """u32 number of chunks found in each segment."""
    def __len__(self) -> int: ...
    def place(self, known: Buffer, as_is: Buffer) -> Placed:
        """Sort out what becomes of them. ``known`` has the u64 id of each chunk that the index
        knows, 0 for others; ``as_is`` has 1 for each segment whose new chunks are not to be
        compressed, else 0. Raises ValueError where these have another number of items."""
    def rows(self, segment: int, ids: Buffer) -> list[tuple[int, int, bytes]]:
        """Id, length and fingerprint of each chunk of a segment; ``ids`` are the u64 ids of all.

        Raises ValueError.
        """

class NewChunks:
    """Chunks to be stored alike: parallel arrays, one element per chunk."""

    @property
    def raw_bytes(self) -> int:
        """Of all together."""
    @property
    def fingerprints(self) -> bytes:
        """32 bytes per chunk."""
    @property
    def starts(self) -> bytes:
        """u32 start offsets in the data that was cut."""
    @property
    def lengths(self) -> bytes:
        """u32 lengths."""
    @property
    def hints(self) -> bytes:
        """u32 length of the chunk that follows each in its segment, 0 where none does."""
    def __len__(self) -> int: ...

class Placed:
    """What becomes of :class:`Chunks`: zeros, known, met before in the same data, or new."""

    @property
    def new(self) -> tuple[NewChunks, NewChunks]:
        """Those to be compressed, and those to be stored as they are."""
    @property
    def duplicate_bytes(self) -> int:
        """Of chunks that are neither new nor zeros."""
    @property
    def zero_bytes(self) -> int: ...
    def ids(self, first: int, first_as_is: int) -> bytes:
        """The u64 id of every chunk, 0 for zeros, where those of new chunks begin with these."""

class Chunker:
    """Two-stage regression Rabin chunker (seed 003, 4.3; staging from SS-CDC, seed 000)."""

    def __new__(
        cls,
        *,
        polynomial: int,
        bits: int,
        pattern: int,
        regression: int,
        min_bytes: int,
        max_bytes: int,
        fingerprint: str = "blake3",
        path: str | None = None,
    ) -> Chunker:
        """Raises ValueError for parameters outside the limits, or an unavailable ``path``."""
    @property
    def path(self) -> str: ...
    def cut(self, data: Buffer, final: bool = True) -> bytes:
        """u32 ends of the chunks of ``data``, which begins at a chunk start.

        With ``final`` the last chunk ends at the end of ``data``; without it only chunks whose
        end cannot depend on later bytes are returned and the caller presents the rest again.
        """
    def candidates(self, data: Buffer) -> bytes:
        """u32 pairs (end offset, matched low bits) of all stage 1 candidates of any size."""
    def process(
        self, data: Buffer, segments: Sequence[tuple[int, int, bool]], threads: int = 1
    ) -> Chunks:
        """Cut and fingerprint several independent segments ``(start, end, final)`` of ``data``."""
    def process_files(self, data: Buffer, files: FileList, threads: int = 1) -> Chunks:
        """:meth:`process` with a segment for each file that was read into ``data``."""
    def process_packed(self, data: Buffer, starts: Buffer, ends: Buffer, finals: Buffer) -> Chunks:
        """:meth:`process` with the segments as columns: u64 starts and ends, u8 finals."""

def fingerprint(data: Buffer, algorithm: str = "blake3") -> bytes:
    """32-byte fingerprint (``blake3`` or ``sha256``) of one buffer."""

def fingerprints(data: Buffer, ends: Buffer, algorithm: str = "blake3", threads: int = 1) -> bytes:
    """Fingerprints of the consecutive ranges of ``data`` that end at each of ``ends`` (u32)."""

def xxh3_64(data: Buffer, seed: int = 0) -> int: ...
def is_zero(data: Buffer) -> bool: ...
def incompressible(data: Buffer) -> bool:
    """A cheap test on samples: True where compression would almost surely not pay."""

class Encoded:
    """Payloads ready to be appended: gaps for record headers, then the stored bytes.

    Supports the writable buffer protocol; the caller fills the header gaps in place.
    """

    @property
    def starts(self) -> bytes:
        """u32 offset of each record's header gap; payload follows the gap directly."""
    @property
    def stored_lengths(self) -> bytes:
        """u32 stored payload bytes of each record."""
    @property
    def codecs(self) -> bytes:
        """u8 codec of each record: 0 raw, 1 zstd."""
    @property
    def checksums(self) -> bytes:
        """u64 XXH3-64 of each stored payload."""
    def __len__(self) -> int:
        """Total bytes of the buffer, padding included."""
    def __buffer__(self, flags: int, /) -> memoryview: ...

def encode(
    data: Buffer,
    starts: Buffer,
    lengths: Buffer,
    *,
    level: int,
    saving_min: float,
    header_bytes: int,
    align_bytes: int,
) -> Encoded:
    """Compress the selected ranges (u32 ``starts``, ``lengths``) of ``data`` where it pays.

    A range is stored raw when :func:`incompressible` says so, when ``level`` is 0, or when zstd
    saves less than ``saving_min`` (a fraction) of it. Zeros pad records to ``align_bytes``.
    """

def decode(stored: Buffer, codec: int, raw_length: int, checksum: int) -> bytes:
    """Verify XXH3-64 of ``stored`` and decompress. Raises CorruptPayload."""

def read_chunks(
    data_fd: int,
    table_fd: int,
    seed: int,
    wanted: Sequence[tuple[int, int, int]],
    cached_only: bool,
    threads: int,
) -> list[bytes | None]:
    """Raw bytes of records of a container, verified: what ``Container.read`` gives, many at once.

    ``wanted`` has ordinals, raw lengths and the first 4 bytes of fingerprints (little endian);
    ``seed`` is the container's (``format.container.checksum_seed``). None where anything about a
    record is not as expected, or its entry does not say that it is live; with ``cached_only`` also
    where the page cache does not have it all. Never waits for the disk then. Up to ``threads``
    threads share the work. Raises nothing else than MemoryError.
    """

class Window(Buffer):
    """Raw bytes of records of a container, one after the other behind the bytes of ``head``.

    Up to ``helpers`` threads verify and decompress them from now on, as :func:`read_chunks` does,
    but only what the page cache has. Raises OSError where there is no descriptor left.
    """

    def __init__(
        self,
        data_fd: int,
        table_fd: int,
        seed: int,
        wanted: Sequence[tuple[int, int, int]],
        head: Buffer,
        helpers: int,
    ) -> None: ...
    def finish(self) -> bool:
        """Do the rest. False where anything about a record is not as expected: the object is of no
        use then. Its bytes, which never change, can be had where it is true."""

class FingerprintMap:
    """Exact map fingerprint → chunk id held in RAM (about 48 bytes an entry)."""

    def __new__(cls, capacity: int = 0) -> FingerprintMap: ...
    def __len__(self) -> int: ...
    def lookup(self, fingerprints: Buffer) -> bytes:
        """u64 id per fingerprint, 0 where absent."""
    def insert(self, fingerprints: Buffer, ids: Buffer) -> int:
        """Set ids (u64, not 0); an existing entry is kept. Returns how many were new."""
    def remove(self, fingerprints: Buffer) -> int: ...

class TableIndex:
    """Index of fingerprints in about 6.4 bytes of RAM each, over the redirection tables.

    Every answer is checked against an entry of a table: see docs/index.md. Raises OSError where a
    table cannot be read, or (EOVERFLOW) where there are more than 2^32 records.
    """

    def __new__(
        cls,
        dir_fd: int,
        volume: bytes,
        kind: int,
        *,
        capacity: int,
        page_entries: int,
        cache_entries: int,
    ) -> TableIndex:
        """``dir_fd`` (the tables' directory) stays the caller's, and open. ``capacity``: entries
        to be loaded; ``page_entries``: neighbours read at once; ``cache_entries``: kept."""
    def __len__(self) -> int:
        """Entries that can be found."""
    def load(self, container: int, generation: int) -> None:
        """Take in the table of a container that nobody else writes to."""
    def lookup(self, fingerprints: Buffer) -> bytes:
        """u64 id per fingerprint, 0 where absent."""
    def insert(self, fingerprints: Buffer, ids: Buffer) -> int:
        """Set ids (u64, not 0); an existing entry is kept. Returns how many were new.

        The ids are of records that are about to be appended; those of containers that were not
        loaded are of the first generation.
        """
    def take_found_orphans(self) -> bytes:
        """u64 ids of orphaned entries that were found since the last call."""
    def counters(self) -> tuple[int, int, int, int]:
        """Look-ups, hits, false positives, disk reads."""
    def figures(self) -> tuple[int, int, int, float]:
        """Entries in RAM; how many of them no restored snapshot had; bytes of RAM; load factor."""
    def rebuild(self) -> None:
        """Make the table anew by a sequential scan."""
    def begin_snapshot(self) -> None:
        """Prepare for :meth:`snapshot_part`; nothing may be inserted until the last part."""
    def snapshot_part(self, part: int) -> bytes | None:
        """The parts of the file, one after the other; None behind the last."""
    def restore(self, fd: int, capacity: int) -> bool:
        """Take over a saved table, before anything is loaded. False, and nothing but room for
        ``capacity`` entries, where it is not valid."""

class BloomIndex:
    """Index of fingerprints in one to two bytes of RAM each, over a file of filters and the
    redirection tables.

    As :class:`TableIndex` in all that both have. What is damaged in the file is made anew.
    """

    def __new__(
        cls,
        dir_fd: int,
        volume: bytes,
        kind: int,
        fd: int,
        *,
        capacity: int,
        page_entries: int,
        cache_entries: int,
    ) -> BloomIndex:
        """``fd``: the file, open for reading and writing; it stays the caller's, and may be
        closed. :meth:`restore` comes next."""
    def __len__(self) -> int: ...
    def load(self, container: int, generation: int) -> None: ...
    def lookup(self, fingerprints: Buffer) -> bytes: ...
    def insert(self, fingerprints: Buffer, ids: Buffer) -> int: ...
    def take_found_orphans(self) -> bytes: ...
    def counters(self) -> tuple[int, int, int, int]: ...
    def figures(self) -> tuple[int, int, bool]:
        """Entries of the chains; bytes of RAM; whether some entries had no room on the disk."""
    def rebuild(self) -> None: ...
    def restore(self, capacity: int) -> bool:
        """Take over what the file has, which then is not valid any more, and has to be synced
        before anything else. False, and an empty file, where it is not valid."""
    def write_lists(self) -> None:
        """Write what the next job needs beside the chains; the file is to be synced then."""
    def write_header(self) -> None:
        """Make the file valid again."""

class Join:
    """Finds the chunks of one set, which is added, that another one, which streams by, has too.

    For reconciliation (docs/partitions.md); 14 bytes of RAM a chunk. Pieces of redirection tables
    go in: whole entries, of which the live ones count, the checksum seed of their container, and
    the id of the first. Pairs come out, u64 (merged, stays): chunks whose fingerprints have one
    hash of 64 bits, each to be merged once.
    """

    def __new__(cls, capacity: int, sample_bits: int = 0, seed: int = 0) -> Join:
        """For ``capacity`` chunks; of all fingerprints, one in 2^``sample_bits`` counts.

        ``seed`` is that of the hash; where it is a secret, nobody can make two hashes equal.
        """
    def __len__(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...
    def add(self, entries: Buffer, seed: int, first_id: int) -> bool:
        """Add chunks; False, and nothing done, where there is no room for them."""
    def probe(self, entries: Buffer, seed: int, first_id: int) -> bytes:
        """Pairs of chunks that were added and those of the other set; none with itself."""
    def finish(self) -> bytes:
        """Pairs among those added that found none in the other set: the first of them stays."""

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
    (``format.container.checksum_seed``).
    Byte for byte what ``pack_record_into`` and ``encode_entry`` of ``dedupd.format`` give. Raises
    ValueError where the columns differ in length.
    """

def weigh_table(entries: Buffer, seed: int) -> tuple[int, int, int, int, int]:
    """What the records of a table take: how many a compaction keeps, and the bytes of its new
    container behind the header; how many are orphaned, and their bytes; how many are quarantined.

    Entries that are not valid count as nothing.
    """

def table_states(entries: Buffer, seed: int) -> bytes:
    """u8 state of each whole entry of a redirection table; 0 where it has no valid one."""

class CheckedRecords:
    """Result of :func:`check_records`: parallel arrays, one element per record."""

    @property
    def consumed(self) -> int:
        """Bytes of whole records, from the start of the data."""
    @property
    def is_lost(self) -> bool:
        """Whether what follows them is no valid record header, and not just too few bytes."""
    @property
    def ordinals(self) -> bytes:
        """u32 ordinal of each record."""
    @property
    def next_ordinals(self) -> bytes:
        """u32 ordinal behind each record: one more, except after a run of tombstones."""
    @property
    def kinds(self) -> bytes:
        """u8 kind of each record."""
    @property
    def statuses(self) -> bytes:
        """u8: 0 intact, 1 its payload is damaged, 2 its bytes have another fingerprint."""
    @property
    def entries(self) -> bytes:
        """64 bytes each: the entries for the redirection table that the records imply."""
    @property
    def raw_bytes(self) -> int:
        """Sum of the raw lengths."""

def check_records(
    data: Buffer, *, seed: int, offset: int, algorithm: str, threads: int
) -> CheckedRecords:
    """Check the records that ``data`` begins with: headers, checksums, payloads, fingerprints.

    ``offset`` is where the data lies in the container, ``seed`` the container's. Every payload is
    decompressed and its fingerprint computed anew. Ends at the first header that is not valid, or
    the first record that the data does not hold whole.
    """

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
) -> tuple[int, int, int, int, int]:
    """How far the records of a container are what the entries of its ``table`` say, and intact.

    Looks at about ``bytes_max`` bytes from ``offset`` on, below ``end``, where the record
    ``ordinal`` should begin: each thread reads a piece, past the page cache, and checks headers,
    checksums, payloads and fingerprints, as :func:`check_records` does. Payloads that nobody reads
    (those of merged records and tombstones) may be anything. Returns the ordinal and the offset
    behind the last one in a row of which all that is true, how many records and raw bytes these
    were, and the bytes read. No way at all where the first is out of the ordinary.
    """

def headers_agree(fd: int, table: Buffer, *, seed: int) -> bool:
    """Whether all records of which ``table`` says that their bytes are there have the headers that
    the entries say, at the offsets that they say. False also where an entry is not valid."""

class MarkSet:
    """A bit for each record of some containers: for ``dedupd/store/marks.py``, which see."""

    def add_container(self, number: int, count: int) -> None:
        """Know a container of so many records, none of them marked."""
    def numbers(self) -> list[int]: ...
    def knows(self, record_id: int) -> bool: ...
    def __contains__(self, record_id: int) -> bool: ...
    def add(self, ids: Buffer) -> bytes:
        """Mark records (u64); 0 is none. Returns the ids of no record."""
    def merge(self, number: int, bits: Buffer) -> bool:
        """Mark what is marked in ``bits``, as :meth:`bits` gives them. False, and nothing marked,
        where that is any record that there is not."""
    def discard(self, ids: Buffer) -> None: ...
    def bits(self, number: int) -> bytes: ...
    def count(self) -> int: ...
    def follow(self, first_id: int, table: Buffer) -> tuple[bool, int, bytes]:
        """Mark what marked entries of a table were merged into, and live ones that repeat a record
        that is marked, or that there is not.

        ``table`` begins with the entry of ``first_id``. Returns whether anything was marked; the
        highest epoch of an orphan, or 0; and the u64 ids of no record that marked ones lead to.
        """
    def add_copies(self, first_id: int, table: Buffer, of: MarkSet) -> int:
        """Mark second copies, by their entries, of what is marked in ``of``, and of what it does
        not know. Returns the highest epoch of an orphan, or 0."""
    def add_named(
        self,
        data_fd: int,
        table: Buffer,
        *,
        seed: int,
        first: int,
        ordinals: Buffer,
        ends: Buffer,
    ) -> tuple[int, int, bytes, bytes]:
        """Read leaves of recipes, and mark what the first bytes of each name.

        ``table`` has the entries of their container from the ordinal ``first`` on, ``ordinals``
        (u32, ascending) are those of the nodes, ``ends`` (u64) how many bytes of each are needed.
        Returns how many were read, and how many rows these have; the u32 ordinals of those of
        which nothing was marked, because they are no leaves, or anything about them is out of the
        ordinary; and the u64 ids named of no record.
        """

class NeedSet:
    """How much of each recipe node is needed: for ``dedupd/store/marks.py``, which see."""

    def add_container(self, number: int, count: int) -> None:
        """Know a container of so many nodes, none of them needed."""
    def need(self, ids: Buffer, lengths: Buffer) -> None:
        """The first bytes of nodes (u64 each), at least, are needed. Other ids are passed over."""
    def needed(self, record_id: int) -> int: ...
    def lengths(self, number: int) -> bytes: ...
    def fresh(self, number: int) -> bytes: ...
    def put(self, number: int, lengths: Buffer, fresh: Buffer) -> None: ...
    def take_fresh(self, number: int, first: int, end: int) -> tuple[bytes, bytes]:
        """Ordinals (u32) of the fresh nodes from ``first``, a multiple of 8, to ``end``, and how
        much of each is needed (u64). Up to the next multiple of 8, they are fresh no longer."""

def misfits(table: Buffer, needed: Buffer) -> tuple[bytes, int]:
    """Places (u32) of those entries that are needed and orphans, or neither, tombstones left out;
    and how many orphans there are. ``needed`` has a bit for each, the first the lowest."""

# Columns of u64, behind whose end are zeros: how many bytes of each recipe node are needed.
def more_than(now: Buffer, before: Buffer) -> bytes:
    """A bit for each item of ``now``, set where it is more than that of ``before``; the first in
    the lowest bit."""

def longest(one: Buffer, other: Buffer) -> bytes:
    """For each item of ``one`` the larger of it and that of ``other``."""

def digest_needed(entries: Buffer, lengths: Buffer, seed: int) -> int:
    """xxh3 (``seed``) of the fingerprints of those entries of a redirection table whose length is
    not 0, one behind the other."""

class KnownRecords:
    """What tables of one kind of container say: for ``jobs/known.py``, which see.

    A record that is there has a length, which is not 0, and a check: the first 4 bytes of its
    fingerprint. Any number of threads may count at once.
    """

    def add_table(self, number: int, table: Buffer, seed: int) -> bytes:
        """Take in a container's entries. Returns the u32 ordinals of those that are damaged,
        merged or quarantined, for the caller to :meth:`set`."""
    def set(self, record_id: int, length: int, check: int, target: int | None = None) -> None:
        """In place of what was known; ``length`` 0 where its bytes are not there, ``target`` what
        it leads to."""
    def set_second(self, record_id: int, length: int, check: int) -> None:
        """There is a second copy of a record."""
    def count(self, number: int) -> int: ...
    def numbers(self) -> list[int]: ...
    def holds(self, record_id: int, length: int, check: int) -> bool: ...
    def known(self, record_id: int) -> tuple[int, int]:
        """Length and check of the record that an id leads to, or of its second copy; (0, 0)."""
    def is_primary(self, record_id: int) -> bool: ...
    def relied_on(self) -> list[int]: ...
    def refer(self, record_id: int) -> None: ...
    def add_references(self, record_id: int, count: int) -> None: ...
    def references(self, record_id: int) -> int: ...
    def referred_at_least(self, count: int) -> bytes:
        """u64 ids, in order."""
    def unreferenced(self) -> int: ...

class StubCounter:
    """Counts what the stubs of a tree refer to, where all of that is there."""

    def __new__(
        cls,
        chunks: KnownRecords,
        nodes: KnownRecords,
        streams: Sequence[tuple[int, int, int, int]],
        *,
        attribute: bytes,
        seed: int,
        tables: tuple[int, Sequence[tuple[int, bytes, int]]] | None,
    ) -> StubCounter:
        """``streams`` are containers of recipes: number, descriptors of data and table, seed; the
        caller keeps them open. ``seed`` is that of the attribute's checksum.

        ``tables`` are those of the containers of chunks: a directory, which the caller keeps open,
        and number, name and seed of each. With them, the chunk that a stub names is held against
        all that the stub keeps of its fingerprint, without them against what is known of chunks.
        """
    def look_at(
        self,
        root_fd: int,
        directories: Sequence[bytes],
        threads: int,
        check: Callable[[], None],
    ) -> list[
        tuple[
            list[bytes],
            list[tuple[bytes, tuple[int, int, int, int], int, int, bytes | None]],
            int,
            int,
            int,
        ]
        | int
    ]:
        """Of each directory (a path below ``root_fd``, over no link and into no other file system):
        the error's number, or the names of its directories, the files that are left, and how many
        stubs, plain files, and bytes of stubs were not.

        What is left is as :func:`scan_directory` has it, and nothing of it is counted: files of
        several names, and stubs of which anything is out of the ordinary: a transition, a recipe
        of several nodes, a record that is not there, or that leads to another one.

        ``check`` is called every 64 entries, by any of the threads; what it raises ends the call.
        """

_Passed = tuple[int, int]
CandidatesOf = tuple[
    list[bytes],
    list[tuple[bytes, tuple[int, int, int, int], int, int, bytes | None]],
    tuple[_Passed, _Passed, _Passed, _Passed],
    list[tuple[bytes, int, int, list[tuple[bytes, int]]]],
]
"""What an optimise job has to do with a directory: names of directories; files that are left, as
:func:`scan_directory` has them; what was passed over, in files and bytes: stubs with nothing to do
about them, empty files, small ones, young ones; and plain files for it, up to 4,096 at a time:
packed, their number, their bytes, and about how many chunks they have, by what follows the last dot
of their names.

Left are files of several names, and stubs of which anything is out of the ordinary.
"""

def find_candidates(
    root: int,
    directories: Sequence[bytes],
    attribute: bytes,
    threads: int,
    check: Callable[[], None],
    *,
    seed: int,
    size_min: int,
    newest_ns: int,
    chunk_bytes: int,
) -> list[CandidatesOf | int]:
    """Look for plain files of at least ``size_min`` bytes that did not change after ``newest_ns``;
    for each directory, as in :meth:`StubCounter.look_at`, also the error's number.

    ``seed`` is that of the attribute's checksum. ``check`` is called every 64 entries, by any of
    the threads; what it raises ends the call. Raises ValueError.
    """

def stub_sizes(
    root: int,
    directories: Sequence[bytes],
    attribute: bytes,
    threads: int,
    check: Callable[[], None],
) -> list[
    tuple[
        list[bytes],
        list[tuple[bytes, tuple[int, int, int, int], int, int, bytes | None]],
        list[tuple[bytes, int]],
    ]
    | int
]:
    """Of each directory, as in :meth:`StubCounter.look_at`: the error's number, or the names of its
    directories, its files of several names, and the bytes of all its other stubs, by what follows
    the last dot of their names.

    Empty where nothing follows, where there is none, or where it is the first byte. ``check`` is
    called every 64 entries, by any of the threads; what it raises ends the call.
    """

def scan_directory(
    fd: int, attribute: bytes, check: Callable[[], None] | None = None
) -> tuple[list[bytes], list[tuple[bytes, tuple[int, int, int, int], int, int, bytes | None]]]:
    """Names of directories, and regular files on the same file system, in the order of inodes.

    Of each file: name; inode, size, mtime and ctime in ns; links; allocated bytes; value of the
    attribute, None where it has none, empty where that cannot be told.

    No link is followed; what vanishes meanwhile is passed over. ``check`` is called every some
    thousand entries; what it raises ends the scan. Raises OSError.
    """

def scan_stubs(
    fd: int, attribute: bytes, seed: int, check: Callable[[], None] | None = None
) -> tuple[
    list[bytes],
    list[tuple[bytes, tuple[int, int, int, int], int, int, bytes | None]],
    int,
    int,
    bytes,
    bytes,
    bytes,
]:
    """What the stubs of a directory name, whatever state they are in.

    Names of directories; files whose attribute is not valid, as :func:`scan_directory` has them;
    how many files there are, and how many valid stubs; the u64 ids of chunks that stubs name; those
    of recipes, and how many bytes of each are covered (u64). ``seed`` is that of the attribute's
    checksum. ``check`` is as for :func:`scan_directory`. Raises OSError.
    """

class FileList:
    """Plain files on their way through an optimise job, without an object for each."""

    def __new__(
        cls,
        directory: bytes = b"",
        packed: bytes = b"",
        suffixes: Set[bytes] | None = None,
        as_is: Set[bytes] = frozenset(),
    ) -> FileList:
        """The plain files that :func:`find_candidates` has packed: paths are names behind
        ``directory``. Of all, or of those whose names end in one of ``suffixes``; those whose names
        end in one of ``as_is`` are not to be compressed. Raises ValueError where these are no such
        files.
        """
    def __len__(self) -> int: ...
    def __getitem__(self, at: int, /) -> tuple[bytes, tuple[int, int, int, int], bool]:
        """Path, identity, and whether it is not to be compressed. Raises IndexError."""
    def __iter__(self) -> Iterator[tuple[bytes, tuple[int, int, int, int], bool]]: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def as_is(self) -> bytes:
        """1 for each file that is not to be compressed, else 0."""
    def add(self, path: bytes, identity: tuple[int, int, int, int], as_is: bool) -> None: ...
    def take(self, source: FileList, at: int, size_max: int, room: int, count_max: int) -> int:
        """Add files of ``source`` from ``at`` on, up to the first of more than ``size_max`` bytes:
        at most ``count_max`` files, of at most ``room`` bytes together. Returns how many."""
    def read(
        self, dir_fd: int, settle_ns: int, out: Buffer, offset: int, threads: int = 1
    ) -> list[tuple[bytes, tuple[int, int, int, int], bool]]:
        """Read each as a whole, one after the other, into ``out`` from ``offset`` on, bypassing the
        page cache. They must have no holes.

        Each takes as many bytes as it had, read or not. One is read only if its inode, size, mtime
        and ctime are its identity before and after, the last change is more than ``settle_ns`` ago,
        and nobody has it open for writing. The others are taken out of the list and returned, for
        the caller to find out why; their room may hold anything. Raises ValueError where ``out`` is
        short.
        """
    def single(self, found: Chunks, ids: Buffer, into: PlainRequests) -> list[int]:
        """Add each file that is one chunk, and not zeros, to ``into``: that chunk is its recipe.
        Returns the numbers of the other files.

        ``found`` are the chunks of these files, ``ids`` the u64 ids of all. Raises ValueError.
        """

class PlainRequests:
    """Plain files to be committed: path, identity, and recipe (id, digest, direct) of each."""

    def __len__(self) -> int: ...
    def __getitem__(
        self, at: int, /
    ) -> tuple[bytes, tuple[int, int, int, int], tuple[int, bytes, bool]]:
        """Raises IndexError."""
    def __iter__(
        self,
    ) -> Iterator[tuple[bytes, tuple[int, int, int, int], tuple[int, bytes, bool]]]: ...
    @property
    def size_bytes(self) -> int:
        """Of all files together."""
    @property
    def paths(self) -> bytes:
        """Each with a NUL byte behind it."""
    def add(
        self, path: bytes, identity: tuple[int, int, int, int], recipe: tuple[int, bytes, bool]
    ) -> None:
        """Raises ValueError where a path has a NUL byte in it, or a digest not 16 bytes."""
    def take(self, source: PlainRequests) -> None:
        """Add what ``source`` has, which has nothing afterwards."""
    def part(self, start: int, stop: int) -> PlainRequests:
        """A copy of those of these positions, as far as there are."""

class Commits:
    """Commits of many plain files; see ``dedupd/stub.py`` for what the steps mean.

    Whatever is out of the ordinary is left, or put back, as it was, for the caller to take those
    files through the same steps one by one, which say what is wrong.
    """

    def __new__(
        cls, data_fd: int, attribute: bytes, seed: int, block_bytes: int, threads: int = 1
    ) -> Commits:
        """``seed`` is that of the attribute's checksum; each step takes up to ``threads``."""
    def begin(self, requests: PlainRequests) -> bytes:
        """Open each file and set its attribute.

        Returns 1 where that was done, else 0. Files stay open, and leased, until they are finished.
        """
    def finish(self) -> bytes:
        """Punch what has begun, not changed since, and nobody else has open, and settle the
        attributes.

        Returns 1 for each request of which all is done, else 0. What failed from its punch on has
        not begun any more: it is not to be taken back, and whoever opens it settles it.
        """
    def begun(self, at: int) -> tuple[int, tuple[int, int, int, int]] | None:
        """Descriptor, and identity with the attribute set, of a file that has begun and is not
        finished; None for others. The descriptor is good until :meth:`close`.
        """
    def close(self) -> None: ...

class FoundFiles:
    """Regular files that a :class:`TreeWalk` found: parallel arrays, one element per file."""

    def __new__(cls) -> FoundFiles:
        """None at all."""
    def with_content(self) -> tuple[bytes, bytes, bytes, bytes]:
        """Those that have something to read: parallel columns.

        u32 numbers, which count all files from 0 on; paths relative to the root, each with a NUL
        byte behind it; u64 ends of the paths; u64 inode, size, mtime and ctime in ns.
        """
    @property
    def failures(self) -> list[tuple[bytes, int]]:
        """Paths of directories that could not be listed, and the error's number."""
    def __len__(self) -> int: ...
    def write(self, path: str, dataset: int, first_file: int) -> None:
        """Write the files as a part of the study's table, numbered from ``first_file`` on.

        Columns dataset, file, path, directory, type (:func:`file_type`), inode, size_bytes,
        modified_ns, changed_ns, links, allocated_bytes. Raises OSError.
        """

class TreeWalk:
    """All regular files of a tree: no link is followed, no other file system entered.

    Depth first; the files of a directory mostly in the order of their inodes. Second names of
    files with hard links are passed over, those of the first ``names_max`` such files at least.
    """

    def __new__(cls, root: bytes, left_out: tuple[int, int], names_max: int) -> TreeWalk:
        """Of a directory, or of a single file.

        ``left_out`` is a directory to pass over (device, inode). Raises OSError.
        """
    def state(self) -> bytes:
        """Where the walk is, for :meth:`resume`. Raises OSError."""
    def resume(self, state: Buffer) -> None:
        """Go on where another walk of the same tree was, also in the middle of a directory.

        Second names of files that it has found are found again. Raises ValueError where ``state``
        is not of a walk.
        """
    @property
    def beyond_names(self) -> bool:
        """Whether there were more than ``names_max``: then some files were found again."""
    def next(self, files_min: int) -> FoundFiles | None:
        """At least so many more files, less only before the end; None there."""

def file_type(name: bytes) -> str:
    """The type of a file: its extension in small letters, or ``""``.

    Versions behind it are no type. They are numbers, what begins with a digit and has more than
    letters and digits, and all behind ``.so.`` and a number that begins with a digit:
    ``libc.so.6``, ``libLLVM.so.22.1-rust-1.95.0-stable`` and ``libssl.so.1.0.2k`` are ``so``.
    """

def write_parquet(path: str, columns: Sequence[tuple[str, str, Buffer]], rows: int) -> None:
    """Write a table, compressed with zstandard, at a new path or over an old one.

    Each column is its name, its kind, and its items, little-endian: ``u16``, ``u32``, ``u64`` or
    ``i64``; ``bytes`` and ``text`` (UTF-8) have the u32 length of each item in front of it.
    Raises OSError, and ValueError where a column has not ``rows`` items.
    """

def read_packed(
    root_fd: int, paths: Buffer, identities: Buffer, out: Buffer, offset: int, threads: int
) -> int:
    """Read whole files into ``out``, one behind the other from ``offset`` on, past the page cache.

    ``paths`` are relative, each with a NUL byte behind it; ``identities`` u64 inode, size, mtime
    and ctime in ns of each. Stops at the first file that is another one or cannot be read, and
    returns the number of those before it. Raises ValueError where ``out`` is short.
    """

def exchange_attribute(
    fd: int,
    identity: tuple[int, int, int, int],
    name: bytes,
    previous: bytes | None,
    value: bytes,
) -> tuple[int, int, int, int] | None:
    """Set an extended attribute on a file that is ``identity`` and has ``previous`` (None: none).

    Inode, size, mtime and ctime in ns; returns what they are then. None, and nothing done, where
    the file is another one, or has changed, or has another attribute, or capabilities, which
    would not outlive it that its blocks are punched. Raises OSError.
    """

def punch_and_settle(
    fd: int, length: int, atime_ns: int, mtime_ns: int, name: bytes, value: bytes
) -> None:
    """Punch the first ``length`` bytes, set the times, set an attribute. Raises OSError."""

def look_up(
    dir_fd: int, names: Sequence[bytes]
) -> list[
    tuple[
        tuple[int, int, bytes],
        tuple[int, int, int, int, int],
        tuple[int, int, int],
        tuple[int, int, int],
    ]
    | None
]:
    """What names of a directory are; None where there is no such name. No link is followed.

    Inode, device, handle (as :func:`name_to_handle`, empty where there is none); mode, links, uid,
    gid, device number; size, block size, blocks; atime, mtime, ctime in ns. Raises OSError.
    """

def list_names(dir_fd: int, start: int, count: int) -> tuple[list[bytes], bytes]:
    """Names in a directory, ``.`` and ``..`` among them, and a place (i64) behind each.

    ``start`` is 0 or one of these places, from which the listing goes on, also that of somebody
    else. All names that are left, or ``count`` and as many more as are read with them. The
    directory's own position is moved. Raises OSError.
    """

# System calls that Python's os module lacks. All raise OSError, release the GIL and retry EINTR.
def punch_hole(fd: int, offset: int, length: int) -> None: ...
def fallocate_keep_size(fd: int, offset: int, length: int) -> None: ...
def present_ranges(fd: int, start: int, end: int) -> list[tuple[int, int]]:
    """(start, end) ranges of a stub in [start, end) that are the file's own, ascending.

    They have blocks, or dirty pages. ``SEEK_DATA`` tells, and on XFS the extent map as well
    (``FS_IOC_FIEMAP``): blocks that XFS has reserved for copies of shared ones are data to the
    former where the page cache has anything of them, and holes in the file. Where the two differ,
    what is dirty is written first. The file's position is moved.
    """

def unwritten_ranges(fd: int, end: int, sync: bool) -> list[tuple[int, int]]:
    """(start, end) of extents below ``end`` that are allocated and were never written, ascending.

    The last one may go on beyond ``end``. What is dirty counts as unwritten; with ``sync`` it is
    written first, by the very call that then tells. None on a file system that has no extent map
    (``FS_IOC_FIEMAP``), which is one that does not outlive the machine (tmpfs).
    """

def syncfs(fd: int) -> None: ...
def renameat2(old_dir_fd: int, old: bytes, new_dir_fd: int, new: bytes, flags: int) -> None: ...
def name_to_handle(fd: int) -> bytes:
    """Opaque handle of an open file (``name_to_handle_at``), its type included."""

def open_by_handle(mount_fd: int, handle: bytes, flags: int) -> int: ...
def fgetxattr(fd: int, name: bytes) -> bytes | None:
    """Attribute of an open file; None where it has none (ENODATA)."""

def interrupt_reads(fd: int, thread: int) -> None:
    """From now on, interrupt a thread of this process wherever it is found waiting in ``read(fd)``.

    ``thread`` is its ``threading.get_native_id()``. The read fails with EINTR within half a second,
    also where the thread holds the GIL. Uses SIGURG. Raises OSError.
    """
