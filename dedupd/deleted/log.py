"""The logs of deletions of a volume: appended to by its mount, read by all."""

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from dedupd.deleted.offsets import OFFSETS
from dedupd.errors import Damaged, UnknownFormat, UsageError
from dedupd.failpoint import define, reach
from dedupd.format.deletion import (
    LOG_HEADER_BYTES,
    Deletion,
    LogContent,
    LogHeader,
    decode_deletion,
    decode_header,
    encode_deletion,
    encode_header,
    read_log,
)
from dedupd.system.disk import Disk
from dedupd.system.files import opened, read_at, read_file
from dedupd.units import MIB
from dedupd.volume.volume import Volume

DIRECTORY = b"deleted"

LOG_BYTES_MAX = 4 * MIB
"""A log that is longer is not appended to any more; it is read in one piece."""

LOG_S_MAX = 3600.0
"""Nor one that is older: logs go as a whole, once all in them has expired."""

LOGS_BYTES_MAX = 256 * MIB
"""Of all logs together, a million deletions or so; the oldest go first."""

_NOTED = define("deleted.noted", "a deletion is in its log, not durable yet, and has not happened")

_NAME = re.compile(rb"([0-9]{8})\.log")
_ID = re.compile(r"([0-9]{1,8})-([0-9]{1,9})")


class DeletionId(NamedTuple):
    """Names a deletion: its log, and where in it the deletion begins."""

    log: int
    offset: int

    def __str__(self) -> str:
        return f"{self.log}-{self.offset}"

    @classmethod
    def parse(cls, text: str) -> "DeletionId":
        """Raises UsageError."""
        match = _ID.fullmatch(text)
        if match is None:
            raise UsageError(f"{text!r} is no id of a deletion; `dedupd deleted` shows them")
        return cls(int(match[1]), int(match[2]))


class DeletionLogs:
    """The logs of a volume, by whatever process.

    ``lost_bytes``: how much of each log that was read is damaged.
    """

    def __init__(self, volume: Volume) -> None:
        self._base_fd = volume.base_fd
        self._volume_id = volume.space.volume_id
        self.lost_bytes: dict[int, int] = {}

    def numbers(self) -> list[int]:
        """Those of all logs, the oldest first."""
        try:
            with opened(open_directory(self._base_fd)) as fd:
                names = map(os.fsencode, os.listdir(fd))
                return sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))
        except FileNotFoundError:
            return []

    def size_bytes(self, number: int) -> int:
        """The length of a log, 0 where it has gone."""
        try:
            return os.stat(_path(number), dir_fd=self._base_fd).st_size
        except FileNotFoundError:
            return 0

    def has(self, number: int) -> bool:
        return self.size_bytes(number) > 0

    def read(self, number: int) -> list[tuple[DeletionId, Deletion]]:
        """The sound deletions of a log, in order; none if it is missing. Raises OSError."""
        rows, lost_bytes = self._content(number)
        if lost_bytes:
            self.lost_bytes[number] = lost_bytes
        return [(DeletionId(number, at), one) for at, one in rows]

    def get(self, wanted: DeletionId, *, unproven: bool = False) -> Deletion:
        """One deletion, which must begin where reading its log in order finds one.

        ``unproven``: accept a log that does not prove what it says. Raises UsageError if the
        deletion does not exist (any more), OSError.
        """
        try:
            with opened(self._open(wanted.log)) as fd:
                size = os.fstat(fd).st_size
                header = self._header(read_at(fd, min(size, LOG_HEADER_BYTES), 0), wanted.log)
                length = OFFSETS.length_at(fd, header, wanted.offset)
                rest = read_at(fd, length, wanted.offset)
            one, _ = decode_deletion(rest, 0, header, wanted.offset)
        except (FileNotFoundError, Damaged, UnknownFormat):
            raise UsageError(
                f"{wanted}: no such deletion, or not any more; `dedupd deleted` shows them"
            ) from None
        if not (header.is_proven or unproven):
            raise UsageError(
                f"{wanted}: an earlier version of dedupd recorded this deletion, in a log that does"
                " not prove whose file it was; check owner and path with `dedupd deleted --json`,"
                " then restore the file as root with `dedupd undelete --force`"
            )
        return one

    def newest_first(self) -> Iterator[tuple[DeletionId, Deletion]]:
        """All deletions; one log at a time is in memory. Raises OSError."""
        for number in reversed(self.numbers()):
            yield from reversed(self.read(number))

    def remove(self, number: int, disk: Disk) -> None:
        """Nothing in it can be had back from here on."""
        with suppress(FileNotFoundError), opened(open_directory(self._base_fd)) as fd:
            disk.unlink(fd, name_of(number))

    def _content(self, number: int) -> LogContent:
        try:
            data = read_file(self._base_fd, _path(number))
        except FileNotFoundError:
            return LogContent([], 0)
        try:
            header = self._header(data, number)
        except (Damaged, UnknownFormat):
            # Without its header nothing in a log can be checked.
            return LogContent([], len(data))
        return read_log(data, header)

    def _open(self, number: int) -> int:
        return os.open(_path(number), os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._base_fd)

    def _header(self, data: bytes, number: int) -> LogHeader:
        """Raises Damaged, UnknownFormat."""
        header = decode_header(data, name_of(number).decode())
        if header.number != number or header.volume_id != self._volume_id:
            raise Damaged(f"{name_of(number).decode()}: the log of another volume")
        return header


