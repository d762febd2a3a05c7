"""Small tools over descriptors. No state, nothing durable (that is ``disk.py``)."""

import errno
import fcntl
import logging
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from dedupd_core.errors import Busy

_log = logging.getLogger("dedupd")

_RANGE = struct.Struct("@hhqqi4x")
"""``struct flock``: type, from where the start counts, start, length, process."""

_READ_BYTES_MAX = 0x7FFF_F000

_READ_BYTES = 1 << 20

BLOCK_BYTES = 4096
"""The least that is lost with a block that the disk cannot read."""

UNREADABLE = frozenset((errno.EIO, errno.ENODATA, errno.EILSEQ, errno.EREMOTEIO, errno.EUCLEAN))
"""Errors for a damaged block, from a disk or from a file system with checksums (btrfs)."""


def read_at(fd: int, length: int, offset: int) -> bytes:
    """Up to ``length`` bytes at ``offset``; shorter only at the end of the file."""
    data = os.pread(fd, min(length, _READ_BYTES_MAX), offset)
    if len(data) == length or not data:
        return data
    parts = [data]
    have = len(data)
    while have < length:
        data = os.pread(fd, min(length - have, _READ_BYTES_MAX), offset + have)
        if not data:
            break
        parts.append(data)
        have += len(data)
    return b"".join(parts)


