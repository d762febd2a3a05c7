"""How much may be written to a file system: the one place that decides it.

Every job asks here before it begins something and before it appends, and so does the mount process
before it fills up a file. What users write is not asked for.
"""

from collections.abc import Callable

from dedupd_core.config.reserve import Reserve
from dedupd_core.errors import NoSpace
from dedupd_core.system.files import free_inodes, free_space
from dedupd_core.units import MIB, format_size

_WORKING_SHARE = 1 / 32
_WORKING_BYTES_MIN, _WORKING_BYTES_MAX = 4 * MIB, 64 * MIB
"""More than the chunks of any file that is taken as a whole, and a few of its group."""

_GUARD_SHARE = 1 / 4

INODES_RESERVED = 16
"""Of a file system with a bound on its inodes: jobs leave them to users, who can do little without.
Jobs need a few files for thousands of users' files."""


def working_bytes(total_bytes: int) -> int:
    """What users leave of the room on a file system of that size while a restore fills it: with
    nothing, optimize could free nothing."""
    share = int(total_bytes * _WORKING_SHARE)
    return min(max(share, _WORKING_BYTES_MIN), _WORKING_BYTES_MAX)


def guard_bytes(total_bytes: int) -> int:
    """What optimize leaves of that, since users may write as much before they look again."""
    return int(working_bytes(total_bytes) * _GUARD_SHARE)


class Room:
    """The free space of a file system beyond the reserve.

    Every question looks at the file system as it is then: users write meanwhile.
    """

    def __init__(self, fd: int, reserve: Reserve, where: str) -> None:
        """``fd`` is borrowed: any file on it. ``where`` names the volume in messages."""
        self._fd = fd
        self._reserve = reserve
        self._where = where

    @property
    def left_bytes(self) -> int:
        """How much may be written now; below zero where users have taken of the reserve."""
        free = free_space(self._fd)
        return free.free_bytes - self._reserve.bytes_of(free.total_bytes)

    @property
    def reserve_bytes(self) -> int:
        """How much is left to users."""
        return self._reserve.bytes_of(free_space(self._fd).total_bytes)

    def require(self, need_bytes: int, what: str, *, files: int = 0) -> None:
        """Raises NoSpace, with the remedy, where ``need_bytes`` may not be written now, or so many
        ``files`` not be made.

        ``what`` is the subject of the message, as in "the next 8 MiB of a.img".
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
"""Gives the room of a file system by the policy as it is then. Raises PolicyError."""

NO_RESERVE = Reserve(size_bytes=0)
"""For a job that gives space back: without the tables that it needs for that, it could not."""
