"""The interface of every index of chunks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dedupd_core.store.container.table_file import Recovered


@dataclass(frozen=True, slots=True)
class IndexCounters:
    """The cost of look-ups, and the memory of the index; the JSON form of the report.

    ``hits_of_others`` are those of the hits that other partitions have. ``false_positives`` are
    entries that were looked at on disk, or in the cache, for nothing.
    ``memory_bytes``, cache and buffers included, is 0 where it is not known.
    """

    lookups: int = 0
    hits: int = 0
    false_positives: int = 0
    disk_reads: int = 0
    memory_bytes: int = 0
    hits_of_others: int = 0


class ChunkIndex(Protocol):
    """Exact look-up of fingerprints, in batches.

    ``fingerprints`` are 32 bytes each, packed; ids are 0 where there is none.
    """

    def __len__(self) -> int: ...

    def lookup(self, fingerprints: bytes) -> "memoryview[int]":
        """The u64 id of each fingerprint, or 0."""
        ...

    def insert(self, fingerprints: bytes, ids: Sequence[int]) -> None:
        """Remember ids; a fingerprint that is known keeps its id."""
        ...


class StoreIndex(ChunkIndex, Protocol):
    """A ``ChunkIndex`` of the records in containers of one kind, for a job that writes.

    It offers orphans too. An orphan that was found is about to be named again, so it must be made
    live, durably, before the file that names it is committed: see :meth:`take_found_orphans`.
    """

    def load(self, container: Recovered) -> None:
        """Insert every chunk of a container whose bytes are there."""
        ...

    def take_found_orphans(self) -> set[int]:
        """Ids of orphans that were looked up with success since the last call."""
        ...

    def counters(self) -> IndexCounters:
        """The counters since the index was made."""
        ...

    def save(self) -> None:
        """Leave what makes the next opening faster. Everything inserted should be in the store."""
        ...


class EmptyIndex:
    """A ``StoreIndex`` that keeps nothing: in the place of one that is about to be made."""

    def __len__(self) -> int:
        return 0

    def lookup(self, fingerprints: bytes) -> "memoryview[int]":
        return memoryview(bytes(len(fingerprints) // 4)).cast("Q")

    def insert(self, fingerprints: bytes, ids: Sequence[int]) -> None:
        pass

    def load(self, container: Recovered) -> None:
        pass

    def take_found_orphans(self) -> set[int]:
        return set()

    def counters(self) -> IndexCounters:
        return IndexCounters()

    def save(self) -> None:
        pass