def read_readable(fd: int, length: int, offset: int) -> bytes:
    """As :func:`read_at`, with zeros for each block that cannot be read: for data with a checksum,
    which zeros fail."""
    try:
        return read_at(fd, length, offset)
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
    end = min(offset + length, os.fstat(fd).st_size)
    data = bytearray()
    while (position := offset + len(data)) < end:
        count = min(end, (position // BLOCK_BYTES + 1) * BLOCK_BYTES) - position
        data += _readable(fd, count, position).ljust(count, b"\0")
    return bytes(data)


def _readable(fd: int, count: int, offset: int) -> bytes:
    try:
        return os.pread(fd, count, offset)
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
        return b""


def is_readable(fd: int, start: int, end: int) -> bool:
    """Whether the disk can read every block of [start, end)."""
    try:
        for offset in range(start, end, _READ_BYTES):
            read_at(fd, min(_READ_BYTES, end - offset), offset)
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
        return False
    return True


def read_into(fd: int, view: memoryview, offset: int) -> int:
    """Fill ``view`` from ``offset``; returns the bytes read, short only at the end of the file."""
    have = 0
    while have < len(view):
        count = os.preadv(fd, [view[have:]], offset + have)
        if count == 0:
            break
        have += count
    return have


def data_ranges(fd: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """(start, end) ranges below ``end`` that have blocks or dirty pages (``SEEK_DATA``)."""
    position = start
    while position < end:
        try:
            data_start = os.lseek(fd, position, os.SEEK_DATA)
            if data_start >= end:
                return
            data_end = min(os.lseek(fd, data_start, os.SEEK_HOLE), end)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # no more data, or the file was cut meanwhile
            raise
        yield data_start, data_end
        position = data_end


_BLOCKS_MIN = 16
"""More than one file takes for itself. XFS makes inodes as long as it has space for them."""


class FreeSpace(NamedTuple):
    """What a file system has free for users, and its size."""

    free_bytes: int
    total_bytes: int


def free_space(fd: int) -> FreeSpace:
    """The free space of the file system that a file lies on."""
    status = os.fstatvfs(fd)
    return FreeSpace(status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize)


def free_inodes(place: int | str) -> int | None:
    """How many more files users may create on the file system of an open file or a path; None where
    the number of files has no bound of its own."""
    status = os.statvfs(place)
    return status.f_favail if status.f_files else None


def why_full(place: int | str) -> str:
    """What of the file system of an open file or a path is used up, after ENOSPC from it."""
    with suppress(OSError):
        has_space = os.statvfs(place).f_bavail >= _BLOCKS_MIN
        if has_space and free_inodes(place) == 0:
            return "no inode is left for another file, even though space is free; delete files"
    return "no space left to write"


def attributes_of(path: bytes, hidden: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The extended attributes of a file, ACLs among them, but the one named ``hidden``, in the
    order of their names. Raises OSError."""
    for name in sorted(map(os.fsencode, os.listxattr(path))):
        if name != hidden:
            yield name, os.getxattr(path, name)


def takes_no_changes(path: str | bytes, dir_fd: int | None = None) -> bool:
    """Whether a file cannot be written to now because its file system, or its mount, takes no
    changes. Opening it tells even of an ext4 that an error has made read-only."""
    # While the file system is frozen, opening for writing waits unless the kernel knows the name.
    os.access(path, os.F_OK, dir_fd=dir_fd)
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CLOEXEC, dir_fd=dir_fd))
    except OSError as error:
        return error.errno == errno.EROFS
    return False


@contextmanager
def opened(fd: int) -> Iterator[int]:
    """Close ``fd`` at the end of the block."""
    try:
        yield fd
    finally:
        os.close(fd)


def open_to_read(dir_fd: int, name: bytes | str) -> int:
    """A descriptor of a file in a directory. Raises OSError."""
    return os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=dir_fd)


def read_file(dir_fd: int, name: bytes | str) -> bytes:
    """All of a small file in a directory. Raises OSError."""
    with opened(open_to_read(dir_fd, name)) as fd:
        return read_at(fd, os.fstat(fd).st_size, 0)


def read_if_there(dir_fd: int, name: bytes | str) -> bytes | None:
    """As :func:`read_file`; None where there is no such file."""
    try:
        return read_file(dir_fd, name)
    except FileNotFoundError:
        return None


def is_there(dir_fd: int, name: bytes | str) -> bool:
    """Whether a directory has a name, whatever it stands for."""
    try:
        os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def names_in(dir_fd: int) -> list[bytes]:
    """The names in a directory as it is now.

    On btrfs a descriptor lists no name that is newer than its own opening, or than the end of its
    last listing. So the directory is opened again.
    """
    with opened(os.open(b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=dir_fd)) as fd:
        return [os.fsencode(name) for name in os.listdir(fd)]


@contextmanager
def locked(fd: int, what: str, *, wait: bool = False, alone: bool = True) -> Iterator[None]:
    """Hold the ``flock`` of ``fd``, ``alone`` or beside others that do not need it alone.

    Where it is taken, ``what`` is said, and by which process it is held. Then it is waited for, or
    Busy is raised.
    """
    kind = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        if not wait:
            raise Busy(what + _holder(fd)) from None
        if what:
            _log.warning("waits: %s%s", what, _holder(fd))
        fcntl.flock(fd, kind)
    try:
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)


def lock_range(fd: int, start: int, length: int, *, wait: bool) -> bool:
    """Hold bytes of a file for the open file that ``fd`` is of; says whether it does now. They
    need not be there. Such a lock has nothing to do with the ``flock`` of the file."""
    command = fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK
    try:
        fcntl.fcntl(fd, command, _RANGE.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0))
    except (BlockingIOError, PermissionError):
        return False
    return True


def unlock_range(fd: int, start: int, length: int) -> None:
    """Let go of what :func:`lock_range` holds of these bytes."""
    range_ = _RANGE.pack(fcntl.F_UNLCK, os.SEEK_SET, start, length, 0)
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, range_)


def range_of_others(fd: int, at: int) -> tuple[int, int] | None:
    """Start and length of the range with the byte ``at`` that another open file holds, if one
    does."""
    asked = _RANGE.pack(fcntl.F_WRLCK, os.SEEK_SET, at, 1, 0)
    kind, _, start, length, _ = _RANGE.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else (start, length)


def _holder(fd: int) -> str:
    """The process that holds the ``flock`` of ``fd``, to be shown; empty where that is not told:
    a container may see other numbers."""
    inode = os.fstat(fd).st_ino
    with suppress(OSError, ValueError, IndexError):
        with open("/proc/locks", encoding="ascii") as file:
            rows = [line.split() for line in file]
        for row in rows:
            if row[1] == "FLOCK" and int(row[5].rpartition(":")[2]) == inode:
                pid = int(row[4])
                with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
                    return f" (process {pid}, {file.read().strip()})"
    return ""
