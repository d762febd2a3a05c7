"""The memory of the jobs that look after a store: marks, needs, references."""

from collections.abc import Callable
from typing import Final, Self, final

from typing_extensions import Buffer

from dedupd_core.format.ids import PackedIds, PackedLengths, PackedOrdinals, PackedPairs

from .store import Bases
from .tree import Directory

FORWARDS_MAX: int
"""Steps from a merged record to the one that has its bytes; more are taken for a ring."""

@final
class Join:
    """The hash join of two sets of chunks: one is added, the other one streams by.

    For reconciliation (docs/design/partitions.md); 14 bytes of RAM a chunk. The input are parts of
    redirection tables: whole entries, of which the live ones count, the checksum seed of their
    container, and the id of the first. The output are pairs (merged, stays): chunks whose
    fingerprints have the same hash of 64 bits, each to be merged once.
    """

    def __new__(cls, capacity: int, sample_bits: int = 0, seed: int = 0) -> Join:
        """For ``capacity`` chunks; of all fingerprints, one in 2^``sample_bits`` counts.

        ``seed`` is that of the hash. As long as it is secret, equal hashes cannot be constructed.
        """
    def __len__(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...
    def add(self, entries: Buffer, seed: int, first_id: int, domain: int = 0) -> bool:
        """Add chunks of a domain, given by any number of its own (u64); chunks of several domains
        are no pairs. False, and nothing added, where there is no room for them."""
    def probe(self, entries: Buffer, seed: int, first_id: int, domain: int = 0) -> PackedPairs:
        """Pairs of chunks that were added and those of the other set; none with itself."""
    def finish(self) -> PackedPairs:
        """Pairs among the added chunks without an equal one in the other set: the first of them
        stays."""

@final
class Followed:
    """Result of :meth:`MarkSet.follow`."""

    found_any: Final[bool]
    """Whether anything was marked."""
    epoch: Final[int]
    """The highest of an orphan, or 0."""
    strays: Final[PackedIds]
    """Targets that are ids of no record."""

@final
class Leaned:
    """Result of :meth:`MarkSet.lean`."""

    found_any: Final[bool]
    """Whether anything was marked."""
    unknown: Final[PackedOrdinals]
    """Places of entries that do not say what their record leans on."""
    strays: Final[PackedIds]
    """Ids of no record, on which marked records lean."""

@final
class NamedByLeaves:
    """Result of :meth:`MarkSet.add_named`."""

    leaves: Final[int]
    """How many were read."""
    rows: Final[int]
    """How many these have."""
    left: Final[PackedOrdinals]
    """Ordinals of nodes of which nothing was marked, because they are no sound leaves."""
    strays: Final[PackedIds]
    """Ids in leaves that belong to no record."""

class MarkSet:
    """A bit for each record of some containers: see ``dedupd_core/store/mark_set.py``."""

    def __new__(cls, counts: dict[int, int]) -> Self:
        """``counts``: container → how many records it has, none of them marked."""
    def numbers(self) -> list[int]: ...
    def knows(self, record_id: int) -> bool:
        """Whether there is such a record, marked or not."""
    def __contains__(self, record_id: int, /) -> bool: ...
    def mark(self, ids: Buffer) -> PackedIds:
        """Mark records; 0 is ignored. Returns the ids that belong to no record."""
    def merge(self, number: int, bits: Buffer) -> bool:
        """Mark the records whose bit is set in ``bits``, in the form of :meth:`bits`. False, and
        nothing marked, where a bit is set that belongs to no record."""
    def bits(self, number: int) -> bytes:
        """The bits of a container, the lowest ordinal in the lowest bit."""
    def count(self) -> int:
        """How many are marked."""
    def follow(self, first_id: int, table: Buffer) -> Followed:
        """Mark the targets of marked merged entries of a table, and live entries that repeat a
        record which is marked or unknown.

        ``table`` begins with the entry of ``first_id``.
        """
    def lean(self, first_id: int, table: Buffer) -> Leaned:
        """Mark what marked records lean on, by a table from the entry of ``first_id`` on."""
    def add_copies(self, first_id: int, table: Buffer, of: MarkSet) -> int:
        """Mark second copies, by their entries, of records that are marked in ``of`` or unknown to
        it. Returns the highest epoch of an orphan, or 0."""
    def add_named(
        self,
        data_fd: int,
        table: Buffer,
        *,
        seed: int,
        first: int,
        ordinals: Buffer,
        ends: Buffer,
    ) -> NamedByLeaves:
        """Read leaves of recipes, and mark the chunks of the first bytes of each.

        ``table`` has the entries of their container from the ordinal ``first`` on, ``ordinals``
        (u32, ascending) are those of the nodes, ``ends`` (u64) how many bytes of each are needed.
        """

@final
class NeedSet:
    """How many bytes of each recipe node are needed: see ``dedupd_core/store/mark_set.py``."""

    def __new__(cls, counts: dict[int, int]) -> NeedSet:
        """``counts``: container → how many nodes it has, none of them needed."""
    def need(self, ids: Buffer, lengths: Buffer) -> None:
        """Note that at least the first ``lengths`` bytes of nodes (u64 each) are needed. Ids of no
        node are ignored."""
    def needed(self, record_id: int) -> int: ...
    def lengths(self, number: int) -> bytes: ...
    def fresh(self, number: int) -> bytes: ...
    def put(self, number: int, lengths: Buffer, fresh: Buffer) -> None: ...
    def take_fresh(self, number: int, first: int, end: int) -> tuple[PackedOrdinals, PackedLengths]:
        """Ordinals of the fresh nodes from ``first``, a multiple of 8, to ``end``, and how
        many bytes of each are needed. Up to the next multiple of 8, nodes are not fresh any
        more."""

def misfits(table: Buffer, needed: Buffer) -> tuple[PackedOrdinals, int]:
    """Places of entries that are needed and orphaned, or neither, without tombstones; and the
    number of orphans. ``needed`` has a bit for each, the first the lowest."""

# Columns of u64: how many bytes of each recipe node are needed. Items after the end are zeros.
def more_than(now: Buffer, before: Buffer) -> bytes:
    """A bit for each item of ``now``, set where it is more than the item of ``before``; the first
    item has the lowest bit."""

def longest(one: Buffer, other: Buffer) -> bytes:
    """The larger one of each item of ``one`` and of ``other``."""

def digest_needed(entries: Buffer, lengths: Buffer, seed: int) -> int:
    """xxh3 (``seed``) of the fingerprints of the entries of a redirection table whose length is not
    0, one after the other."""

class KnownRecords:
    """The records of all containers of one kind: ``jobs/check/record_census.py`` builds on it.

    A record that is there has a raw length, which is not 0, and a fingerprint check: the first 4
    bytes of its fingerprint. Any number of threads may count at once.
    """

    def add_table(self, number: int, table: Buffer, seed: int) -> PackedOrdinals:
        """Add the entries of a container. Returns the ordinals of those that are damaged,
        merged or quarantined, for the caller to :meth:`set`."""
    def set(
        self, record_id: int, raw_length: int, fingerprint_check: int, target: int | None = None
    ) -> None:
        """Replace the facts about a record. ``raw_length`` is 0 where its bytes are not there,
        ``target`` the record that it leads to."""
    def set_second(self, record_id: int, raw_length: int, fingerprint_check: int) -> None:
        """Note that a record has a second copy."""
    def count(self, number: int) -> int: ...
    def numbers(self) -> list[int]: ...
    def holds(self, record_id: int, raw_length: int, fingerprint_check: int) -> bool: ...
    def known(self, record_id: int) -> tuple[int, int]:
        """Raw length and fingerprint check of the record that an id leads to, or of its second
        copy; (0, 0) where neither is there."""
    def is_primary(self, record_id: int) -> bool: ...
    def relied_on(self) -> list[int]: ...
    def refer(self, record_id: int) -> None: ...
    def add_references(self, record_id: int, count: int) -> None: ...
    def references(self, record_id: int) -> int: ...
    def referred_at_least(self, count: int) -> PackedIds:
        """In order."""
    def unreferenced(self) -> int: ...

@final
class NamedByStubs(Directory):
    """What the stubs of a directory name. ``files`` are those whose attribute is not valid."""

    file_count: Final[int]
    """Of all files."""
    stub_count: Final[int]
    """Of the valid stubs."""
    chunks: Final[PackedIds]
    recipes: Final[PackedIds]
    covered: Final[PackedLengths]
    """What is covered of each recipe."""

def scan_stubs(
    fd: int, attribute: bytes, seed: int, safe_point: Callable[[], None] | None = None
) -> NamedByStubs:
    """What the stubs of a directory name, whatever state they are in.

    ``seed`` is that of the attribute's checksum; ``safe_point`` as for
    :func:`.tree.scan_directory`.
    Raises OSError.
    """

@final
class TakenByGroup:
    """What a group needs of a store. Bytes are those of records, with their second copies."""

    chunks: Final[int]
    bytes: Final[int]
    first_bytes: Final[int]
    """Those of records that no group taken before needs."""
    share_bytes: Final[float]
    """Its share, where the bytes of each record are split among all references to it."""
    strays: Final[int]
    """References to records that are not there."""
    plain_bytes: Final[int]
    """What its stubs with a recipe would take if they were plain: no holes, whole blocks."""

@final
class Usage:
    """What groups of files need of a store: see ``jobs/usage/needs.py``. 12 bytes a record.

    Where a parameter is ``recipes``, it chooses between the records of recipes and of chunks.
    Groups are numbers from 0 on, and are taken one after the other.
    """

    def add_table(self, recipes: bool, number: int, table: Buffer, seed: int) -> None:
        """Add a container."""
    def add_copies(self, recipes: bool, table: Buffer, seed: int) -> None:
        """Add second copies, by the table of their container."""
    def name(
        self, group: int, chunks: Buffer, recipes: Buffer, covered: Buffer, count: int = 1
    ) -> None:
        """Note what stubs of a group name: ids (u64), and how many bytes (u64) of each recipe.
        ``count`` 0 stands for a file that counts elsewhere."""
    def take(
        self, group: int, is_sharing: bool
    ) -> list[tuple[int, PackedOrdinals, PackedLengths, bytes]]:
        """Take in what was named since; returns the recipe nodes to read: container, ordinals
        (ascending), how many bytes of each are needed, how often (u32)."""
    def refer(self, group: int, ids: Buffer, count: int, is_sharing: bool) -> None:
        """Take in chunks that a node names."""
    def read_leaves(
        self,
        group: int,
        data_fd: int,
        table: Buffer,
        *,
        seed: int,
        first: int,
        ordinals: Buffer,
        ends: Buffer,
        counts: Buffer,
        is_sharing: bool,
    ) -> PackedOrdinals:
        """Read nodes, and take in the chunks that leaves name. ``table`` begins with the ordinal
        ``first``. Returns the places of nodes that are no sound leaves."""
    def again(self, group: int) -> None:
        """Begin anew, to split the bytes of records among their references, which are all known."""
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
        """The table of a container, or of a container of copies, as a collection leaves it: as
        things are, without the group ``gone``, or without all groups but the last, ``rest``."""
    def sole_groups(self, recipes: bool, number: int, copies: Buffer | None = None) -> list[int]:
        """Groups that alone need any record of a container, or of those that the table ``copies``
        has copies of."""
    def referred_more_than(self, count: int, number: int, table: Buffer) -> tuple[int, int]:
        """How many chunks of a container have more references, and the bytes of a copy of each."""

def deltas(table: Buffer, seed: int) -> tuple[PackedOrdinals, PackedIds]:
    """The entries of records that lean on others, and are not collected: their places, and
    the ids of these, 0 where the entry does not say."""

def pack_sketches(sketches: Buffer) -> bytes:
    """Sketches as they are in a file: a bit for each that is not all zeros, and these."""

def unpack_sketches(packed: Buffer, count: int) -> bytes:
    """What :func:`pack_sketches` was given. Raises ValueError where these are not so many."""

def sketch_records(
    fd: int, table: Buffer, bases: Bases, *, seed: int, first: int, threads: int
) -> bytes:
    """Sketches (six u64 each) of the records of a part of a table, which begins with the ordinal
    ``first``; all zeros for those that are not live, are damaged, or the difference to others.

    The container ``fd`` is read past the page cache.
    """

@final
class Samples:
    """Raw bytes of some records, and the dictionaries that are trained from them."""

    def add(
        self, fd: int, table: Buffer, bases: Bases, *, seed: int, first: int, bytes_max: int
    ) -> None:
        """Take in so many bytes of records of a part of a table, which begins with the ordinal
        ``first``, spread evenly over those that are live, intact, and no difference to another. The
        container ``fd`` is read past the page cache."""
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
        """Up to ``count`` dictionaries for the types of samples that there are, the best ones
        first, and none that would not be worth its space; afterwards there are no samples.

        ``level`` is that of zstd which they are for. They must save more than the ``known`` ones
        do, and all together ``gain_bytes_min``, reckoned up from the samples.
        """

@final
class Refined:
    """Result of :meth:`Refiner.refine`: the records with a new payload."""

    places: Final[PackedOrdinals]
    """Places of the records in what was given."""
    codecs: Final[bytes]
    """u8 of the new payloads."""
    leans_on: Final[PackedIds]
    """The records that they are to lean on; 0 where they lean on none."""
    lengths: Final[bytes]
    """u32 bytes of the payloads, which follow one another in ``payloads``."""
    checksums: Final[bytes]
    """u64 XXH3-64 of the payloads."""
    payloads: Final[bytes]

@final
class Refiner:
    """Finds records that are alike, tries the difference, and dictionaries. For one thread."""

    def __new__(
        cls,
        leaned: MarkSet,
        bases: Bases,
        *,
        level: int | None,
        saving_min: float,
        algorithm: str,
        threads: int,
    ) -> Refiner:
        """``leaned`` are the records on which others lean: they become no difference, and more are
        marked as they come to be. A payload is given up for a difference that is smaller by the
        part ``saving_min``, at least. ``level`` is that of zstd for all that gets a new payload,
        also with a dictionary or by itself; None for differences alone, at level 3."""
    def keep(self, record_id: int) -> None:
        """Leave a record as it is: it holds a dictionary."""
    def use_dictionary(self, record_id: int) -> bool:
        """Use the dictionary that a record holds; False where it cannot be read, or is none."""
    def let_leave(self, base: int, members: Buffer) -> None:
        """Let the differences to a base that nothing else needs leave it together, where that saves
        space. ``members`` (u64) are all of them."""
    def left(self) -> PackedIds:
        """The bases that were left."""
    def bytes(self) -> int:
        """The memory of all features."""
    def forget(self) -> None:
        """Forget all chunks."""
    def want(self, sketches: Buffer, *, domain: int = 0) -> None:
        """Look for what is like these chunks from now on. Chunks lean on those of their own
        ``domain`` alone: a number below 2^24, 0 for the volume's. Raises ValueError."""
    def offer(
        self, first_id: int, sketches: Buffer, table: Buffer, *, seed: int, domain: int = 0
    ) -> None:
        """Let the live records of a part of a table, which begins with the entry of
        ``first_id``, be leaned on in their domain. Raises ValueError."""
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
        """New payloads for records of one domain, in order; with a dictionary in that of the volume
        alone. Those that are no difference to another may be leaned
        on by later ones. ``targets`` are the ids on which they lean now. ``settled`` has a byte for
        each: 1 for those that stay as they are, and may be leaned on.

        Every new payload was decoded, and has given the bytes of the record's fingerprint.
        """
