"""The index in one to two bytes of RAM per chunk: Bloom filters and pages in a separate file.

BloomStore, seed 002, chapter 4; the design is in docs/design/index.md.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from dedupd_core import native
from dedupd_core.index.saved_index import (
    CACHE_ENTRIES,
    PAGE_ENTRIES,
    SAVED_ENTRIES_MIN,
    LoggedIndex,
    SavedFile,
)
from dedupd_core.store.container.directory import ContainerDirectory
from dedupd_core.system.files import opened


class BloomIndex(LoggedIndex[native.index.BloomIndex]):
    """A ``StoreIndex`` over ``native.index.BloomIndex``; borrows ``directory``.

    ``capacity``: the entries that are about to be loaded. While the index is used, the file
    ``saved`` exists but is not valid; ``save`` makes it valid. Raises OSError if a redirection
    table cannot be read.
    """

    def __init__(
        self,
        directory: ContainerDirectory,
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
            self._native = native.index.BloomIndex(
                directory.fd,
                directory.volume_id,
                directory.kind,
                fd,
                saved.disk.door,
                reserve_bytes=saved.make_room().reserve_bytes,
                capacity=capacity,
                page_entries=page_entries,
                cache_entries=cache_entries,
            )
            self.was_restored = self._native.restore(capacity)
            if self.was_restored:
                # Later writes must not reach the disk while the file still looks valid.
                saved.disk.sync_data(fd)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """Open the file, or create it."""
        disk, dir_fd, name, _ = self._saved
        try:
            fd = disk.open_write(dir_fd, name)
        except FileNotFoundError:
            fd = disk.create(dir_fd, name)
        with opened(fd):
            yield fd

    def save(self) -> None:
        figures = self._native.figures()
        if figures.is_lossy or not self._is_worth_saving(figures.entries):
            self._saved.remove()
        else:
            self._write()

    def _write(self) -> None:
        """Make the file valid: its header is written last, when the rest is durable."""
        disk = self._saved.disk
        with self._opened() as fd:
            try:
                self._native.write_lists()
                disk.sync_data(fd)
                self._native.write_header()
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                # The next job rebuilds it from the redirection tables.
                self._saved.remove()
                return
            disk.sync_data(fd)
            with suppress(OSError):
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
