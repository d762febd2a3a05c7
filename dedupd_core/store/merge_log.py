"""The merge log on disk: written from one end to the other, and whole where it has its name."""

import os
from collections.abc import Iterator

from dedupd_core.config.room import Room
from dedupd_core.errors import DamagedTable
from dedupd_core.format import merge_log
from dedupd_core.format.ids import PackedPairs, unpack_pairs
from dedupd_core.store.container import whole_file
from dedupd_core.store.container.whole_file import WholeFileWriter, body_checksum
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import read_readable

NAME = b"merge.log"
PAIRS_PER_READ = 1 << 16
"""Pairs that are looked at together: 1 MiB."""


class MergeLogWriter:
    """Writes a log under a temporary name; :meth:`complete` gives it its own, durably."""

    def __init__(self, dir_fd: int, volume_id: bytes, disk: Disk, room: Room) -> None:
        """``dir_fd`` is borrowed. A log that was not completed is removed."""
        self._volume_id = volume_id
        self._file = WholeFileWriter(dir_fd, NAME, merge_log.HEADER_BYTES, disk, room)
        self.pairs = 0

    def add(self, pairs: PackedPairs) -> None:
        """Append pairs as ``native.upkeep.Join`` gives them. Raises NoSpace."""
        self.pairs += len(pairs) // merge_log.PAIR_BYTES
        self._file.write(pairs)

    def complete(self) -> None:
        """Make the log durable under its name. Raises NoSpace."""
        header = merge_log.LogHeader(self.pairs, self._volume_id, self._file.checksum)
        self._file.complete(merge_log.encode_header(header))

    def close(self) -> None:
        self._file.close()


class MergeLog:
    """A complete log, open for reading."""

    def __init__(self, dir_fd: int, volume_id: bytes) -> None:
        """Reads it once to check it. Raises FileNotFoundError, DamagedTable."""
        self._fd = os.open(NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=dir_fd)
        try:
            where = NAME.decode()
            self.header = merge_log.decode_header(
                read_readable(self._fd, merge_log.HEADER_BYTES, 0), where
            )
            if self.header.volume_id != volume_id:
                raise DamagedTable(f"{where}: the merge log belongs to another volume")
            size = self.header.pairs * merge_log.PAIR_BYTES
            found = body_checksum(self._fd, merge_log.HEADER_BYTES, size)
            if found != self.header.pairs_checksum:
                raise DamagedTable(f"{where}: the merge log has a wrong checksum")
        except BaseException:
            os.close(self._fd)
            raise

    def pairs(self) -> Iterator[list[tuple[int, int]]]:
        """(merged, stays), in the order of the log, some at a time."""
        size = self.header.pairs * merge_log.PAIR_BYTES
        step = PAIRS_PER_READ * merge_log.PAIR_BYTES
        for start in range(0, size, step):
            data = read_readable(self._fd, min(step, size - start), merge_log.HEADER_BYTES + start)
            yield unpack_pairs(PackedPairs(data))

    def close(self) -> None:
        os.close(self._fd)


def remove(dir_fd: int, disk: Disk) -> None:
    """Remove the log, durably."""
    whole_file.remove(dir_fd, NAME, disk)


def remove_unfinished(dir_fd: int, disk: Disk) -> None:
    """Remove a log that was not completed."""
    whole_file.remove_unfinished(dir_fd, NAME, disk)
