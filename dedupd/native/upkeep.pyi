"""What the jobs that look after a store keep of its records in memory."""

from collections.abc import Callable

from typing_extensions import Buffer

FORWARDS_MAX: int
"""Steps from a merged record to the one that has its bytes; more are taken for a ring."""

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

    Names of directories; files whose attribute is not valid, as in :func:`.tree.scan_directory`;
    how many files there are, and how many valid stubs; the u64 ids of chunks that stubs name; those
    of recipes, and how many bytes of each are covered (u64). ``seed`` is that of the attribute's
    checksum. ``check`` is as for :func:`.tree.scan_directory`. Raises OSError.
    """