class DeletionWriter:
    """Appends deletions, in the process that serves the mount. Raises OSError, NoSpace."""

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self._disk = volume.disk
        self._logs = DeletionLogs(volume)
        self._directory_fd = -1
        self._fd = -1
        self._number = 0
        self._seed = 0
        self._end = 0
        self._began_s = 0.0
        self._is_dirty = False
        self._is_finished = False
        self._pending: list[int] = []

    def append(self, one: Deletion) -> None:
        """Note a deletion that is about to happen. It is durable once the files of :meth:`unsynced`
        are. Raises ValueError for one that is too large."""
        if self._fd < 0 or self._is_over():
            self._begin()
        data = encode_deletion(one, self._seed, self._end)
        try:
            self._disk.write_at(self._fd, [data], self._end)
        except BaseException:
            self._cut()
            raise
        self._end += len(data)
        self._is_dirty = True
        reach(_NOTED)

    def finish(self) -> None:
        """Append nothing more to this log: an error of the disk may have damaged it."""
        self._is_finished = True

    def unsynced(self) -> list[int]:
        """Descriptors, the caller's, of all that has to be synced for what was appended to be
        durable."""
        if self._is_dirty:
            self._pending.append(os.dup(self._fd))
            self._is_dirty = False
        pending, self._pending = self._pending, []
        return pending

    def close(self) -> None:
        for fd in (*self._pending, self._fd, self._directory_fd):
            if fd >= 0:
                os.close(fd)
        self._pending.clear()
        self._fd = self._directory_fd = -1

    def _cut(self) -> None:
        """Remove what a failed append has left. If that fails, the log is finished: what follows
        its last deletion must never lie between two of them."""
        try:
            self._disk.truncate(self._fd, self._end)
        except OSError:
            self.finish()

    def _is_over(self) -> bool:
        """Whether the log is finished, full or old, or was removed: a collection may take any."""
        is_old = time.monotonic() > self._began_s + LOG_S_MAX
        is_full = self._end >= LOG_BYTES_MAX
        return self._is_finished or is_full or is_old or os.fstat(self._fd).st_nlink == 0

    def _begin(self) -> None:
        """A new log; one that a crash may have torn is not appended to."""
        self._let_go()
        self._directory_fd = made_directory(self._volume.base_fd, self._disk)
        numbers = self._logs.numbers()
        self._drop_oldest(numbers)
        self._number = max([self._number, *numbers]) + 1
        base_fd, disk = self._volume.base_fd, self._disk
        seed = int.from_bytes(os.urandom(8), "little") or 1
        header = LogHeader(self._number, self._volume.space.volume_id, time.time_ns(), seed)
        fd = disk.create(self._directory_fd, name_of(self._number))
        try:
            disk.write_at(fd, [encode_header(header)], 0)
        except BaseException:
            os.close(fd)
            disk.unlink(self._directory_fd, name_of(self._number))
            raise
        self._fd, self._seed, self._is_finished = fd, seed, False
        self._end, self._began_s = LOG_HEADER_BYTES, time.monotonic()
        self._pending += [os.dup(self._directory_fd), os.dup(base_fd)]

    def _let_go(self) -> None:
        """Of the log so far: what was appended to it is yet to be synced."""
        pending = self.unsynced()
        self.close()
        self._pending = pending

    def _drop_oldest(self, numbers: list[int]) -> None:
        total = sum(map(self._logs.size_bytes, numbers))
        for number in numbers:
            if total <= LOGS_BYTES_MAX - LOG_BYTES_MAX:
                return
            total -= self._logs.size_bytes(number)
            self._logs.remove(number, self._disk)


def open_directory(base_fd: int) -> int:
    """A descriptor of the directory of the logs. Raises FileNotFoundError before the first one."""
    return os.open(DIRECTORY, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=base_fd)


def made_directory(base_fd: int, disk: Disk) -> int:
    """The same; it is made where it is not there."""
    with suppress(FileExistsError):
        disk.make_dir(base_fd, DIRECTORY)
    return open_directory(base_fd)


def name_of(number: int) -> bytes:
    return b"%08d.log" % number


def _path(number: int) -> bytes:
    return DIRECTORY + b"/" + name_of(number)
