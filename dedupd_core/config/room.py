"""Decides how much may be written to a file system. This is the only place for such decisions.

Every job asks here before it starts work and before it appends. The mount process asks before it
expands a file. Writes of users are not checked here.
"""

from collections.abc import Callable

from dedupd_core.config.reserve import Reserve
from dedupd_core.errors import NoSpace
from dedupd_core.system.files import free_inodes, free_space
from dedupd_core.units import MIB, format_size

_WORKING_SHARE = 1 / 32
_WORKING_BYTES_MIN, _WORKING_BYTES_MAX = 4 * MIB, 64 * MIB
"""More than the chunks of any file that is stored in one piece, plus a few files of its group."""

_GUARD_SHARE = 1 / 4

INODES_RESERVED = 16
"""The inodes that jobs leave to users, if the file system limits inodes. Jobs need only a few files
for thousands of users' files."""


def working_bytes(total_bytes: int) -> int:
    """Return the space that users leave while a restore fills a file system of this size. Without
    any space, optimize could free none."""
    share = int(total_bytes * _WORKING_SHARE)
    return min(max(share, _WORKING_BYTES_MIN), _WORKING_BYTES_MAX)


def guard_bytes(total_bytes: int) -> int:
    """Return the part of it that optimize leaves for users' writes until their next check."""
    return int(working_bytes(total_bytes) * _GUARD_SHARE)


class Room:
    """The free space of a file system beyond the reserve.

    Each call measures the file system again, because users write at the same time.
    """

    def __init__(self, fd: int, reserve: Reserve, where: str) -> None:
        """``fd`` is borrowed: any file on it. ``where`` names the volume in messages."""
        self._fd = fd
        self._reserve = reserve
        self._where = where

    @property
    def left_bytes(self) -> int:
        """The bytes that may be written now; negative if users have used some of the reserve."""
        free = free_space(self._fd)
        return free.free_bytes - self._reserve.bytes_of(free.total_bytes)

    @property
    def reserve_bytes(self) -> int:
        """The bytes that are left to users."""
        return self._reserve.bytes_of(free_space(self._fd).total_bytes)

    def require(self, need_bytes: int, what: str, *, files: int = 0) -> None:
        """Raise NoSpace, with the remedy, if ``need_bytes`` or this number of ``files`` do not fit.

        ``what`` is the subject of the message, for example "the next 8 MiB of a.img".
        """
        free = free_space(self._fd)
        reserve_bytes = self._reserve.bytes_of(free.total_bytes)
        missing = need_bytes + reserve_bytes - free.free_bytes
        if missing > 0:
            raise NoSpace(
                f"{self._where}: no space left for {what}: it needs {format_size(need_bytes)};"
                f" {format_size(free.free_bytes)} are free, {format_size(reserve_bytes)} of them"
                f" reserved for users; free {format_size(missing)}, or reduce the policy key"
                " `reserve`"
            )
        if files and self._reserve != NO_RESERVE:
            self._require_inodes(files, what)

    def _require_inodes(self, files: int, what: str) -> None:
        left = free_inodes(self._fd)
        if left is not None and left < files + INODES_RESERVED:
            raise NoSpace(
                f"{self._where}: no inode left for {what}: {left} are free, {INODES_RESERVED} of"
                " them reserved for users; delete files"
            )


MakeRoom = Callable[[], Room]
"""Returns the room of a file system by the current policy. Raises PolicyError."""

NO_RESERVE = Reserve(size_bytes=0)
"""For a job that frees space: without space for tables, it could not do so."""
