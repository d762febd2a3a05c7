"""Reading the files of a study into large buffers, each byte once, ahead of the chunking."""

import errno
import mmap
import os
import queue
import stat
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

from analysis.batches import BATCH_BYTES, HEADROOM_BYTES, Batch, Cursor, Piece
from analysis.connection import connect
from analysis.log import Dataset, Log
from analysis.scan import Failure
from dedupd import native
from dedupd.fsutil import data_ranges
from dedupd.uncached import BufferPool, read_uncached
from dedupd.units import MIB

HOLE_LEAD_BYTES = 2 * HEADROOM_BYTES
"""Zeros at the start of a hole that are chunked as if they had been read: after S_max of them every
chunking is inside the hole, and cuts at its S_max until the hole ends, since zeros never match."""

HOLE_BYTES_MIN = 1 * MIB
"""Shorter holes are read as zeros."""

PIECES_PER_BATCH_MAX = 4096

SMALL_BYTES_MAX = 1 * MIB
"""Up to this size, the calls for each file cost more than its bytes."""

_FILES_FETCHED = 2048
_MEMORY_MB = 64


class Reader:
    """Reads the files of a log from ``begin`` on, in a thread of its own."""

    def __init__(self, log: Log, begin: Cursor, pool: BufferPool) -> None:
        self._log = log
        self._begin = begin
        self._pool = pool
        self._out: queue.SimpleQueue[Batch | BaseException | None] = queue.SimpleQueue()
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="reader", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Batch]:
        while (item := self._out.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item

    def close(self) -> None:
        """Stop reading; safe at any time."""
        self._stop = True
        self._pool.close()
        self._thread.join()

    def _run(self) -> None:
        try:
            filler = _Filler(self._log.spec.datasets, self._begin, self._take, self._out.put)
            for found in _files_from(self._log, self._begin.file):
                if self._stop:
                    return
                filler.read(found)
            filler.finish()
            self._out.put(None)
        except _Stopped:
            return
        except BaseException as error:
            self._out.put(error)

    def _take(self) -> mmap.mmap:
        buffer = self._pool.take()
        if buffer is None or self._stop:
            raise _Stopped
        return buffer


class _Stopped(Exception):
    """The reader was closed."""


class _Shrank(Exception):
    """A file is shorter than it was when it was opened."""


class _Found(NamedTuple):
    """A file as the scan found it."""

    file: int
    dataset: int
    path: bytes
    inode: int
    size_bytes: int
    modified_ns: int
    changed_ns: int
    allocated_bytes: int

    @property
    def identity(self) -> tuple[int, int, int, int]:
        return self.inode, self.size_bytes, self.modified_ns, self.changed_ns


def _files_from(log: Log, first: int) -> Iterator[_Found]:
    """The files with content, in order, streamed."""
    with connect(_MEMORY_MB, threads=1) as database:
        for part in log.file_parts():
            rows = database.execute(
                f"SELECT {', '.join(_Found._fields)} FROM read_parquet(?)"
                " WHERE size_bytes > 0 AND file >= ?",
                [part, first],
            )
            while found := rows.fetchmany(_FILES_FETCHED):
                yield from map(_Found._make, found)


class _Filler:
    """Fills batches, file after file."""

    def __init__(
        self,
        datasets: tuple[Dataset, ...],
        begin: Cursor,
        take: Callable[[], mmap.mmap],
        emit: Callable[[Batch], None],
    ) -> None:
        self._roots = [_directory_of(os.fsencode(dataset.path)) for dataset in datasets]
        self._resume_at: Cursor | None = begin if begin.position else None
        self._after = begin
        self._take = take
        self._emit_batch = emit
        self._batch: Batch | None = None
        self._fill = 0
        self._tail = b""
        self._directory: tuple[int, bytes] | None = None
        self._directory_fd = -1

    def finish(self) -> None:
        """Hand over what is left."""
        self._emit()
        if self._directory_fd >= 0:
            os.close(self._directory_fd)

    def read(self, found: _Found) -> None:
        """Read one file; what goes wrong with it is noted in the batch."""
        dataset, file, path = found.dataset, found.file, found.path
        try:
            if self._read_small(found):
                return
            fd = self._open(dataset, path)
        except OSError as error:
            batch = self._current()
            batch.failures.append(Failure(dataset, path, _open_failure(error)))
            batch.done_bytes += found.size_bytes
            batch.after = Cursor(file + 1, 0)
            return
        try:
            self._read_content(fd, dataset, file)
        except _Shrank:
            self._give_up(dataset, file, path, "changed while it was read")
        except OSError as error:
            self._give_up(dataset, file, path, f"cannot be read: {error.strerror}")
        finally:
            os.close(fd)

    def _read_small(self, found: _Found) -> bool:
        """Read a small file in one call, if it is as it was found; False where it was not read."""
        size = found.size_bytes
        if size > SMALL_BYTES_MAX or found.allocated_bytes < size or self._resume_at is not None:
            return False
        directory_fd = self._enter(found.dataset, found.path)
        if HEADROOM_BYTES + BATCH_BYTES - self._fill < size:
            self._emit_if_filled()
        buffer, start = self._current().buffer, self._fill
        name = found.path.rpartition(b"/")[2]
        if not native.read_unchanged(directory_fd, name, found.identity, 0, buffer, start):
            return False
        self._add(Piece(found.dataset, found.file, start, start + size, 0, True, True))
        return True

    def _enter(self, dataset: int, path: bytes) -> int:
        """The directory of a file; it stays open for the files that follow in it."""
        directory = path.rpartition(b"/")[0]
        if self._directory != (dataset, directory):
            if self._directory_fd >= 0:
                os.close(self._directory_fd)
                self._directory, self._directory_fd = None, -1
            place = os.path.join(self._roots[dataset], directory)
            self._directory_fd = os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            self._directory = dataset, directory
        return self._directory_fd

    def _open(self, dataset: int, path: bytes) -> int:
        directory_fd = self._enter(dataset, path)
        name = path.rpartition(b"/")[2]
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            return os.open(name, flags | os.O_NOATIME, dir_fd=directory_fd)
        except PermissionError:
            # Only the owner may leave the access time alone.
            return os.open(name, flags, dir_fd=directory_fd)

    def _give_up(self, dataset: int, file: int, path: bytes, reason: str) -> None:
        batch = self._current()
        batch.failures.append(Failure(dataset, path, reason))
        batch.pieces.append(
            Piece(dataset, file, self._fill, self._fill, 0, False, True, failed=True)
        )
        batch.after = Cursor(file + 1, 0)
        self._emit()

    def _read_content(self, fd: int, dataset: int, file: int) -> None:
        status = os.fstat(fd)
        size = status.st_size
        if not stat.S_ISREG(status.st_mode) or size == 0:
            raise _Shrank
        at = 0
        if self._resume_at is not None:
            resume, self._resume_at = self._resume_at, None
            if resume.file == file:
                at = resume.position
                self._read_headroom(fd, at, size)
        sparse = status.st_blocks * 512 < size - HOLE_BYTES_MIN
        ranges = list(_joined(data_ranges(fd, at, size), at, size)) if sparse else [(at, size)]
        for begin, stop in [*ranges, (size, size)]:
            if begin > at:
                self._add_hole(dataset, file, at, begin, size)
                at = begin
            while at < stop:
                at += self._read_piece(fd, dataset, file, at, stop, size)

    def _read_headroom(self, fd: int, position: int, size: int) -> None:
        """What precedes ``position``, for the chunks that were unfinished there."""
        batch = self._current()
        length = min(HEADROOM_BYTES, position)
        view = memoryview(batch.buffer)[HEADROOM_BYTES - length : HEADROOM_BYTES]
        if size <= position or read_uncached(fd, view, position - length) < length:
            raise _Shrank

    def _read_piece(
        self, fd: int, dataset: int, file: int, position: int, stop: int, size: int
    ) -> int:
        """Read on into the current batch, or into a new one where a small file would be split."""
        room = HEADROOM_BYTES + BATCH_BYTES - self._fill
        left = stop - position
        started = position > 0
        if left > room and (started or left < BATCH_BYTES // 2 or room < BATCH_BYTES // 2):
            self._emit_if_filled()
        batch = self._current()
        start = self._fill
        end = min(start + left, HEADROOM_BYTES + BATCH_BYTES)
        view = memoryview(batch.buffer)[start:end]
        if read_uncached(fd, view, position) < len(view):
            raise _Shrank
        self._add(
            Piece(
                dataset, file, start, end, position, position == 0, position + end - start == size
            )
        )
        return end - start

    def _add_hole(self, dataset: int, file: int, begin: int, stop: int, size: int) -> None:
        """A hole in place of the bytes from ``begin`` to ``stop``."""
        if HEADROOM_BYTES + BATCH_BYTES - self._fill < HOLE_LEAD_BYTES:
            self._emit_if_filled()
        batch = self._current()
        start, end = self._fill, self._fill + HOLE_LEAD_BYTES
        batch.buffer[start:end] = bytes(HOLE_LEAD_BYTES)
        hole = stop - begin - HOLE_LEAD_BYTES
        self._add(Piece(dataset, file, start, end, begin, begin == 0, stop == size, hole))

    def _add(self, piece: Piece) -> None:
        batch = self._current()
        batch.pieces.append(piece)
        batch.done_bytes += piece.end - piece.start + piece.hole
        self._fill = piece.end
        if piece.final:
            batch.after = Cursor(piece.file + 1, 0)
            full = self._fill == len(batch.buffer) or len(batch.pieces) >= PIECES_PER_BATCH_MAX
            if full or piece.hole:
                self._emit()
            return
        batch.after = Cursor(piece.file, piece.position + piece.end - piece.start + piece.hole)
        keep = min(HEADROOM_BYTES, piece.position + piece.end - piece.start)
        before = batch.buffer[piece.end - keep : piece.end]
        self._tail = bytes(HEADROOM_BYTES) if piece.hole else before
        self._emit()

    def _current(self) -> Batch:
        if self._batch is None:
            batch = self._batch = Batch(self._take())
            batch.after = self._after
            tail, self._tail = self._tail, b""
            batch.buffer[HEADROOM_BYTES - len(tail) : HEADROOM_BYTES] = tail
            self._fill = HEADROOM_BYTES
        return self._batch

    def _emit_if_filled(self) -> None:
        if self._fill > HEADROOM_BYTES:
            self._emit()

    def _emit(self) -> None:
        if self._batch is not None:
            batch, self._batch = self._batch, None
            self._after = batch.after
            self._emit_batch(batch)


def _joined(ranges: Iterator[tuple[int, int]], begin: int, size: int) -> Iterator[tuple[int, int]]:
    """Data ranges, those with short holes between them, or at the ends, joined."""
    pending: tuple[int, int] | None = None
    for start, stop in ranges:
        if pending is None:
            pending = (begin if start - begin < HOLE_BYTES_MIN else start), stop
        elif start - pending[1] < HOLE_BYTES_MIN:
            pending = pending[0], stop
        else:
            yield pending
            pending = start, stop
    if pending is not None:
        yield pending if size - pending[1] >= HOLE_BYTES_MIN else (pending[0], size)
    elif size - begin < HOLE_BYTES_MIN:
        yield begin, size


def _directory_of(path: bytes) -> bytes:
    """The directory that paths in a dataset are relative to; a dataset may be a single file."""
    real = os.path.realpath(path)
    return real if os.path.isdir(real) else os.path.dirname(real)


def _open_failure(error: OSError) -> str:
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO):
        return "moved or removed meanwhile"
    return f"cannot be opened: {error.strerror}"
