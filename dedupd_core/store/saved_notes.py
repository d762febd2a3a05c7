"""Saved notes on disk: written from one end to the other, and whole where they have their name."""

import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Self

import xxhash

from dedupd_core.config.room import Room
from dedupd_core.errors import Damaged, DamagedTable
from dedupd_core.format.derived import saved_notes as fmt
from dedupd_core.format.derived.saved_notes import ROW_BYTES, NotesHeader
from dedupd_core.store.container import whole_file
from dedupd_core.store.container.whole_file import WholeFileWriter
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import read_readable

NAME = b"saved.notes"


class SavedNotes:
    """Notes that were completed, open for reading. ``rows`` are those of the judged files.

    A note that is damaged costs a read, or some chunks that are stored in vain: notes have no
    checksum.
    """

    def __init__(self, dir_fd: int, volume_id: bytes) -> None:
        """Raises FileNotFoundError, DamagedTable."""
        where = NAME.decode()
        self._fd = os.open(NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=dir_fd)
        try:
            self.header = fmt.decode_header(read_readable(self._fd, fmt.HEADER_BYTES, 0), where)
            if self.header.volume_id != volume_id:
                raise DamagedTable(f"{where}: the saved notes belong to another volume")
            size = ROW_BYTES * (self.header.judged + self.header.notes)
            if os.fstat(self._fd).st_size != fmt.HEADER_BYTES + size:
                raise DamagedTable(f"{where}: the saved notes have a wrong length")
            self.rows = read_readable(self._fd, ROW_BYTES * self.header.judged, fmt.HEADER_BYTES)
            if xxhash.xxh3_64_intdigest(self.rows) != self.header.judged_checksum:
                raise DamagedTable(f"{where}: the saved notes have a wrong checksum")
        except BaseException:
            os.close(self._fd)
            raise

    @classmethod
    def found(cls, dir_fd: int, volume_id: bytes) -> Self | None:
        """Those of a volume; None where they cannot be used."""
        try:
            return cls(dir_fd, volume_id)
        except (OSError, Damaged):
            return None

    @property
    def notes(self) -> tuple[int, int, int]:
        """A descriptor, and the range of the file that has the notes."""
        start = fmt.HEADER_BYTES + ROW_BYTES * self.header.judged
        return self._fd, start, start + ROW_BYTES * self.header.notes

    def close(self) -> None:
        os.close(self._fd)


def save_notes(
    dir_fd: int,
    header: NotesHeader,
    rows: bytes,
    notes: Iterable[bytes],
    disk: Disk,
    room: Room,
) -> None:
    """Put notes in place of those before, durably. Of the header, lengths and checksum are set
    here. Raises OSError, NoSpace."""
    file = WholeFileWriter(dir_fd, NAME, fmt.HEADER_BYTES, disk, room)
    try:
        file.write(rows)
        for block in notes:
            file.write(block)
        header = replace(
            header,
            judged=len(rows) // ROW_BYTES,
            notes=(file.body_bytes - len(rows)) // ROW_BYTES,
            judged_checksum=xxhash.xxh3_64_intdigest(rows),
        )
        file.complete(fmt.encode_header(header))
    finally:
        file.close()


def remove_notes(dir_fd: int, disk: Disk) -> None:
    """Remove them, durably."""
    whole_file.remove(dir_fd, NAME, disk)
