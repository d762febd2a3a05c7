"""The memory of the jobs that maintain a store: marks, needs, references."""

from collections.abc import Callable, Iterable
from typing import Final, Self, final

from typing_extensions import Buffer

from dedupd_core.format.ids import PackedIds, PackedLengths, PackedOrdinals, PackedPairs

from .store import Bases, Unreadable
from .tree import Directory

FORWARDS_MAX: int
"""Longest path from a merged record to the record with its bytes; a longer path is a cycle."""

@final
class Join:
    """The hash join of two sets of chunks: one is added, the other one is streamed.

    For reconciliation (docs/design/partitions.md); 14 bytes of RAM per chunk. The input are parts
    of redirection tables: complete entries, the checksum seed of their container, and the id of the
    first. Only live entries count. The output are pairs (merged, stays): chunks whose fingerprints
    have the same hash of 64 bits. Each is to be merged once.
    """

    def __new__(cls, capacity: int, sample_bits: int = 0, seed: int = 0) -> Join:
        """For ``capacity`` chunks; of all fingerprints, one in 2^``sample_bits`` counts.

        ``seed`` is that of the hash. While it is secret, equal hashes cannot be constructed.
        """
    def __len__(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...
    def add(self, entries: Buffer, seed: int, first_id: int, domain: int = 0) -> bool:
        """Add chunks of a domain, with its number (u64): chunks of different domains are no pairs.
        Returns False, with nothing added, if they do not fit."""
    def probe(self, entries: Buffer, seed: int, first_id: int, domain: int = 0) -> PackedPairs:
        """Return pairs of added chunks and chunks of the other set; none with itself."""
    def finish(self) -> PackedPairs:
        """Return pairs among the added chunks without an equal one in the other set: the first of
        them stays."""

@final
class Followed:
    """Result of :meth:`Marks.follow`."""

    found_any: Final[bool]
    """Whether anything was marked."""
    epoch: Final[int]
    """The highest epoch of an orphan, or 0."""

@final
class Leaned:
    """Result of :meth:`Marks.lean`."""

    found_any: Final[bool]
    """Whether anything was marked."""
    unknown: Final[PackedOrdinals]
    """Places of entries that do not have the base of their record."""

class Marks:
    """Sets of records of one kind: a bit for each record of some containers."""

    def __new__(cls, counts: dict[int, int]) -> Self:
        """``counts``: container → number of its records, none of them marked."""
    @property
    def strays(self) -> list[int]:
        """Some of the ids that were to be marked and belong to no record, ascending."""
    def knows(self, record_id: int) -> bool:
        """Return whether the record exists, marked or not."""
    def __contains__(self, record_id: int, /) -> bool: ...
    def add(self, ids: Iterable[int]) -> None:
        """Mark records. 0, a hole, is ignored."""
    def add_packed(self, ids: Buffer) -> None:
        """As :meth:`add`."""
    def include(self, other: Marks) -> None:
        """Mark the records that are marked in another set, which has no other containers."""
    def merge(self, number: int, bits: Buffer) -> bool:
        """Mark the records whose bit is set in ``bits``, in the form of :meth:`bits`. Returns
        False, with nothing marked, if a set bit belongs to no record."""
    def bits(self, number: int) -> bytes:
        """Return the bits of a container, the lowest ordinal in the lowest bit."""
    def count(self) -> int:
        """Return the number of marked records."""
    def digest(self) -> bytes:
        """The same for the same marks."""
    def follow(self, first_id: int, table: Buffer) -> Followed:
        """Mark targets of marked merged entries. Mark live entries that repeat a marked or unknown
        record.

        ``table`` starts with the entry of ``first_id``.
        """
    def lean(self, first_id: int, table: Buffer) -> Leaned:
        """Mark the bases of marked records, by a table from the entry of ``first_id`` on."""
    def add_copies(self, first_id: int, table: Buffer, of: Marks) -> int:
        """Mark second copies, by their entries, of records that ``of`` has marked or does not know.
        Returns the highest epoch of an orphan, or 0."""

@final
class NodesRead:
    """Result of :meth:`Needs.read_fresh`."""

    taken: Final[int]
    """Nodes that are no longer fresh; 0 if none was."""
    nodes: Final[int]
    """Those of them that were read."""
    rows: Final[int]
    """In the needed parts of these."""
    unreadable: Final[list[Unreadable]]
    """The unreadable nodes. Nothing that they name is marked."""

@final
class Needs(Marks):
    """Marks of recipe nodes, each with how many bytes from its beginning are needed.

    A file that was cut needs only the beginning of its recipe. Eight bytes for each node. A node is
    fresh while more of it is needed than was read.
    """

    WHOLE: Final[int]
    """The length that stands for all of a node."""

    def copy(self) -> Needs: ...
    def digest(self) -> bytes:
        """The same for the same marks and lengths."""
    def need(self, record_id: int, length: int) -> None:
        """Mark a node: at least its first ``length`` bytes are needed."""
    def need_packed(self, ids: Buffer, lengths: Buffer) -> None:
        """As :meth:`need`."""
    def lengths(self, number: int) -> bytes:
        """How many bytes of each node of a container are needed (u64)."""
    def fresh(self, number: int) -> bytes:
        """The bits of the fresh nodes of a container."""
    def resume(self, number: int, wanted: Buffer, needed: Buffer, fresh: Buffer) -> bool:
        """Adopt the results of an earlier run for a container: the length of each node that stubs
        ``wanted``, the ``needed`` length (u64 each), and the bits of its unread nodes.
        Nodes are fresh if more of them is needed now.

        Returns False, and adopts nothing, if more was wanted than is needed now, or if the
        container has fewer nodes. Items after the end of a column are zeros.
        """
    def read_fresh(self, recipes: Bases, chunks: Marks, most: int) -> NodesRead:
        """Read the next fresh nodes, and mark what their needed part names: chunks, or other nodes.

        All are of one container. The search continues behind the nodes that were read last, and
        then from the first container on.
        """
    def add_node(self, record_id: int, payload: Buffer, chunks: Marks) -> int | None:
        """Mark what the needed part of a node names, by its payload, which the caller has verified.
        Returns how many rows that has; None if the payload is not a node."""

def misfits(table: Buffer, needed: Buffer) -> tuple[PackedOrdinals, int]:
    """Return places of entries that are needed and orphaned, or neither, and the number of orphans.
    Tombstones do not count. ``needed`` has a bit for each; the first is the lowest."""

def digest_needed(entries: Buffer, lengths: Buffer, seed: int) -> int:
    """Return the xxh3 (``seed``) of consecutive fingerprints: those of the entries of a redirection
    table whose length is not 0."""

class KnownRecords:
    """The records of all containers of one kind: ``jobs/check/record_census.py`` builds on it.

    An existing record has a raw length, which is not 0, and a fingerprint check: the first 4 bytes
    of its fingerprint. Any number of threads may count at once.
    """

    def add_table(self, number: int, table: Buffer, seed: int) -> PackedOrdinals:
        """Add the entries of a container. Returns the ordinals of the records that are merged or
        quarantined."""
    def set(
        self, record_id: int, raw_length: int, fingerprint_check: int, target: int | None = None
    ) -> None:
        """Replace the facts about a record. ``raw_length`` is 0 if its bytes are missing,
        ``target`` is the record that it is redirected to."""
    def set_second(self, record_id: int, raw_length: int, fingerprint_check: int) -> None:
        """Note that a record has a second copy."""
    def count(self, number: int) -> int: ...
    def numbers(self) -> list[int]: ...
    def holds(self, record_id: int, raw_length: int, fingerprint_check: int) -> bool: ...
    def known(self, record_id: int) -> tuple[int, int]:
        """Return raw length and fingerprint check of an id's final record, or of its second copy.
        Returns (0, 0) if neither exists."""
    def end_of(self, record_id: int) -> int:
        """Where a row of merged records ends; the record itself if it was not merged."""
    def is_primary(self, record_id: int) -> bool: ...
    def relied_on(self) -> list[int]: ...
    def refer(self, record_id: int) -> None: ...
    def add_references(self, record_id: int, count: int) -> None: ...
    def references(self, record_id: int) -> int: ...
    def referred_at_least(self, count: int) -> PackedIds:
        """Return the records with at least ``count`` references, in order."""
    def unreferenced(self) -> int: ...

@final
class NamedByStubs(Directory):
    """The records in the stubs of a directory. ``files`` have an invalid attribute."""

    file_count: Final[int]
    """Number of all files."""
    stub_count: Final[int]
    """Number of valid stubs."""
    chunks: Final[PackedIds]
    recipes: Final[PackedIds]
    covered: Final[PackedLengths]
    """The covered length of each recipe."""

def scan_stubs(
    fd: int, attribute: bytes, seed: int, safe_point: Callable[[], None] | None = None
) -> NamedByStubs:
    """Return the records that the stubs of a directory name, in any state of the stubs.

    ``seed`` is that of the attribute's checksum; ``safe_point`` as for
    :func:`.tree.scan_directory`. Raises OSError.
    """

@final
class TakenByGroup:
    """The needs of a group in a store. Bytes are those of records, with their second copies."""

    chunks: Final[int]
    bytes: Final[int]
    first_bytes: Final[int]
    """Bytes of records that no earlier group needs."""
    share_bytes: Final[float]
    """Its share, if the bytes of each record are split among all references to it."""
    strays: Final[int]
    """References to missing records."""
    plain_bytes: Final[int]
    """The size of its stubs with a recipe if they were plain: no holes, complete blocks."""

@final
class Usage:
    """The needs of groups of files in a store: see ``jobs/usage/needs.py``. 12 bytes per record.

    A parameter ``recipes`` selects the records of recipes, otherwise those of chunks. Groups are
    numbers from 0 on, and are processed one after the other.
    """

    def add_table(self, recipes: bool, number: int, table: Buffer, seed: int) -> None:
        """Add a container."""
    def add_copies(self, recipes: bool, table: Buffer, seed: int) -> None:
        """Add second copies, by the table of their container."""
    def name(
        self, group: int, chunks: Buffer, recipes: Buffer, covered: Buffer, count: int = 1
    ) -> None:
        """Note the names in stubs of a group: ids (u64), and the bytes (u64) of each recipe.
        ``count`` 0 is for a file that counts elsewhere."""
    def read(
        self, group: int, recipes: Bases, is_sharing: bool, safe_point: Callable[[], None]
    ) -> list[Unreadable]:
        """Take in what was named since, with what recipes name. Returns the nodes that cannot be
        read: what the next call takes in are those that :meth:`add_node` gives."""
    def add_node(self, group: int, record_id: int, payload: Buffer, is_sharing: bool) -> bool:
        """Take in a node that could not be read, by its payload, which the caller has verified.
        Returns whether that is a node."""
    def again(self, group: int) -> None:
        """Restart, to split the bytes of records among their references, now all known."""
    def taken(self, group: int) -> TakenByGroup: ...
    def collected(
        self,
        recipes: bool,
        number: int,
        table: Buffer,
        seed: int,
        *,
        of_copies: bool,
        gone: int | None = None,
        rest: int | None = None,
    ) -> bytes:
        """Return the table of a container, or of a container of copies, after a collection: with
        all groups, without the group ``gone``, or without all groups except the last, ``rest``."""
    def sole_groups(self, recipes: bool, number: int, copies: Buffer | None = None) -> list[int]:
        """Return groups that alone need a record of the container. With ``copies``, only records
        with copies in this table count."""
    def referred_more_than(self, count: int, number: int, table: Buffer) -> tuple[int, int]:
        """Return the number of chunks with more references, and the bytes of a copy of each."""

def deltas(table: Buffer, seed: int) -> tuple[PackedOrdinals, PackedIds]:
    """Return the entries of records that depend on others, and are not collected: their places, and
    the ids of their bases, 0 if the entry does not have it."""

def pack_sketches(sketches: Buffer) -> bytes:
    """Encode sketches for a file: a bit for each that is not all zeros, and these sketches."""

def unpack_sketches(packed: Buffer, count: int) -> bytes:
    """Decode :func:`pack_sketches`. Raises ValueError if there are not ``count`` sketches."""

def sketch_records(
    fd: int, table: Buffer, bases: Bases, *, seed: int, first: int, threads: int
) -> bytes:
    """Return sketches (six u64 each) of the records in a part of a table, from ``first`` on. They
    are all zeros for damaged records, deltas, and records that are not live.

    The container ``fd`` is read without the page cache.
    """

@final
class Samples:
    """Raw bytes of some records, and the dictionaries that are trained from them."""

    def add(
        self, fd: int, table: Buffer, bases: Bases, *, seed: int, first: int, bytes_max: int
    ) -> None:
        """Add up to ``bytes_max`` bytes of the records in a part of a table, from ``first`` on.
        They are spread evenly over live, intact records that are no deltas. The container ``fd`` is
        read without the page cache."""
    def train(
        self,
        *,
        known: list[bytes],
        count: int,
        bytes_max: int,
        gain_bytes_min: float,
        level: int,
        threads: int,
    ) -> list[bytes]:
        """Return up to ``count`` dictionaries for the types of samples, the best first. All are
        worthwhile. Afterwards there are no samples.

        ``level`` is the level of zstd that uses them. They must save more than the ``known`` ones,
        and together an estimated ``gain_bytes_min``.
        """

@final
class Refined:
    """Result of :meth:`Refiner.refine`: the records with a new payload."""

    places: Final[PackedOrdinals]
    """Places of the records in the input."""
    codecs: Final[bytes]
    """u8 of the new payloads."""
    leans_on: Final[PackedIds]
    """The bases of the records; 0 if they have none."""
    lengths: Final[bytes]
    """u32 bytes of the payloads, which follow one another in ``payloads``."""
    checksums: Final[bytes]
    """u64 XXH3-64 of the payloads."""
    payloads: Final[bytes]

@final
class Refiner:
    """Finds similar records, tries deltas, and dictionaries. For one thread."""

    def __new__(
        cls,
        leaned: Marks,
        bases: Bases,
        *,
        level: int | None,
        saving_min: float,
        algorithm: str,
        threads: int,
    ) -> Refiner:
        """``leaned`` are the bases of other records: they become no deltas, and new bases are
        marked. A delta replaces a payload if it is smaller by the fraction ``saving_min``, at
        least. ``level`` is that of zstd for all new payloads, including payloads with a dictionary
        or without a base; None for deltas alone, at level 3."""
    def keep(self, record_id: int) -> None:
        """Keep a record unchanged: it is a dictionary."""
    def use_dictionary(self, record_id: int) -> bool:
        """Use the dictionary in a record; return False if it cannot be read, or is none."""
    def let_leave(self, base: int, members: Buffer) -> None:
        """Make the deltas to a base that only they need leave it together, if that saves space.
        ``members`` (u64) are all of them."""
    def left(self) -> PackedIds:
        """Return the bases that were left."""
    def bytes(self) -> int:
        """Return the memory of all features."""
    def forget(self) -> None:
        """Forget all chunks."""
    def want(self, sketches: Buffer, *, domain: int = 0) -> None:
        """Search for chunks similar to these from now on. Chunks only depend on chunks of their
        ``domain``: a number below 2^24, 0 for the volume's. Raises ValueError."""
    def offer(
        self, first_id: int, sketches: Buffer, table: Buffer, *, seed: int, domain: int = 0
    ) -> None:
        """Offer live records as bases in their domain. ``table`` is a part that starts with the
        entry of ``first_id``. Raises ValueError."""
    def refine(
        self,
        *,
        ids: Buffer,
        codecs: Buffer,
        settled: Buffer,
        targets: Buffer,
        raw_lengths: Buffer,
        checksums: Buffer,
        fingerprints: Buffer,
        lengths: Buffer,
        payloads: Buffer,
        sketches: Buffer,
        domain: int = 0,
    ) -> Refined:
        """Return new payloads for records of one domain, in order. Dictionaries are only used in
        the domain of the volume. Records that are no deltas may become bases of later ones.
        ``targets`` are the ids of their present bases. ``settled`` has a byte for each: 1 for
        records that keep their payload, and may become bases.

        Every new payload was decoded, and its bytes match the record's fingerprint.
        """
