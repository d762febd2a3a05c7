"""Records of containers: sealed, read and checked; their redirection tables."""

from collections.abc import Sequence

from typing_extensions import Buffer

from .codec import Encoded

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
