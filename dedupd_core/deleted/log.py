"""The logs of deletions of a volume: appended to by its mount, and read by all.

A log has the deletions of one user's files. Those before an offset in its header are dropped.
"""

import os
import re
from contextlib import suppress
from typing import NamedTuple

from dedupd_core import native
from dedupd_core.deleted.offsets import OFFSETS
from dedupd_core.errors import Damaged, UnknownFormat, UsageError
from dedupd_core.failpoint import define, reach
from dedupd_core.format.deletion import (
    LOG_HEADER_BYTES,
    Deletion,
    LogContent,
    LogHeader,
    decode_deletion,
    decode_header,
    encode_header,
    read_log,
)
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import opened, read_at, read_file
from dedupd_core.volume.volume import Volume

DIRECTORY = b"deleted"

_DROPPED = define("deleted.dropped", "deletions of a log are dropped, and it is not durable yet")

_NAME = re.compile(rb"([0-9]{8})\.log")
_ID = re.compile(r"([0-9]{1,8})-([0-9]{1,9})")


class DeletionId(NamedTuple):
    """The name of a deletion: its log, and its offset in the log."""

    log: int
    offset: int

    def __str__(self) -> str:
        return f"{self.log}-{self.offset}"

    @classmethod
    def parse(cls, text: str) -> "DeletionId":
        """Parse a token. Raises UsageError."""
        match = _ID.fullmatch(text)
        if match is None:
            raise UsageError(f"{text!r}: not the ID of a deletion; `dedupd deleted` lists the IDs")
        return cls(int(match[1]), int(match[2]))


