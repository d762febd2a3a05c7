"""Saved marks on disk: written from one end to the other, and whole where they have their name."""

import os
from collections.abc import Iterator
from typing import NamedTuple

from dedupd_core.config.room import Room
from dedupd_core.errors import DamagedTable
from dedupd_core.format.derived import saved_marks as fmt
from dedupd_core.store.container import whole_file
from dedupd_core.store.container.whole_file import WholeFileWriter, body_checksum
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import read_readable

NAME = b"saved.marks"


class ChunkSection(NamedTuple):
    """A container of chunks: a bit for each of its records that a recipe names."""

    container: int
    records: int
    named: bytes


class RecipeSection(NamedTuple):
    """A container of recipes.

    Of each node u64 how many bytes stubs need, and how many they or nodes above it do; a bit for
    each that is still to be read. ``fingerprints`` digests those of the nodes that are needed.
    """

    container: int
    records: int
    fingerprints: int
    wanted: bytes
    needed: bytes
    fresh: bytes


class SavedMarksWriter:
    """Writes marks under a temporary name; :meth:`complete` gives them their own, durably."""

    def __init__(self, dir_fd: int, volume_id: bytes, disk: Disk, room: Room) -> None:
        """``dir_fd`` is borrowed. Marks that were not completed are removed. Raises NoSpace."""
        self._volume_id = volume_id
        self._file = WholeFileWriter(dir_fd, NAME, fmt.HEADER_BYTES, disk, room)
        self._chunks = self._streams = 0

    def add_chunks(self, section: ChunkSection) -> None:
        """Those of chunks come first, by number. Raises NoSpace."""
        assert not self._streams
        self._chunks += 1
        head = fmt.SectionHead(section.container, section.records, 0)
        self._file.write(fmt.encode_section(head), _words(section.named, section.records))

    def add_recipes(self, section: RecipeSection) -> None:
        """By number. Raises NoSpace."""
        self._streams += 1
        head = fmt.SectionHead(section.container, section.records, section.fingerprints)
        fresh = _words(section.fresh, section.records)
        self._file.write(fmt.encode_section(head), section.wanted, section.needed, fresh)

    def complete(self) -> None:
        """Make them durable under their name, in place of those before. Raises NoSpace."""
        file = self._file
        header = fmt.MarksHeader(
            self._chunks, self._streams, self._volume_id, file.body_bytes, file.checksum
        )
        file.complete(fmt.encode_header(header))

    def close(self) -> None:
        self._file.close()


class SavedMarks:
    """Marks that were completed, open for reading."""

    def __init__(self, dir_fd: int, volume_id: bytes) -> None:
        """Reads them once to check them. Raises FileNotFoundError, DamagedTable."""
        self._fd = os.open(NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=dir_fd)
        try:
            where = NAME.decode()
            self.header = fmt.decode_header(read_readable(self._fd, fmt.HEADER_BYTES, 0), where)
            if self.header.volume_id != volume_id:
                raise DamagedTable(f"{where}: the saved marks belong to another volume")
            found = body_checksum(self._fd, fmt.HEADER_BYTES, self.header.body_bytes)
            if found != self.header.body_checksum:
                raise DamagedTable(f"{where}: the saved marks have a wrong checksum")
        except BaseException:
            os.close(self._fd)
            raise
        self._position = fmt.HEADER_BYTES

    def sections(self) -> Iterator[ChunkSection | RecipeSection]:
        """All of them, once: those of chunks, then those of recipes. Raises DamagedTable."""
        for _ in range(self.header.chunk_containers):
            number, count, _ = self._head()
            yield ChunkSection(number, count, self._read(fmt.bitmap_bytes(count)))
        for _ in range(self.header.recipe_containers):
            number, count, fingerprints = self._head()
            wanted, needed = self._read(8 * count), self._read(8 * count)
            fresh = self._read(fmt.bitmap_bytes(count))
            yield RecipeSection(number, count, fingerprints, wanted, needed, fresh)

    def _head(self) -> fmt.SectionHead:
        return fmt.decode_section(self._read(fmt.SECTION_BYTES))

    def _read(self, size: int) -> bytes:
        """Raises DamagedTable where there are fewer bytes."""
        if self._position + size > fmt.HEADER_BYTES + self.header.body_bytes:
            raise DamagedTable(f"{NAME.decode()}: a section of the saved marks is truncated")
        data = read_readable(self._fd, size, self._position)
        self._position += size
        return data

    def close(self) -> None:
        os.close(self._fd)


def _words(bits: bytes, count: int) -> bytes:
    return bits.ljust(fmt.bitmap_bytes(count), b"\0")


def remove(dir_fd: int, disk: Disk) -> None:
    """Remove the marks, durably."""
    whole_file.remove(dir_fd, NAME, disk)


def remove_unfinished(dir_fd: int, disk: Disk) -> None:
    """Remove marks that were not completed."""
    whole_file.remove_unfinished(dir_fd, NAME, disk)
