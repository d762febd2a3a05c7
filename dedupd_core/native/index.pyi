"""Looks up chunks by fingerprint."""

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
    """In RAM or in chains, including unusable entries."""
    added: Final[int]
    """Entries that are not from a restored snapshot."""
    memory_bytes: Final[int]
    is_lossy: Final[bool]
    """Whether entries were omitted because the disk is full."""

@final
class TableIndex:
    """Index of fingerprints in about 6.4 bytes of RAM each, over the redirection tables.

    Every answer is compared with an entry of a table: see docs/design/index.md. Raises OSError if a
    table cannot be read, or (EOVERFLOW) if there are more than 2^32 records.
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
        entries to load; ``page_entries``: adjacent entries read together; ``cache_entries``:
        entries in memory."""
    def __len__(self) -> int:
        """Number of entries that can be found."""
    def load(self, container: int, generation: int, count: int) -> None:
        """Load the first ``count`` entries of the table of a container. No process may write to the
        table during the call. Later entries are only known after :meth:`insert`."""
    def lookup(self, fingerprints: Buffer) -> PackedIds:
        """Return an id per fingerprint, 0 if absent."""
    def insert(self, fingerprints: Buffer, ids: Buffer) -> int:
        """Set ids (u64, not 0); existing entries are kept. Returns the number of new entries.

        The ids are of records that are about to be appended. Containers that were not loaded are of
        the first generation.
        """
    def use_followers(self, followers: Followers) -> None:
        """Add the entries around each look-up to ``followers`` from now on."""
    def take_found_orphans(self) -> PackedIds:
        """Return ids of orphaned entries that were found since the last call."""
    def figures(self) -> Figures: ...
    def begin_snapshot(self) -> None:
        """Prepare for :meth:`snapshot_part`; inserts are forbidden until the last part."""
    def snapshot_part(self, part: int) -> bytes | None:
        """Return a part of the file, counted from 0; None after the last part."""
    def restore(self, fd: int, capacity: int) -> bool:
        """Restore a saved table, before anything is loaded. If it is invalid, return False, with an
        empty table with room for ``capacity`` entries."""

@final
class BloomIndex:
    """Index of fingerprints in one to two bytes of RAM each. It uses a file of filters and the
    redirection tables.

    Methods of both classes work as in :class:`TableIndex`. Damage in the file is detected and
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
        """``fd``: the file, open for reading and writing. It is duplicated, so the caller may close
        it. ``door``: of the disk (``Disk.door``). Entries are omitted if ``reserve_bytes`` or less
        are free. The next call must be :meth:`restore`."""
    def __len__(self) -> int: ...
    def load(self, container: int, generation: int, count: int) -> None: ...
    def lookup(self, fingerprints: Buffer) -> PackedIds: ...
    def insert(self, fingerprints: Buffer, ids: Buffer) -> int: ...
    def use_followers(self, followers: Followers) -> None: ...
    def take_found_orphans(self) -> PackedIds: ...
    def figures(self) -> Figures: ...
    def restore(self, capacity: int) -> bool:
        """Restore the chains from the file. The file is invalid afterwards, and must be synced
        before any other call. If it was invalid before, return False, with an empty file."""
    def write_lists(self) -> None:
        """Write the lists that the next job needs in addition to the chains. Then the file must be
        synced."""
    def write_header(self) -> None:
        """Make the file valid again."""

@final
class HookIndex:
    """A sample of the chunks of other partitions over their redirection tables. It finds chunks
    whose hash ends in ``zeros``, and their neighbours while these are in the cache.

    It has no inserts; other methods work as in :class:`TableIndex`.
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
        """``capacity``: entries to load; entries that are no hooks need no memory."""
    def load(self, container: int, generation: int, count: int) -> None: ...
    def find_absent(self, fingerprints: Buffer, ids: Buffer) -> PackedIds:
        """Return ``ids``, with each 0 replaced by a look-up here; still 0 if absent."""
    def take_found_orphans(self) -> PackedIds: ...
    def figures(self) -> Figures: ...
