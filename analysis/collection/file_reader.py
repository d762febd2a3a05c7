"""Reading the files of a study into large buffers, each byte once, ahead of the chunking."""

import errno
import mmap
import os
import queue
import stat
import threading
from collections.abc import Callable, Iterator

import numpy as np

from analysis.collection.chunk_log import Dataset
from analysis.collection.file_batches import (
    BATCH_BYTES,
    HEADROOM_BYTES,
    Batch,
    Cursor,
    Piece,
    Pieces,
    one_piece,
    whole_files,
)
from analysis.collection.file_log import Files, FoundFile
from analysis.collection.tree_walk import Failure
from dedupd import native
from dedupd.system.files import data_ranges
from dedupd.system.page_cache import BufferPool, read_uncached
from dedupd.units import MIB

HOLE_LEAD_BYTES = 2 * HEADROOM_BYTES
"""Zeros at the start of a hole that are chunked as if they had been read: after S_max of them every
chunking is inside the hole, and cuts at its S_max until the hole ends, since zeros never match."""

HOLE_BYTES_MIN = 1 * MIB
"""Shorter holes are read as zeros."""

PIECES_PER_BATCH_MAX = 4096

SMALL_BYTES_MAX = HOLE_BYTES_MIN
"""Smaller files have no holes that count, and what Python does for each would cost more than their
bytes: they are read many at a time."""

_THREADS = 2
"""For small files, most of whose time is the file system's."""

_LOOK_AROUND_S = 1.0


class Reader:
    """Reads ``files`` from ``begin`` on, in a thread of its own."""

    def __init__(
        self,
        datasets: tuple[Dataset, ...],
        files: Iterator[Files],
        begin: Cursor,
        pool: BufferPool,
    ) -> None:
        self._files = files
        self._filler = _Filler(datasets, begin, self._take, self._put)
        self._pool = pool
        self._out: queue.SimpleQueue[Batch | BaseException | None] = queue.SimpleQueue()
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="reader", daemon=True)
        self._thread.start()

    def batches(self) -> Iterator[Batch | None]:
        """What was read, in order; None where there is none for a while, to look around."""
        while True:
            try:
                item = self._out.get(timeout=_LOOK_AROUND_S)
            except queue.Empty:
                yield None
                continue
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield item

    def close(self) -> None:
        """Stop reading; safe at any time. Where files come from has to end, too."""
        self._stop = True
        self._pool.close()
        self._thread.join()

    def _run(self) -> None:
        try:
            for files in self._files:
                at = 0
                while at < len(files) and not self._stop:
                    at = self._filler.read_some(files, at)
                if self._stop:
                    return
            self._filler.finish()
            self._out.put(None)
        except _Stopped:
            return
        except BaseException as error:
            self._out.put(error)
        finally:
            self._filler.close()

    def _put(self, batch: Batch) -> None:
        self._out.put(batch)

    def _take(self) -> mmap.mmap:
        buffer = self._pool.take()
        if buffer is None or self._stop:
            raise _Stopped
        return buffer


class _Stopped(Exception):
    """The reader was closed."""


class _Shrank(Exception):
    """A file is shorter than it was when it was opened."""


