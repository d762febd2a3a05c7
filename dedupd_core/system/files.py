"""Small functions on descriptors, without state or durable effects (see ``disk.py``)."""

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
"""``struct flock``: type, origin of the start, start, length, process."""

_READ_BYTES_MAX = 0x7FFF_F000

_READ_BYTES = 1 << 20

BLOCK_BYTES = 4096
"""The smallest unit that is lost with an unreadable disk block."""

UNREADABLE = frozenset((errno.EIO, errno.ENODATA, errno.EILSEQ, errno.EREMOTEIO, errno.EUCLEAN))
"""Errors for a damaged block, from a disk or from a file system with checksums (btrfs)."""


def read_at(fd: int, length: int, offset: int) -> bytes:
    """Read up to ``length`` bytes at ``offset``; fewer only at the end of the file."""
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
    """Like :func:`read_at`, with zeros for unreadable blocks: for data with a checksum, which does
    not match zeros."""
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
    """Return whether the disk can read every block of [start, end)."""
    try:
        for offset in range(start, end, _READ_BYTES):
            read_at(fd, min(_READ_BYTES, end - offset), offset)
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
        return False
    return True


def read_into(fd: int, view: memoryview, offset: int) -> int:
    """Fill ``view`` from ``offset``; return the bytes read, fewer only at the end of the file."""
    have = 0
    while have < len(view):
        count = os.preadv(fd, [view[have:]], offset + have)
        if count == 0:
            break
        have += count
    return have


def data_ranges(fd: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield (start, end) ranges below ``end`` that have blocks or dirty pages (``SEEK_DATA``)."""
    position = start
    while position < end:
        try:
            data_start = os.lseek(fd, position, os.SEEK_DATA)
            if data_start >= end:
                return
            data_end = min(os.lseek(fd, data_start, os.SEEK_HOLE), end)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # no more data, or the file was truncated since then
            raise
        yield data_start, data_end
        position = data_end


_BLOCKS_MIN = 16
"""More than one file needs for itself. XFS makes inodes as long as it has space for them."""


class FreeSpace(NamedTuple):
    """The free space for users, and the size of a file system."""

    free_bytes: int
    total_bytes: int


def free_space(fd: int) -> FreeSpace:
    """Return the free space of the file system of a file."""
    status = os.fstatvfs(fd)
    return FreeSpace(status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize)


def free_inodes(place: int | str) -> int | None:
    """Return how many more files users may create on the file system of an open file or a path;
    None if the number of files is unlimited."""
    status = os.statvfs(place)
    return status.f_favail if status.f_files else None


def why_full(place: int | str) -> str:
    """Return what is used up, space or inodes, after ENOSPC from an open file or a path."""
    with suppress(OSError):
        has_space = os.statvfs(place).f_bavail >= _BLOCKS_MIN
        if has_space and free_inodes(place) == 0:
            return "no inode is left for another file, even though space is free; delete files"
    return "no space left to write"


def attributes_of(path: bytes, hidden: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the extended attributes of a file in the order of their names. Includes ACLs, but not
    the attribute ``hidden``. Raises OSError."""
    for name in sorted(map(os.fsencode, os.listxattr(path))):
        if name != hidden:
            yield name, os.getxattr(path, name)


def takes_no_changes(path: str | bytes, dir_fd: int | None = None) -> bool:
    """Return whether the file system or the mount of a file is read-only now. Opening the file even
    detects an ext4 that became read-only after an error."""
    # On a frozen file system, opening for writing waits unless the kernel knows the name.
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
    """Open a file in a directory for reading. Raises OSError."""
    return os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=dir_fd)


def read_file(dir_fd: int, name: bytes | str) -> bytes:
    """Read a small file in a directory. Raises OSError."""
    with opened(open_to_read(dir_fd, name)) as fd:
        return read_at(fd, os.fstat(fd).st_size, 0)


def read_if_there(dir_fd: int, name: bytes | str) -> bytes | None:
    """Like :func:`read_file`; None if there is no such file."""
    try:
        return read_file(dir_fd, name)
    except FileNotFoundError:
        return None


def is_there(dir_fd: int, name: bytes | str) -> bool:
    """Return whether a directory has a name, for any type of file."""
    try:
        os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def names_in(dir_fd: int) -> list[bytes]:
    """List the current names in a directory.

    On btrfs a descriptor lists only names that are older than its opening, or than the end of its
    last listing. So the directory is opened again.
    """
    with opened(os.open(b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=dir_fd)) as fd:
        return [os.fsencode(name) for name in os.listdir(fd)]


@contextmanager
def locked(fd: int, what: str, *, wait: bool = False, alone: bool = True) -> Iterator[None]:
    """Hold the ``flock`` of ``fd``, ``alone`` or shared with other holders that are not ``alone``.

    If it is taken, ``what`` and the process that holds it are reported: this waits, or raises Busy.
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
    """Lock a range of bytes of a file, on behalf of the open file of ``fd``; return whether that
    succeeded. The bytes need not exist. Such a lock is independent of the ``flock`` of the file."""
    command = fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK
    try:
        fcntl.fcntl(fd, command, _RANGE.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0))
    except (BlockingIOError, PermissionError):
        return False
    return True


def unlock_range(fd: int, start: int, length: int) -> None:
    """Release these bytes from :func:`lock_range`."""
    range_ = _RANGE.pack(fcntl.F_UNLCK, os.SEEK_SET, start, length, 0)
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, range_)


def range_of_others(fd: int, at: int) -> tuple[int, int] | None:
    """Return start and length of the range at the byte ``at`` that another open file has locked;
    None if the byte is not locked."""
    asked = _RANGE.pack(fcntl.F_WRLCK, os.SEEK_SET, at, 1, 0)
    kind, _, start, length, _ = _RANGE.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else (start, length)


def _holder(fd: int) -> str:
    """Describe the process that holds the ``flock`` of ``fd``; empty if it is unknown: a container
    may see other process ids."""
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
