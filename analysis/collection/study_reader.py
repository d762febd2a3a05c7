"""Reads the files of a study into large buffers, each byte once, ahead of the chunking."""

import os
import stat
from collections.abc import Iterator

import numpy as np

from analysis.collection.chunk_log import Dataset
from analysis.collection.file_batches import (
    HEADROOM_BYTES,
    Batch,
    Cursor,
    Segment,
    SegmentRows,
    one_segment,
    whole_files,
)
from analysis.collection.file_log import Files, FoundFile
from analysis.collection.tree_walk import Failure
from dedupd_core import native
from dedupd_core.errors import FileChanged
from dedupd_core.system.file_reader import (
    BATCH_BYTES,
    SMALL_BYTES_MAX,
    FileReader,
    FileStretch,
    ReaderClosed,
    fill,
    open_failure,
    open_unnoticed,
    stretches,
)
from dedupd_core.system.files import data_ranges
from dedupd_core.system.page_cache import BufferPool

HOLE_LEAD_BYTES = 2 * HEADROOM_BYTES
"""Zeros at the start of a hole that are chunked like data. After S_max bytes, every chunking is
inside the hole. It then cuts at S_max until the hole ends, since zeros never match."""

SEGMENTS_PER_BATCH_MAX = 4096

_THREADS = 2
"""For small files, which spend most of their time in the file system."""