class _Filler:
    """Fills batches, file after file."""

    def __init__(
        self,
        datasets: tuple[Dataset, ...],
        begin: Cursor,
        take: Callable[[], mmap.mmap],
        emit: Callable[[Batch], None],
    ) -> None:
        self._datasets = datasets
        self._roots: dict[int, int] = {}
        self._resume_at: Cursor | None = begin if begin.position else None
        self._after = begin
        self._take = take
        self._emit_batch = emit
        self._batch: Batch | None = None
        self._fill = 0
        self._tail = b""

    def finish(self) -> None:
        """Hand over what is left."""
        self._emit()

    def close(self) -> None:
        for fd in self._roots.values():
            os.close(fd)

    def read_some(self, files: Files, at: int) -> int:
        """Read on from the file at ``at``; returns where the next one is."""
        if read := self._read_small(files, at):
            return at + read
        self._read_one(files[at])
        return at + 1

    def _read_small(self, files: Files, at: int) -> int:
        """Read small files that follow each other in one call, as many as there is room for.

        Returns their number, 0 where the first one is not small or cannot be read this way.
        """
        if files.sizes[at] >= SMALL_BYTES_MAX or self._resume_at is not None:
            return 0
        if HEADROOM_BYTES + BATCH_BYTES - self._fill < files.sizes[at]:
            self._emit_if_filled()
        batch = self._current()
        stop = self._small_until(files, at, PIECES_PER_BATCH_MAX - batch.count)
        dataset = int(files.dataset[at])
        try:
            root = self._root(dataset)
        except OSError:
            return 0
        paths, identities = files.paths_of(at, stop), files.identities[at:stop].tobytes()
        read = native.study.read_packed(root, paths, identities, batch.buffer, self._fill, _THREADS)
        if read:
            some = slice(at, at + read)
            self._add(whole_files(dataset, files.file[some], files.sizes[some], self._fill))
            self._emit_if_full()
        return read

    def _small_until(self, files: Files, at: int, count_max: int) -> int:
        """Where the files from ``at`` on stop to be small, of one dataset, or to fit."""
        sizes = files.sizes[at : at + count_max]
        room = HEADROOM_BYTES + BATCH_BYTES - self._fill
        wrong = (
            (sizes >= SMALL_BYTES_MAX)
            | (files.dataset[at : at + count_max] != files.dataset[at])
            | (np.cumsum(sizes) > room)
        )
        return at + (int(wrong.argmax()) if wrong.any() else len(wrong))

    def _read_one(self, found: FoundFile) -> None:
        """Read one file of any size; what goes wrong with it is noted in the batch."""
        dataset, file, path = found.dataset, found.file, found.path
        try:
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

    def _open(self, dataset: int, path: bytes) -> int:
        root = self._root(dataset)
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            return os.open(path, flags | os.O_NOATIME, dir_fd=root)
        except PermissionError:
            # Only the owner may leave the access time alone.
            return os.open(path, flags, dir_fd=root)

    def _root(self, dataset: int) -> int:
        """What paths in a dataset are relative to; stays open. Raises OSError."""
        if dataset not in self._roots:
            directory = _directory_of(os.fsencode(self._datasets[dataset].path))
            flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
            self._roots[dataset] = os.open(directory, flags)
        return self._roots[dataset]

    def _give_up(self, dataset: int, file: int, path: bytes, reason: str) -> None:
        batch = self._current()
        batch.failures.append(Failure(dataset, path, reason))
        gap = Piece(dataset, file, self._fill, self._fill, 0, False, True, failed=True)
        batch.parts.append(one_piece(gap))
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
        sparse = status.st_blocks * 512 < size
        ranges = list(_joined(data_ranges(fd, at, size), at, size)) if sparse else [(at, size)]
        for begin, stop in [*ranges, (size, size)]:
            if begin > at:
                self._add_hole(dataset, file, at, begin, size)
                at = begin
            while at < stop:
                at += self._read_piece(fd, dataset, file, at, stop, size, sparse)

    def _read_headroom(self, fd: int, position: int, size: int) -> None:
        """What precedes ``position``, for the chunks that were unfinished there."""
        batch = self._current()
        length = min(HEADROOM_BYTES, position)
        view = memoryview(batch.buffer)[HEADROOM_BYTES - length : HEADROOM_BYTES]
        if size <= position or read_uncached(fd, view, position - length) < length:
            raise _Shrank

    def _read_piece(
        self, fd: int, dataset: int, file: int, position: int, stop: int, size: int, sparse: bool
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
        length = end - start
        final = position + length == size
        blank = _blank_bytes(fd, position, position + length) if sparse else 0
        self._add_piece(
            Piece(dataset, file, start, end, position, position == 0, final, blank=blank)
        )
        return length

    def _add_hole(self, dataset: int, file: int, begin: int, stop: int, size: int) -> None:
        """A hole in place of the bytes from ``begin`` to ``stop``."""
        if HEADROOM_BYTES + BATCH_BYTES - self._fill < HOLE_LEAD_BYTES:
            self._emit_if_filled()
        batch = self._current()
        start, end = self._fill, self._fill + HOLE_LEAD_BYTES
        batch.buffer[start:end] = bytes(HOLE_LEAD_BYTES)
        hole, first, final = stop - begin - HOLE_LEAD_BYTES, begin == 0, stop == size
        lead = Piece(dataset, file, start, end, begin, first, final, hole, blank=HOLE_LEAD_BYTES)
        self._add_piece(lead)

    def _add_piece(self, piece: Piece) -> None:
        batch = self._add(one_piece(piece))
        if piece.final:
            if piece.hole:
                self._emit()
            else:
                self._emit_if_full()
            return
        batch.after = Cursor(piece.file, piece.position + piece.end - piece.start + piece.hole)
        keep = min(HEADROOM_BYTES, piece.position + piece.end - piece.start)
        before = batch.buffer[piece.end - keep : piece.end]
        self._tail = bytes(HEADROOM_BYTES) if piece.hole else before
        self._emit()

    def _add(self, pieces: Pieces) -> Batch:
        """Append pieces; the next one lies behind them, of another file."""
        batch = self._current()
        batch.parts.append(pieces)
        batch.done_bytes += int((pieces["end"] - pieces["start"] + pieces["hole"]).sum())
        self._fill = int(pieces["end"][-1])
        batch.after = Cursor(int(pieces["file"][-1]) + 1, 0)
        return batch

    def _emit_if_full(self) -> None:
        batch = self._current()
        if self._fill == len(batch.buffer) or batch.count >= PIECES_PER_BATCH_MAX:
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


def _blank_bytes(fd: int, begin: int, stop: int) -> int:
    """How many bytes of a range lie in holes."""
    return stop - begin - sum(end - start for start, end in data_ranges(fd, begin, stop))


def _directory_of(path: bytes) -> bytes:
    """The directory that paths in a dataset are relative to; a dataset may be a single file."""
    real = os.path.realpath(path)
    return real if os.path.isdir(real) else os.path.dirname(real)


def _open_failure(error: OSError) -> str:
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO):
        return "moved or removed meanwhile"
    return f"cannot be opened: {error.strerror}"
