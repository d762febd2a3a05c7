"""The index in one to two bytes of RAM a chunk: Bloom filters and pages in a file of their own.

BloomStore, seed 002, chapter 4; the design and its figures are in docs/index.md.
"""

import errno
import os
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from dedupd import native
from dedupd.format.container import Kind
from dedupd.fsutil import opened
from dedupd.index.base import IndexCounters
from dedupd.index.table import CACHE_ENTRIES, GHOSTS_MAX, PAGE_ENTRIES, SAVED_ENTRIES_MIN, SavedFile
from dedupd.store.recovery import Recovered


class BloomIndex:
    """A ``StoreIndex`` over ``native.BloomIndex``. ``dir_fd`` (containers and tables) is borrowed.

    ``capacity``: entries that are about to be loaded. The file ``saved`` is there, and not valid,
    for as long as the index is used; ``save`` makes it valid. Raises OSError where a redirection
    table cannot be read.
    """

    def __init__(
        self,
        dir_fd: int,
        volume: bytes,
        kind: Kind,
        saved: SavedFile,
        *,
        capacity: int,
        page_entries: int = PAGE_ENTRIES,
        cache_entries: int = CACHE_ENTRIES,
        saved_entries_min: int = SAVED_ENTRIES_MIN,
    ) -> None:
        self._saved = saved
        self._saved_entries_min = saved_entries_min
        with self._opened() as fd:
            self._native = native.BloomIndex(
                dir_fd,
                volume,
                kind,
                fd,
                capacity=capacity,
                page_entries=page_entries,
                cache_entries=cache_entries,
            )
            self.was_restored = self._native.restore(capacity)
            if self.was_restored:
                # What follows must not reach the disk before the file has ceased to look valid.
                saved.disk.sync_data(fd)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """The file, made if there is none."""
        disk, dir_fd, name = self._saved
        try:
            fd = disk.open_write(dir_fd, name)
        except FileNotFoundError:
            fd = disk.create(dir_fd, name)
        with opened(fd):
            yield fd

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
        """RAM of the filter, the write buffers, the record numbers and the cache."""
        return self._native.figures()[1]

    def rebuild(self) -> None:
        """Make everything anew by a sequential scan of the redirection tables."""
        self._native.rebuild()

    def save(self) -> None:
        entries, _, is_lossy = self._native.figures()
        ghosts = entries - len(self)
        if entries < self._saved_entries_min or ghosts * GHOSTS_MAX > entries or is_lossy:
            self._saved.remove()
        else:
            self._write()

    def _write(self) -> None:
        """Make the file valid: its header comes last, and only when all else is durable."""
        disk = self._saved.disk
        with self._opened() as fd:
            try:
                self._native.write_lists()
                disk.sync_data(fd)
                self._native.write_header()
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                # The next job makes it from the redirection tables.
                self._saved.remove()
                return
            disk.sync_data(fd)
            with suppress(OSError):
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