class Reader(FileReader[Batch]):
    """Reads ``files`` from ``start`` on. The source of the files must end before this is closed."""

    def __init__(
        self,
        datasets: tuple[Dataset, ...],
        files: Iterator[Files],
        start: Cursor,
        pool: BufferPool,
    ) -> None:
        super().__init__(pool)
        self._files = files
        self._datasets = datasets
        self._roots: dict[int, int] = {}
        self._resume_at: Cursor | None = start if start.position else None
        self._after = start
        self._batch: Batch | None = None
        self._fill = 0
        self._tail = b""
        self._thread.start()

    def _read(self) -> None:
        try:
            for files in self._files:
                at = 0
                while at < len(files) and not self._stop:
                    at = self._read_some(files, at)
                if self._stop:
                    raise ReaderClosed
            self._emit()
        finally:
            for fd in self._roots.values():
                os.close(fd)

    def _read_some(self, files: Files, at: int) -> int:
        """Read the file at ``at``, or several small files; return the index of the next file."""
        if read := self._read_small(files, at):
            return at + read
        self._read_one(files[at])
        return at + 1

    def _read_small(self, files: Files, at: int) -> int:
        """Read consecutive small files in one call, as many as fit.

        Returns their number, 0 if the first one is not small or cannot be read this way.
        """
        if files.sizes[at] >= SMALL_BYTES_MAX or self._resume_at is not None:
            return 0
        if HEADROOM_BYTES + BATCH_BYTES - self._fill < files.sizes[at]:
            self._emit_if_filled()
        batch = self._current()
        end = self._small_until(files, at, SEGMENTS_PER_BATCH_MAX - batch.count)
        dataset = int(files.dataset[at])
        try:
            root = self._root(dataset)
        except OSError:
            return 0
        paths, identities = files.paths_of(at, end), files.identities[at:end].tobytes()
        read = native.study.read_packed(root, paths, identities, batch.buffer, self._fill, _THREADS)
        if read:
            some = slice(at, at + read)
            self._add(whole_files(dataset, files.file[some], files.sizes[some], self._fill))
            self._emit_if_full()
        return read

    def _small_until(self, files: Files, at: int, count_max: int) -> int:
        """Return the end of the files from ``at`` on that are small, of one dataset, and fit."""
        sizes = files.sizes[at : at + count_max]
        room = HEADROOM_BYTES + BATCH_BYTES - self._fill
        wrong = (
            (sizes >= SMALL_BYTES_MAX)
            | (files.dataset[at : at + count_max] != files.dataset[at])
            | (np.cumsum(sizes) > room)
        )
        return at + (int(wrong.argmax()) if wrong.any() else len(wrong))

    def _read_one(self, found: FoundFile) -> None:
        """Read one file of any size; a failure is recorded in the batch."""
        dataset, file, path = found.dataset, found.file, found.path
        try:
            root = self._root(dataset)
            fd = open_unnoticed(lambda flags: os.open(path, flags, dir_fd=root))
        except OSError as error:
            batch = self._current()
            batch.failures.append(Failure(dataset, path, open_failure(error)))
            batch.done_bytes += found.size_bytes
            batch.after = Cursor(file + 1, 0)
            return
        try:
            self._read_content(fd, dataset, file)
        except FileChanged:
            self._give_up(dataset, file, path, "changed while it was read")
        except OSError as error:
            self._give_up(dataset, file, path, f"cannot be read: {error.strerror}")
        finally:
            os.close(fd)

    def _root(self, dataset: int) -> int:
        """Return the base directory of paths in a dataset; it stays open. Raises OSError."""
        if dataset not in self._roots:
            directory = _directory_of(os.fsencode(self._datasets[dataset].path))
            flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
            self._roots[dataset] = os.open(directory, flags)
        return self._roots[dataset]

    def _give_up(self, dataset: int, file: int, path: bytes, reason: str) -> None:
        batch = self._current()
        batch.failures.append(Failure(dataset, path, reason))
        gap = Segment(dataset, file, self._fill, self._fill, 0, False, True, failed=True)
        batch.parts.append(one_segment(gap))
        batch.after = Cursor(file + 1, 0)
        self._emit()

    def _read_content(self, fd: int, dataset: int, file: int) -> None:
        status = os.fstat(fd)
        size = status.st_size
        if not stat.S_ISREG(status.st_mode) or size == 0:
            raise FileChanged("shrank before it was read")
        start = 0
        if self._resume_at is not None:
            resume, self._resume_at = self._resume_at, None
            if resume.file == file:
                start = resume.position
                self._read_headroom(fd, start, size)
        sparse = status.st_blocks * 512 < size
        ranges = list(data_ranges(fd, start, size)) if sparse else [(start, size)]
        for part in stretches(ranges, start, size):
            if part.is_hole:
                self._add_hole(dataset, file, part, size)
                continue
            at = part.start
            while at < part.end:
                at += self._read_segment(fd, (dataset, file), range(at, part.end), size, sparse)

    def _read_headroom(self, fd: int, position: int, size: int) -> None:
        """Read the bytes before ``position``, for the chunks that are unfinished there."""
        batch = self._current()
        length = min(HEADROOM_BYTES, position)
        if size <= position:
            raise FileChanged("shrank while it was read")
        view = memoryview(batch.buffer)[HEADROOM_BYTES - length : HEADROOM_BYTES]
        fill(fd, view, position - length)

    def _read_segment(
        self, fd: int, of: tuple[int, int], remaining: range, size: int, sparse: bool
    ) -> int:
        """Read more into the current batch, or into a new one instead of splitting a small file."""
        room = HEADROOM_BYTES + BATCH_BYTES - self._fill
        position, length = remaining.start, len(remaining)
        if length > room and (position > 0 or length < BATCH_BYTES // 2 or room < BATCH_BYTES // 2):
            self._emit_if_filled()
        batch = self._current()
        start = self._fill
        end = min(start + length, HEADROOM_BYTES + BATCH_BYTES)
        fill(fd, memoryview(batch.buffer)[start:end], position)
        length = end - start
        final = position + length == size
        blank = _blank_bytes(fd, position, position + length) if sparse else 0
        self._add_segment(Segment(*of, start, end, position, position == 0, final, blank=blank))
        return length

    def _add_hole(self, dataset: int, file: int, part: FileStretch, size: int) -> None:
        """Add a hole that replaces the bytes of ``part``."""
        if HEADROOM_BYTES + BATCH_BYTES - self._fill < HOLE_LEAD_BYTES:
            self._emit_if_filled()
        batch = self._current()
        start, end = self._fill, self._fill + HOLE_LEAD_BYTES
        batch.buffer[start:end] = bytes(HOLE_LEAD_BYTES)
        hole, final = part.end - part.start - HOLE_LEAD_BYTES, part.end == size
        lead = Segment(dataset, file, start, end, part.start, part.start == 0, final, hole)
        self._add_segment(lead._replace(blank=HOLE_LEAD_BYTES))

    def _add_segment(self, segment: Segment) -> None:
        batch = self._add(one_segment(segment))
        if segment.final:
            if segment.hole:
                self._emit()
            else:
                self._emit_if_full()
            return
        batch.after = Cursor(
            segment.file, segment.position + segment.end - segment.start + segment.hole
        )
        keep = min(HEADROOM_BYTES, segment.position + segment.end - segment.start)
        before = batch.buffer[segment.end - keep : segment.end]
        self._tail = bytes(HEADROOM_BYTES) if segment.hole else before
        self._emit()

    def _add(self, segments: SegmentRows) -> Batch:
        """Append segments; the next segment follows them and is of another file."""
        batch = self._current()
        batch.parts.append(segments)
        batch.done_bytes += int((segments["end"] - segments["start"] + segments["hole"]).sum())
        self._fill = int(segments["end"][-1])
        batch.after = Cursor(int(segments["file"][-1]) + 1, 0)
        return batch

    def _emit_if_full(self) -> None:
        batch = self._current()
        if self._fill == len(batch.buffer) or batch.count >= SEGMENTS_PER_BATCH_MAX:
            self._emit()

    def _current(self) -> Batch:
        if self._batch is None:
            batch = self._batch = Batch(self._take_buffer())
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
            self._put(batch)


def _blank_bytes(fd: int, start: int, end: int) -> int:
    """Return how many bytes of a range are in holes."""
    return end - start - sum(b - a for a, b in data_ranges(fd, start, end))


def _directory_of(path: bytes) -> bytes:
    """Return the base directory of paths in a dataset, which may also be a single file."""
    real = os.path.realpath(path)
    return real if os.path.isdir(real) else os.path.dirname(real)
