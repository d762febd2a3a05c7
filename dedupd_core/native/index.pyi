"""Look-up of chunks by fingerprint."""

from collections.abc import Callable
from typing import Final, final

from typing_extensions import Buffer

from dedupd_core.format.ids import PackedIds

from .chunker import Followers

@final
class Figures:
    """Counters since an index was made, and its size."""

    lookups: Final[int]
    hits: Final[int]
    false_positives: Final[int]
    disk_reads: Final[int]
    entries: Final[int]
    """In RAM or in chains, including those that cannot be used any more."""
    added: Final[int]
    """Entries that are not from a restored snapshot."""
    memory_bytes: Final[int]
    is_lossy: Final[bool]
    """Whether entries were left out because the disk is full."""

@final
class TableIndex:
    """Index of fingerprints in about 6.4 bytes of RAM each, over the redirection tables.

    Every answer is checked against an entry of a table: see docs/design/index.md. Raises OSError
    where a table cannot be read, or (EOVERFLOW) where there are more than 2^32 records.
    """

    def __new__(
        cls,
        dir_fd: int,
        volume_id: bytes,
        kind: int,
        *,
        capacity: int,
        page_entries: int,
        cache_entries: int,
    ) -> TableIndex:
        """``dir_fd``: the directory of the tables, which the caller keeps open. ``capacity``:
        entries to be loaded; ``page_entries``: adjacent entries read at once; ``cache_entries``:
        entries kept."""
    def __len__(self) -> int:
        """Entries that can be found."""
    def load(self, container: int, generation: int, count: int) -> None:
        """Load the first ``count`` entries of the table of a container, which must not be written
        to meanwhile. Later entries are not there until this index is told of one by
        :meth:`insert`."""
    def lookup(self, fingerprints: Buffer) -> PackedIds:
        """An id per fingerprint, 0 where absent."""
    def insert(self, fingerprints: Buffer, ids: Buffer) -> int:
        """Set ids (u64, not 0); an existing entry is kept. Returns how many were new.

        The ids are of records that are about to be appended; those of containers that were not
        loaded are of the first generation.
        """
    def use_followers(self, followers: Followers) -> None:
        """Fill ``followers`` from here on with the entries around those that are looked up."""
    def take_found_orphans(self) -> PackedIds:
        """Ids of orphaned entries that were found since the last call."""
    def figures(self) -> Figures: ...
    def begin_snapshot(self) -> None:
        """Prepare for :meth:`snapshot_part`; nothing may be inserted until the last part."""
    def snapshot_part(self, part: int) -> bytes | None:
        """A part of the file, from 0 on; None after the last one."""
    def restore(self, fd: int, capacity: int) -> bool:
        """Restore a saved table, before anything is loaded. Where it is not valid: False, and an
        empty table with room for ``capacity`` entries."""

@final
class BloomIndex:
    """Index of fingerprints in one to two bytes of RAM each, over a file of filters and the
    redirection tables.

    Methods that both have are as in :class:`TableIndex`. Damage in the file is detected and
    repaired.

    Durable effect: the file's content and length, by the door. The content is derived.
    """

    def __new__(
        cls,
        dir_fd: int,
        volume_id: bytes,
        kind: int,
        fd: int,
        door: Callable[..., int] | None,
        *,
        reserve_bytes: int,
        capacity: int,
        page_entries: int,
        cache_entries: int,
    ) -> BloomIndex:
        """``fd``: the file, open for reading and writing. It is duplicated, and the caller may
        close it. ``door``: of the disk (``Disk.door``). Entries for which no more than
        ``reserve_bytes`` are free are left out. :meth:`restore` has to be called next."""
    def __len__(self) -> int: ...
    def load(self, container: int, generation: int, count: int) -> None: ...
    def lookup(self, fingerprints: Buffer) -> PackedIds: ...
    def insert(self, fingerprints: Buffer, ids: Buffer) -> int: ...
    def use_followers(self, followers: Followers) -> None: ...
    def take_found_orphans(self) -> PackedIds: ...
    def figures(self) -> Figures: ...
    def restore(self, capacity: int) -> bool:
        """Restore the chains from the file. The file is not valid from then on, and has to be
        synced before any other call. False, and an empty file, where it was not valid."""
    def write_lists(self) -> None:
        """Write the lists that the next job needs beside the chains. Then the file has to be
        synced."""
    def write_header(self) -> None:
        """Make the file valid again."""

@final
class HookIndex:
    """A sample of the chunks of other partitions over their redirection tables: those whose hash
    ends in ``zeros`` are found, and their neighbours while these are in the cache.

    Nothing is inserted; methods that others have are as in :class:`TableIndex`.
    """

    def __new__(
        cls,
        dir_fd: int,
        volume_id: bytes,
        kind: int,
        *,
        capacity: int,
        zeros: int,
        page_entries: int,
        cache_entries: int,
    ) -> HookIndex:
        """``capacity``: entries to be loaded, of which those that are no hooks take no memory."""
    def load(self, container: int, generation: int, count: int) -> None: ...
    def find_absent(self, fingerprints: Buffer, ids: Buffer) -> PackedIds:
        """``ids``, with those that are 0 looked up here, 0 where absent here too."""
    def take_found_orphans(self) -> PackedIds: ...
    def figures(self) -> Figures: ...
