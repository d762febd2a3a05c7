"""The index in about 6.4 bytes of RAM a chunk: signatures over the redirection tables.

Seed 003, section 4.4; the design and its figures are in docs/index.md.
"""

import os
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count
from typing import NamedTuple

from dedupd import native
from dedupd.disk import Disk
from dedupd.errors import NoSpace
from dedupd.format import table as tbl
from dedupd.format.container import Kind
from dedupd.fsutil import opened
from dedupd.index.base import IndexCounters
from dedupd.store.container import NEW, table_name
from dedupd.store.recovery import Recovered, container_numbers

PAGE_ENTRIES = 1000
"""Neighbouring entries that one read of a redirection table brings into the cache (seed 003)."""

CACHE_ENTRIES = 100_000
"""Entries that the cache keeps: 6.4 MB."""

SAVED_ENTRIES_MIN = 1 << 16
"""A smaller table is made faster than its file is read."""

_SAVED_NEWS = 16
"""A table is saved where one entry in so many is not in its file; the tables tell of the rest."""

GHOSTS_MAX = 8
"""One entry in so many may be of chunks that are no more; else the file is removed, and the next
job makes the table anew."""


class SavedFile(NamedTuple):
    """The file that an index is kept in between jobs."""

    disk: Disk
    dir_fd: int
    name: bytes

    def remove(self) -> None:
        """Remove it, if it is there."""
        disk = self.disk
        with suppress(FileNotFoundError):
            disk.unlink(self.dir_fd, self.name)


class TableIndex:
    """A ``StoreIndex`` over ``native.TableIndex``. ``dir_fd`` (containers and tables) is borrowed.

    ``capacity``: entries that are about to be loaded; without it, as many as all tables there have.
    A container that is loaded has been recovered, and nobody but this job changes it afterwards.
    Raises OSError where a redirection table cannot be read.
    """

    def __init__(
        self,
        dir_fd: int,
        volume: bytes,
        kind: Kind,
        saved: SavedFile | None = None,
        *,
        capacity: int | None = None,
        page_entries: int = PAGE_ENTRIES,
        cache_entries: int = CACHE_ENTRIES,
        saved_entries_min: int = SAVED_ENTRIES_MIN,
    ) -> None:
        if capacity is None:
            capacity = _entries_in(dir_fd)
        self._native = native.TableIndex(
            dir_fd,
            volume,
            kind,
            capacity=capacity,
            page_entries=page_entries,
            cache_entries=cache_entries,
        )
        self._saved = saved
        self._saved_entries_min = saved_entries_min
        self.was_restored = saved is not None and self._restore(saved, capacity)

    def _restore(self, saved: SavedFile, capacity: int) -> bool:
        try:
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
            fd = os.open(saved.name, flags, dir_fd=saved.dir_fd)
        except FileNotFoundError:
            return False
        with opened(fd):
            return self._native.restore(fd, capacity)

    def __len__(self) -> int:
        return len(self._native)

    def lookup(self, fingerprints: bytes) -> Sequence[int]:
        return memoryview(self._native.lookup(fingerprints)).cast("Q")

    def insert(self, fingerprints: bytes, ids: Sequence[int]) -> None:
        self._native.insert(fingerprints, array("Q", ids))

    def load(self, container: Recovered) -> None:
        self._native.load(container.header.container, container.header.generation)

    def take_found_orphans(self) -> set[int]:
        return set(memoryview(self._native.take_found_orphans()).cast("Q"))

    def counters(self) -> IndexCounters:
        return IndexCounters(*self._native.counters(), self.memory_bytes)

    @property
    def memory_bytes(self) -> int:
        """RAM of the table, the record numbers, the cache and the write buffer."""
        return self._native.figures()[2]

    @property
    def load_factor(self) -> float:
        """The part of the table's slots that is taken."""
        return self._native.figures()[3]

    def rebuild(self) -> None:
        """Make the table anew by a sequential scan of the redirection tables."""
        self._native.rebuild()

    def save(self) -> None:
        if self._saved is None:
            return
        entries, added, _, _ = self._native.figures()
        ghosts = entries - len(self)
        if entries < self._saved_entries_min or ghosts * GHOSTS_MAX > entries:
            self._saved.remove()
        elif not self.was_restored or added * _SAVED_NEWS > entries:
            self._write(self._saved)

    def _write(self, saved: SavedFile) -> None:
        """Write the file, which need not be durable: a damaged one is noticed, and not used."""
        self._native.begin_snapshot()
        new = saved._replace(name=saved.name + NEW)
        new.remove()
        try:
            with opened(saved.disk.create(saved.dir_fd, new.name)) as fd:
                offset = 0
                for part in self._parts():
                    offset += saved.disk.write_at(fd, [part], offset)
        except NoSpace:
            # The next job makes the table from the redirection tables.
            new.remove()
            return
        saved.disk.rename(saved.dir_fd, new.name, saved.dir_fd, saved.name)

    def _parts(self) -> Iterator[bytes]:
        for number in count():
            part = self._native.snapshot_part(number)
            if part is None:
                return
            yield part


def _entries_in(dir_fd: int) -> int:
    """How many entries the containers' tables have, as far as their sizes tell."""
    total = 0
    for number in container_numbers(dir_fd):
        try:
            size = os.stat(table_name(number), dir_fd=dir_fd, follow_symlinks=False).st_size
        except FileNotFoundError:
            continue
        total += max(0, size - tbl.HEADER_BYTES) // tbl.ENTRY_BYTES
    return min(total, 0xFFFF_FFFF)
