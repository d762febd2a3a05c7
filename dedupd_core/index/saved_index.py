"""The common part of the indexes over the log of redirection entries (docs/design/index.md)."""

from array import array
from collections.abc import Sequence
from contextlib import suppress
from typing import Generic, NamedTuple, TypeVar

from dedupd_core import native
from dedupd_core.config.room import MakeRoom
from dedupd_core.format.ids import unpack_ids
from dedupd_core.store.chunk_index import IndexCounters
from dedupd_core.store.container.table_file import Recovered
from dedupd_core.system.disk import Disk

PAGE_ENTRIES = 1000
"""Adjacent entries that one read of a redirection table brings into the cache (seed 003)."""

CACHE_ENTRIES = 100_000
"""Entries in the cache: 6.4 MB."""

SAVED_ENTRIES_MIN = 1 << 16
"""Building a smaller index is faster than reading its file."""

GHOSTS_MAX = 8
"""One entry out of this number may be of a deleted chunk; with more, the file is removed, and the
next job makes a new index."""


class SavedFile(NamedTuple):
    """The file that keeps an index between jobs."""

    disk: Disk
    dir_fd: int
    name: bytes
    make_room: MakeRoom

    def remove(self) -> None:
        """Remove it, if it exists."""
        disk = self.disk
        with suppress(FileNotFoundError):
            disk.unlink(self.dir_fd, self.name)


_Native = TypeVar("_Native", native.index.TableIndex, native.index.BloomIndex)


class LoggedIndex(Generic[_Native]):
    """The part of a ``StoreIndex`` that the native index implements."""

    _native: _Native
    _saved_entries_min: int

    def __len__(self) -> int:
        return len(self._native)

    def lookup(self, fingerprints: bytes) -> "memoryview[int]":
        return unpack_ids(self._native.lookup(fingerprints))

    def insert(self, fingerprints: bytes, ids: Sequence[int]) -> None:
        self._native.insert(fingerprints, array("Q", ids))

    def load(self, container: Recovered) -> None:
        header = container.header
        self._native.load(header.container, header.generation, len(container.entries))

    def use_followers(self, followers: native.chunker.Followers) -> None:
        """Fill ``followers`` with the results of look-ups from now on."""
        self._native.use_followers(followers)

    def take_found_orphans(self) -> set[int]:
        return set(unpack_ids(self._native.take_found_orphans()))

    def counters(self) -> IndexCounters:
        of = self._native.figures()
        counts = of.lookups, of.hits, of.false_positives, of.disk_reads
        return IndexCounters(*counts, of.memory_bytes)

    def _is_worth_saving(self, entries: int) -> bool:
        """Return whether it has enough entries, and few of them are of deleted chunks."""
        ghosts = entries - len(self)
        return entries >= self._saved_entries_min and ghosts * GHOSTS_MAX <= entries
