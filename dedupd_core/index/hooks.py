"""The index of a partition, and a sample of all other partitions (docs/design/partitions.md)."""

from collections.abc import Sequence
from dataclasses import replace

from dedupd_core import native
from dedupd_core.config.memory_budget import INDEX_ENTRY_BYTES
from dedupd_core.config.policy import IndexChoice
from dedupd_core.format.ids import unpack_ids
from dedupd_core.index.saved_index import CACHE_ENTRIES, PAGE_ENTRIES
from dedupd_core.store.chunk_index import IndexCounters, StoreIndex
from dedupd_core.store.container.directory import ContainerDirectory
from dedupd_core.store.container.table_file import Recovered

ENTRIES_MIN = 1 << 10
"""With fewer chunks, 80 MiB of data or less, other partitions are left to reconciliation."""

_CACHED_BYTES = 74
"""For each entry of the cache: the entry itself, and its position."""


class HookedIndex:
    """A ``StoreIndex`` of one partition that also finds chunks of others; borrows ``directory``.

    The *hooks*, chunks of other partitions whose hashes end in some zeros, are in memory: as many
    as fit into half of ``share_bytes``, or all. ``entries``: the number of these chunks, which
    :meth:`load_other` is about to load. A look-up of a hook finds it like any other chunk.
    ``insert``, ``save`` and ``len`` only concern the own partition.
    """

    def __init__(
        self, own: StoreIndex, directory: ContainerDirectory, *, entries: int, share_bytes: int
    ) -> None:
        cache_bytes = min(share_bytes // 2, CACHE_ENTRIES * _CACHED_BYTES)
        self.zeros = zeros_for(entries, share_bytes - cache_bytes)
        self._own = own
        self._hooks = native.index.HookIndex(
            directory.fd,
            directory.volume_id,
            directory.kind,
            capacity=entries,
            zeros=self.zeros,
            page_entries=PAGE_ENTRIES,
            cache_entries=cache_bytes // _CACHED_BYTES,
        )

    def __len__(self) -> int:
        return len(self._own)

    def load(self, container: Recovered) -> None:
        self._own.load(container)

    def load_other(self, container: Recovered) -> None:
        """Load a container of another partition."""
        header = container.header
        self._hooks.load(header.container, header.generation, len(container.entries))

    def lookup(self, fingerprints: bytes) -> "memoryview[int]":
        ids = self._own.lookup(fingerprints)
        return unpack_ids(self._hooks.find_absent(fingerprints, ids))

    def insert(self, fingerprints: bytes, ids: Sequence[int]) -> None:
        self._own.insert(fingerprints, ids)

    def take_found_orphans(self) -> set[int]:
        found = set(unpack_ids(self._hooks.take_found_orphans()))
        return found | self._own.take_found_orphans()

    def counters(self) -> IndexCounters:
        own, of = self._own.counters(), self._hooks.figures()
        return replace(
            own,
            hits=own.hits + of.hits,
            hits_of_others=of.hits,
            false_positives=own.false_positives + of.false_positives,
            disk_reads=own.disk_reads + of.disk_reads,
            memory_bytes=own.memory_bytes + of.memory_bytes,
        )

    def save(self) -> None:
        self._own.save()


def zeros_for(entries: int, table_bytes: int) -> int:
    """Return the number of zeros at the end of a hook's hash, so that all hooks fit."""
    zeros = 0
    while (entries >> zeros) * INDEX_ENTRY_BYTES[IndexChoice.TABLE] > table_bytes:
        zeros += 1
    return zeros
