"""Small tools over descriptors. No state, nothing durable (that is ``disk.py``)."""

import errno
import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from dedupd.errors import Busy

_READ_BYTES_MAX = 0x7FFF_F000

_READ_BYTES = 1 << 20

BLOCK_BYTES = 4096
"""What is lost with a block that the disk cannot give, at least."""

UNREADABLE = frozenset((errno.EIO, errno.ENODATA, errno.EILSEQ, errno.EREMOTEIO, errno.EUCLEAN))
"""What a disk, or a file system that keeps checksums (btrfs), says of a block that is damaged."""


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
    """As :func:`read_at`, with zeros for each block that cannot be read: for what has a checksum,
    which zeros do not pass."""
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
    """Whether the disk gives every block of [start, end)."""
    try:
        for offset in range(start, end, _READ_BYTES):
            read_at(fd, min(_READ_BYTES, end - offset), offset)  # also behind what one call gives
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
            begin = os.lseek(fd, position, os.SEEK_DATA)
            if begin >= end:
                return
            stop = min(os.lseek(fd, begin, os.SEEK_HOLE), end)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # no more data, or the file was cut meanwhile
            raise
        yield begin, stop
        position = stop


def split_path(path: bytes) -> list[bytes]:
    """Components of a relative path. Raises ValueError where one is ``..`` or it is absolute."""
    parts = [part for part in path.split(b"/") if part not in (b"", b".")]
    if path.startswith(b"/") or b".." in parts:
        raise ValueError(f"{path!r} leaves the directory")
    return parts


def open_beneath(dir_fd: int, path: bytes, flags: int) -> int:
    """Open ``path`` below ``dir_fd``, following no symbolic link at any step."""
    *parents, name = split_path(path) or [b"."]
    current = dir_fd
    try:
        for part in parents:
            step = os.open(
                part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=current
            )
            if current != dir_fd:
                os.close(current)
            current = step
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=current)
    finally:
        if current != dir_fd:
            os.close(current)


class DirectoryOpener:
    """Opens directories below one, and keeps the last: files come directory by directory."""

    def __init__(self, dir_fd: int) -> None:
        self._root = dir_fd
        self._path = b""
        self._fd = dir_fd

    def open(self, path: bytes) -> int:
        """A descriptor to open names in, which lives until the next call. Follows no link."""
        if path != self._path:
            self.close()
            self._fd = open_beneath(self._root, path, os.O_PATH | os.O_DIRECTORY)
            self._path = path
        return self._fd

    def open_file(self, path: bytes, flags: int) -> int:
        """Open a file, as :func:`open_beneath` does."""
        directory, _, name = path.rpartition(b"/")
        return os.open(
            name or b".", flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.open(directory)
        )

    def close(self) -> None:
        """Let go of the last directory."""
        if self._fd != self._root:
            os.close(self._fd)
        self._path, self._fd = b"", self._root


@contextmanager
def opened(fd: int) -> Iterator[int]:
    """Close ``fd`` at the end of the block."""
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def locked(fd: int, what: str, *, wait: bool = False) -> Iterator[None]:
    """Hold the exclusive ``flock`` of ``fd``. Raises Busy where somebody else has it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        raise Busy(what) from None
    try:
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)


def has_writers(fd: int) -> bool:
    """Whether anybody has the file of ``fd``, open for reading only, open or mapped for writing.

    Asked by taking a read lease for an instant. Where leases cannot be had, False.
    """
    if not _lease(fd, fcntl.F_RDLCK):
        return True
    _lease(fd, fcntl.F_UNLCK)
    return False


def lease_exclusively(fd: int) -> bool:
    """Take the write lease of ``fd``, open for writing; False where anybody else has it open.

    Until ``fd`` is closed, whoever opens the file waits (up to ``/proc/sys/fs/lease-break-time``
    seconds). Where leases cannot be had, True.
    """
    return _lease(fd, fcntl.F_WRLCK)


def _lease(fd: int, kind: int) -> bool:
    try:
        # Who breaks a lease makes the kernel send SIGIO, which kills; SIGURG is ignored.
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, kind)
    except OSError as error:
        return error.errno != errno.EAGAIN
    return True


def show_path(path: bytes) -> str:
    """A path as text for people; bytes that are not UTF-8 are shown escaped, and so is whatever
    would do something to a terminal or to the lines of a log."""
    return show_text(path.decode("utf-8", "surrogateescape"))


def show_text(text: str) -> str:
    """The same for text in which names occur."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else _escaped(one) for one in text)


def _escaped(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"  # a byte, as ``surrogateescape`` has it
    return character.encode("unicode_escape").decode()


def resolved(path: str) -> str:
    """An absolute path with links followed, but for a last name that leads to no directory: a link
    may itself be what is meant, as one of the files of a volume."""
    whole = os.path.abspath(path)
    if os.path.isdir(whole):
        return os.path.realpath(whole)
    return os.path.join(os.path.realpath(os.path.dirname(whole)), os.path.basename(whole))


@contextmanager
def named(path: str) -> Iterator[None]:
    """Have errors of the system name ``path``, and not what was opened below a descriptor."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error


def explain(error: OSError) -> str:
    """An error of the system as people read it: the name, and what is wrong with it."""
    where = f"{os.fsdecode(error.filename)}: " if error.filename else ""
    return f"{where}{error.strerror or error}"
