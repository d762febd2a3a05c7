"""The merge log on disk: written from one end to the other, and whole where it has its name."""

import os
from collections.abc import Iterator

from dedupd.disk import Disk
from dedupd.errors import DamagedTable
from dedupd.format import merge
from dedupd.fsutil import read_readable
from dedupd.store import wholefile
from dedupd.store.wholefile import WholeFileWriter, body_checksum

NAME = b"merge.log"
PAIRS_PER_READ = 1 << 16
"""Pairs that are looked at together: 1 MiB."""


class MergeLogWriter:
    """Writes a log under a temporary name; :meth:`complete` gives it its own, durably."""

    def __init__(self, dir_fd: int, volume: bytes, disk: Disk) -> None:
        """``dir_fd`` is borrowed. A log that was not completed is removed."""
        self._volume = volume
        self._file = WholeFileWriter(dir_fd, NAME, merge.HEADER_BYTES, disk)
        self.pairs = 0

    def add(self, pairs: bytes) -> None:
        """Append pairs as ``native.Join`` gives them. Raises NoSpace."""
        self.pairs += len(pairs) // merge.PAIR_BYTES
        self._file.write(pairs)

    def complete(self) -> None:
        """Make the log durable under its name. Raises NoSpace."""
        header = merge.LogHeader(self.pairs, self._volume, self._file.checksum)
        self._file.complete(merge.encode_header(header))

    def close(self) -> None:
        self._file.close()


class MergeLog:
    """A complete log, open for reading."""

    def __init__(self, dir_fd: int, volume: bytes) -> None:
        """Reads it once to check it. Raises FileNotFoundError, DamagedTable."""
        self._fd = os.open(NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=dir_fd)
        try:
            where = NAME.decode()
            self.header = merge.decode_header(read_readable(self._fd, merge.HEADER_BYTES, 0), where)
            if self.header.volume != volume:
                raise DamagedTable(f"{where}: the merge log is of another volume")
            size = self.header.pairs * merge.PAIR_BYTES
            found = body_checksum(self._fd, merge.HEADER_BYTES, size)
            if found != self.header.pairs_checksum:
                raise DamagedTable(f"{where}: the merge log fails its checksum")
        except BaseException:
            os.close(self._fd)
            raise

    def pairs(self) -> Iterator[list[tuple[int, int]]]:
        """(merged, stays), in the order of the log, some at a time."""
        size = self.header.pairs * merge.PAIR_BYTES
        step = PAIRS_PER_READ * merge.PAIR_BYTES
        for start in range(0, size, step):
            data = read_readable(self._fd, min(step, size - start), merge.HEADER_BYTES + start)
            ids = memoryview(data).cast("Q").tolist()
            yield list(zip(ids[::2], ids[1::2], strict=True))

    def close(self) -> None:
        os.close(self._fd)


def remove(dir_fd: int, disk: Disk) -> None:
    """Remove the log, durably."""
    wholefile.remove(dir_fd, NAME, disk)


def remove_unfinished(dir_fd: int, disk: Disk) -> None:
    """Remove a log that was not completed."""
    wholefile.remove_unfinished(dir_fd, NAME, disk)