class DeletionLogs:
    """The logs of a volume, for any process.

    ``lost_bytes``: the damaged bytes of each log that was read.
    """

    def __init__(self, volume: Volume) -> None:
        self._base_fd = volume.base_fd
        self._volume_id = volume.space.volume_id
        self.lost_bytes: dict[int, int] = {}

    def numbers(self) -> list[int]:
        """Return the numbers of all logs, the oldest first."""
        try:
            with opened(open_directory(self._base_fd)) as fd:
                names = map(os.fsencode, os.listdir(fd))
                return sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))
        except FileNotFoundError:
            return []

    def changed_ns(self) -> int:
        """Return when a log was last made or removed, ns since 1970; 0 before the first one."""
        try:
            return os.stat(DIRECTORY, dir_fd=self._base_fd).st_mtime_ns
        except FileNotFoundError:
            return 0

    def status(self, number: int) -> tuple[int, int, int] | None:
        """Return inode, size and time of change of a log; None if it is missing."""
        try:
            status = os.stat(_path(number), dir_fd=self._base_fd)
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns

    def size_bytes(self, number: int) -> int:
        """Return the length of a log, 0 if it is missing."""
        status = self.status(number)
        return 0 if status is None else status[1]

    def header(self, number: int) -> LogHeader | None:
        """Return the header of a log; None if log or header cannot be read. Raises OSError."""
        try:
            with opened(self._open(number)) as fd:
                return self._header(read_at(fd, LOG_HEADER_BYTES, 0), number)
        except (FileNotFoundError, Damaged, UnknownFormat):
            return None

    def has(self, wanted: DeletionId) -> bool:
        """Return whether a deletion that was read before is still kept."""
        header = self.header(wanted.log)
        return header is not None and wanted.offset >= header.first

    def read(self, number: int) -> list[tuple[DeletionId, Deletion]]:
        """Return the valid deletions of a log, in order; none if it is missing. Raises OSError."""
        rows, lost_bytes = self._content(number)
        self._note_lost(number, lost_bytes)
        return [(DeletionId(number, at), one) for at, one in rows]

    def listed(self, number: int) -> native.deletions.DeletionLog:
        """Return the valid deletions of a log without their attributes, decoded by native code.
        Raises OSError."""
        data, header = self._whole(number)
        if header is None:
            self._note_lost(number, len(data))
            return native.deletions.DeletionLog(b"", seed=0, is_proven=True, uid=None, first=0)
        found = native.deletions.DeletionLog(
            data,
            seed=header.seed,
            is_proven=header.is_proven,
            uid=header.uid,
            first=header.first,
        )
        self._note_lost(number, found.lost_bytes)
        return found

    def get(self, wanted: DeletionId, *, unproven: bool = False) -> Deletion:
        """Return one deletion, at an offset where reading the log in order finds one.

        ``unproven``: accept a log that does not prove its content. Raises UsageError if the
        deletion does not exist or was dropped, OSError.
        """
        try:
            with opened(self._open(wanted.log)) as fd:
                size = os.fstat(fd).st_size
                header = self._header(read_at(fd, min(size, LOG_HEADER_BYTES), 0), wanted.log)
                length = OFFSETS.length_at(fd, header, wanted.offset)
                if wanted.offset < header.first:
                    raise Damaged("dropped")
                rest = read_at(fd, length, wanted.offset)
            one, _ = decode_deletion(rest, 0, header, wanted.offset)
        except (FileNotFoundError, Damaged, UnknownFormat):
            raise UsageError(
                f"{wanted}: no such deletion, or it has expired; `dedupd deleted` lists the"
                " deletions"
            ) from None
        if not (header.is_proven or unproven):
            raise UsageError(
                f"{wanted}: an earlier version of dedupd recorded this deletion, without proof of"
                " the file's owner. Check owner and path with `dedupd deleted --json`, then"
                " restore the file as root with `dedupd undelete --force`"
            )
        return one

    def remove(self, number: int, disk: Disk) -> None:
        """Drop all deletions of a log."""
        with suppress(FileNotFoundError), opened(open_directory(self._base_fd)) as fd:
            disk.unlink(fd, name_of(number))
            reach(_DROPPED)

    def drop_before(self, number: int, first: int, disk: Disk) -> None:
        """Drop the deletions of a log before offset ``first``.

        A deletion starts there, or the log ends. The header is in one sector, so a crash leaves
        either the old or the new one.
        """
        missing = (FileNotFoundError, Damaged, UnknownFormat)
        with suppress(*missing), opened(open_directory(self._base_fd)) as directory:
            with opened(disk.open_write(directory, name_of(number))) as fd:
                header = self._header(read_at(fd, LOG_HEADER_BYTES, 0), number)
                disk.write_at(fd, [encode_header(header._replace(first=first))], 0)
            reach(_DROPPED)

    def _note_lost(self, number: int, size: int) -> None:
        if size:
            self.lost_bytes[number] = size

    def _content(self, number: int) -> LogContent:
        data, header = self._whole(number)
        # Without its header, nothing in a log can be verified.
        return LogContent([], len(data)) if header is None else read_log(data, header)

    def _whole(self, number: int) -> tuple[bytes, LogHeader | None]:
        """Return the bytes of a log, and its header, or None if that cannot be read."""
        try:
            data = read_file(self._base_fd, _path(number))
        except FileNotFoundError:
            return b"", None
        try:
            return data, self._header(data, number)
        except (Damaged, UnknownFormat):
            return data, None

    def _open(self, number: int) -> int:
        return os.open(_path(number), os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._base_fd)

    def _header(self, data: bytes, number: int) -> LogHeader:
        """Raises Damaged, UnknownFormat."""
        header = decode_header(data, name_of(number).decode())
        if header.number != number or header.volume_id != self._volume_id:
            raise Damaged(f"{name_of(number).decode()}: the log of another volume")
        return header


def open_directory(base_fd: int) -> int:
    """Open the directory of the logs. Raises FileNotFoundError before the first one."""
    return os.open(DIRECTORY, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=base_fd)


def made_directory(base_fd: int, disk: Disk) -> int:
    """Open the same directory, or create it if it is missing."""
    with suppress(FileExistsError):
        disk.make_dir(base_fd, DIRECTORY)
    return open_directory(base_fd)


def name_of(number: int) -> bytes:
    return b"%08d.log" % number


def _path(number: int) -> bytes:
    return DIRECTORY + b"/" + name_of(number)
