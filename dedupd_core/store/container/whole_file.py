"""Files that are written from one end to the other, and are whole where they have their name.

A header of fixed length comes first, and is written last: it has the checksum of the rest.
"""

import os
from contextlib import suppress

import xxhash

from dedupd_core.config.room import Room
from dedupd_core.store.container.container import NEW
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import read_readable

_READ_BYTES = 1 << 20


class WholeFileWriter:
    """Writes a file under a temporary name; :meth:`complete` gives it its own, durably.

    ``body_bytes`` were written after the header; ``checksum`` is their xxh3.
    """

    def __init__(self, dir_fd: int, name: bytes, header_bytes: int, disk: Disk, room: Room) -> None:
        """``dir_fd`` is borrowed. A file that was not completed is removed. Raises NoSpace."""
        self._room = room
        self._dir_fd = dir_fd
        self._name = name
        self._header_bytes = header_bytes
        self._disk = disk
        remove_unfinished(dir_fd, name, disk)
        room.require(0, name.decode(), files=1)
        self._fd = disk.create(dir_fd, name + NEW)
        self._hash = xxhash.xxh3_64()
        self.body_bytes = 0

    def write(self, *parts: bytes) -> None:
        """Append to the body. Raises NoSpace."""
        self._room.require(sum(map(len, parts)), self._name.decode())
        for part in parts:
            self._hash.update(part)
        self.body_bytes += self._disk.write_at(
            self._fd, parts, self._header_bytes + self.body_bytes
        )

    @property
    def checksum(self) -> int:
        return self._hash.intdigest()

    def complete(self, header: bytes) -> None:
        """Make it durable under its name, in place of one before. Raises NoSpace."""
        self._disk.write_at(self._fd, [header], 0)
        self._disk.sync_file(self._fd)
        self._disk.rename(self._dir_fd, self._name + NEW, self._dir_fd, self._name)
        self._disk.sync_dir(self._dir_fd)

    def close(self) -> None:
        os.close(self._fd)


def body_checksum(fd: int, header_bytes: int, body_bytes: int) -> int | None:
    """The xxh3 of the body of a file, after its header. None where the file has another length: a
    header may state any."""
    digest, offset = xxhash.xxh3_64(), header_bytes
    end = offset + body_bytes
    if os.fstat(fd).st_size != end:
        return None
    while offset < end:
        data = read_readable(fd, min(end - offset, _READ_BYTES), offset)
        if not data:
            return None
        digest.update(data)
        offset += len(data)
    return digest.intdigest()


def remove(dir_fd: int, name: bytes, disk: Disk) -> None:
    """Remove a file, durably, where there is one."""
    with suppress(FileNotFoundError):
        disk.unlink(dir_fd, name)
    disk.sync_dir(dir_fd)


def remove_unfinished(dir_fd: int, name: bytes, disk: Disk) -> None:
    """Remove a file that was not completed."""
    with suppress(FileNotFoundError):
        disk.unlink(dir_fd, name + NEW)
