"""The index in about 6.4 bytes of RAM per chunk: signatures over the redirection tables.

Seed 003, section 4.4; the design is in docs/design/index.md.
"""

import os
from collections.abc import Iterator
from itertools import count

from dedupd_core import native
from dedupd_core.errors import NoSpace
from dedupd_core.index.saved_index import (
    CACHE_ENTRIES,
    PAGE_ENTRIES,
    SAVED_ENTRIES_MIN,
    LoggedIndex,
    SavedFile,
)
from dedupd_core.store.container.container import NEW
from dedupd_core.store.container.directory import ContainerDirectory
from dedupd_core.system.files import opened

_SAVED_NEWS = 16
"""A table is saved if one entry out of this number is not in its file; the tables have the rest."""


class TableIndex(LoggedIndex[native.index.TableIndex]):
    """A ``StoreIndex`` over ``native.index.TableIndex``; borrows ``directory``.

    ``capacity``: the entries that are about to be loaded. A container must be recovered before it
    is loaded, and afterwards only this job changes it. Raises OSError if a redirection table cannot
    be read.
    """

    def __init__(
        self,
        directory: ContainerDirectory,
        saved: SavedFile | None = None,
        *,
        capacity: int,
        page_entries: int = PAGE_ENTRIES,
        cache_entries: int = CACHE_ENTRIES,
        saved_entries_min: int = SAVED_ENTRIES_MIN,
    ) -> None:
        self._native = native.index.TableIndex(
            directory.fd,
            directory.volume_id,
            directory.kind,
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

    def save(self) -> None:
        if self._saved is None:
            return
        figures = self._native.figures()
        if not self._is_worth_saving(figures.entries):
            self._saved.remove()
        elif not self.was_restored or figures.added * _SAVED_NEWS > figures.entries:
            self._write(self._saved)
        else:
            # A leftover of an earlier save after a crash.
            _temporary(self._saved).remove()

    def _write(self, saved: SavedFile) -> None:
        """Write the file. It need not be durable: damage is detected, and the file is ignored."""
        self._native.begin_snapshot()
        new = _temporary(saved)
        new.remove()
        try:
            room = saved.make_room()
            room.require(0, saved.name.decode(), files=1)
            with opened(saved.disk.create(saved.dir_fd, new.name)) as fd:
                offset = 0
                for part in self._parts():
                    room.require(len(part), saved.name.decode())
                    offset += saved.disk.write_at(fd, [part], offset)
        except NoSpace:
            # The next job builds the table from the redirection tables.
            new.remove()
            return
        saved.disk.rename(saved.dir_fd, new.name, saved.dir_fd, saved.name)

    def _parts(self) -> Iterator[bytes]:
        for number in count():
            part = self._native.snapshot_part(number)
            if part is None:
                return
            yield part


def _temporary(saved: SavedFile) -> SavedFile:
    """Return the file that is about to be renamed to ``saved``."""
    return saved._replace(name=saved.name + NEW)
