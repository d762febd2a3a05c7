"""Look-up of chunks by fingerprint."""

from collections.abc import Callable

from typing_extensions import Buffer

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
    def figures(self) -> tuple[int, int, int]:
        """Entries in RAM; how many of them no restored snapshot had; bytes of RAM."""
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

    As :class:`TableIndex` in all that both have. What is damaged in the file is made again.

    Durable effect: the file's content and length, by the door. The content is derived.
    """

    def __new__(
        cls,
        dir_fd: int,
        volume: bytes,
        kind: int,
        fd: int,
        door: Callable[..., int] | None,
        *,
        capacity: int,
        page_entries: int,
        cache_entries: int,
    ) -> BloomIndex:
        """``fd``: the file, open for reading and writing; it stays the caller's, and may be
        closed. ``door``: of the disk (``Disk.door``). :meth:`restore` comes next."""
    def __len__(self) -> int: ...
    def load(self, container: int, generation: int) -> None: ...
    def lookup(self, fingerprints: Buffer) -> bytes: ...
    def insert(self, fingerprints: Buffer, ids: Buffer) -> int: ...
    def take_found_orphans(self) -> bytes: ...
    def counters(self) -> tuple[int, int, int, int]: ...
    def figures(self) -> tuple[int, int, bool]:
        """Entries of the chains; bytes of RAM; whether some entries had no room on the disk."""
    def restore(self, capacity: int) -> bool:
        """Take over what the file has, which then is not valid any more, and has to be synced
        before anything else. False, and an empty file, where it is not valid."""
    def write_lists(self) -> None:
        """Write what the next job needs beside the chains; the file is to be synced then."""
    def write_header(self) -> None:
        """Make the file valid again."""
