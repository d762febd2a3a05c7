"""Reading candidates into large buffers: many small files at once, or parts of a large one."""

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from dedupd_core import native
from dedupd_core.byte_ranges import joined
from dedupd_core.errors import Damaged, DamagedChunk, FileChanged
from dedupd_core.format.ids import HOLE, show_id
from dedupd_core.format.recipe import fingerprint_check
from dedupd_core.format.stub import StubAttribute
from dedupd_core.store.recipe.recipe_reader import HOLE_FINGERPRINT
from dedupd_core.store.recipe.recipe_writer import RecipeProgress
from dedupd_core.stub.local_blocks import refuse_tampered
from dedupd_core.stub.transition import FileIdentity, local_ranges
from dedupd_core.system.file_reader import (
    BATCH_BYTES,
    HOLE_BYTES_MIN,
    SMALL_BYTES_MAX,
    FileReader,
    ReaderClosed,
    fill,
    open_failure,
    open_unnoticed,
    stretches,
)
from dedupd_core.system.files import data_ranges, opened, read_into
from dedupd_core.system.page_cache import BufferPool
from dedupd_core.system.paths import open_beneath, show_path
from dedupd_core.units import MIB
from dedupd_core.volume.volume import Volume
from jobs.optimize.batch_writer import BatchWriter
from jobs.optimize.buffers import Batch, FilesBatch, FileTask, KeptChunk, Segment, Work
from jobs.optimize.busy_files import BusyFile
from jobs.optimize.examination import examine, note_unread
from jobs.optimize.partial_plan import FreshRange, KeptSpan, plan

BATCH_BYTES_MIN = 2 * MIB
"""In a job that has little memory; more than any file that is read together with others."""

BATCHES_MIN = 4
"""One being read, one being cut, and two whose chunks are compressed."""

GAP_BYTES_MAX = 128 << 10
"""Between two ranges of a busy file that are read as one range: less would make small chunks. The
mount records writes in larger units, so no byte is read here that a user writes."""

FILES_PER_BATCH_MAX = 1024

OTHER_DOMAIN = "is in the store for another domain"
"""For a busy file: its domain changes only when the entire file is stored again."""

KEPT_PER_SEGMENT_MAX = 4096
"""Chunks of an old recipe that are noted at once: a bound of memory."""


@dataclass(frozen=True, slots=True)
class ReaderLimits:
    """The resources of a reader.

    Every buffer has ``headroom_bytes`` at its front, for the unfinished chunk of a file that
    continues in it, and ``batch_bytes`` after them. ``ahead`` batches are read in advance, small
    files on ``threads`` threads. With ``unshared_only``, the reader skips files that share blocks
    with snapshots or copies below.
    """

    headroom_bytes: int
    batch_bytes: int = BATCH_BYTES
    ahead: int = 2
    threads: int = 1
    unshared_only: bool = True


class BatchReader(FileReader[Batch | FilesBatch]):
    """Reads candidates.

    Small plain files share batches of their own; large files and stubs come as they are read.
    ``resume`` returns the progress of a large file in an interrupted run. ``is_apart``: nothing is
    kept of a stub whose recipe is in another domain than the files.
    """

    def __init__(
        self,
        volume: Volume,
        work: Iterable[Work],
        pool: BufferPool,
        limits: ReaderLimits,
        resume: Callable[[FileIdentity], RecipeProgress | None] = lambda _: None,
        is_apart: Callable[[StubAttribute], bool] = lambda _: False,
    ) -> None:
        super().__init__(pool, limits.ahead)
        self._volume = volume
        self._work = work
        self._limits = limits
        self._resume = resume
        self._is_apart = is_apart
        self._small = native.ingest.FileList()
        self._batches = BatchWriter(
            self._take_buffer,
            self._put,
            headroom_bytes=limits.headroom_bytes,
            batch_bytes=limits.batch_bytes,
            files_max=FILES_PER_BATCH_MAX,
        )
        self._thread.start()

    def _read(self) -> None:
        for work in self._work:
            if self._stop:
                raise ReaderClosed
            if isinstance(work, native.ingest.FileList):
                self._read_files(work)
            elif work.busy is not None:
                self._read_busy(work, work.busy)
            elif work.candidate.attribute is None:
                files = native.ingest.FileList()
                files.add(work.candidate.path, work.identity, not work.compress)
                self._read_files(files)
            else:
                self._read_alone(work)
        self._read_small()
        self._batches.hand_over()

    # --- small files, many at once ---------------------------------------------------------------

    def _read_files(self, files: native.ingest.FileList) -> None:
        """Note small files to be read together, and read the others."""
        at = 0
        while True:
            room = self._limits.batch_bytes - self._small.size_bytes
            count = FILES_PER_BATCH_MAX - len(self._small)
            at += self._small.take(files, at, SMALL_BYTES_MAX, room, count)
            if at == len(files):
                return
            task = FileTask.plain(*files[at])
            if task.identity.size > SMALL_BYTES_MAX:
                self._read_alone(task)
                at += 1
            else:
                self._read_small()

    def _read_small(self) -> None:
        """Read the files noted in one call."""
        files, self._small = self._small, native.ingest.FileList()
        if not len(files):
            return
        self._batches.hand_over()
        buffer, limits = self._take_buffer(), self._limits
        began = time.perf_counter()
        unread = files.read(
            self._volume.data_fd,
            buffer,
            limits.headroom_bytes,
            limits.threads,
            limits.unshared_only,
        )
        self._put(FilesBatch(buffer, files, time.perf_counter() - began))
        for file, why in unread:
            task = FileTask.plain(*file)
            note_unread(task, why)
            self._batches.end(task)

    # --- one file --------------------------------------------------------------------------------

    def _read_alone(self, task: FileTask) -> None:
        try:
            fd = open_unnoticed(partial(open_beneath, self._volume.data_fd, task.candidate.path))
        except OSError as error:
            task.failure = open_failure(error)
            self._batches.end(task)
            return
        with opened(fd):
            try:
                examine(fd, task, unshared_only=self._limits.unshared_only)
                if task.failure:
                    self._batches.end(task)
                    return
                if task.candidate.attribute is None:
                    task.source.resumed = self._resume(task.identity)
                    self._read_content(fd, task)
                else:
                    self._read_stub(fd, task, task.candidate.attribute)
                if FileIdentity.of(os.fstat(fd)) != task.identity:
                    task.failure = "changed while it was read"
            except FileChanged as change:
                task.failure = str(change)
                self._batches.end(task)
            except (Damaged, OSError) as error:
                task.failure = _unreadable(error)
                self._batches.end(task)

    def _read_content(self, fd: int, task: FileTask) -> None:
        size, resumed = task.identity.size, task.source.resumed
        start = 0 if resumed is None else resumed.length
        # The unfinished chunk before a hole has to fit into it.
        hole_bytes_min = max(HOLE_BYTES_MIN, self._limits.headroom_bytes + 1)
        ranges = list(data_ranges(fd, start, size))
        parts = list(stretches(ranges, start, size, hole_bytes_min))
        read_bytes = sum(part.end - part.start for part in parts if not part.is_hole)
        task.source.short_hole_bytes = read_bytes - sum(end - first for first, end in ranges)
        for part in parts:
            if part.is_hole:
                self._batches.hand_over()
                batch = Batch(None, zeros=part.end - part.start)
                batch.segments.append(Segment(task, 0, 0, final=part.end == size))
                self._put(batch)
                continue
            at = part.start
            while at < part.end:
                if task.failure:  # there is no room for it
                    self._batches.end(task)
                    return
                at += self._read_segment(fd, task, at, part.end)

    def _read_segment(self, fd: int, task: FileTask, offset: int, end: int) -> int:
        view = self._batches.free(end - offset)
        began = time.perf_counter()
        fill(fd, view, offset)
        read_s = time.perf_counter() - began
        if FileIdentity.of(os.fstat(fd)) != task.identity:
            # Asked each time: a checkpoint may be made before the end of the file.
            raise FileChanged("changed while it was read")
        final = offset + len(view) == task.identity.size
        self._batches.add(task, len(view), read_s, final=final)
        return len(view)

    # --- parts of a file that keeps its other chunks ----------------------------------------------

    def _read_stub(self, fd: int, task: FileTask, attribute: bytes) -> None:
        """Read the parts of a stub that are not in the store, and note the chunks that are."""
        volume, where, size = self._volume, show_path(task.candidate.path), task.identity.size
        stub = volume.space.decode(attribute, fd, where)
        refuse_tampered(fd, stub, volume.stub_files, where)
        content = volume.content(stub, where)
        local = local_ranges(fd, size)
        covered = min(stub.covered, size)
        if not local and covered == size:
            task.failure = "already optimized"
        if self._is_apart(stub):
            task.source.need_bytes = size
            parts = plan((), [(0, size)], 0, size)
        else:
            parts = plan(content.recipe.spans(0, covered), local, covered, size)
        self._read_planned(task, parts, partial(content.read_file, fd, local, covered))
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def _read_busy(self, task: FileTask, file: BusyFile) -> None:
        """Read the ranges of a busy file that the mount has offered. Users may write to it: what
        they change is known to the mount."""
        try:
            with opened(
                open_unnoticed(partial(open_beneath, self._volume.data_fd, file.path))
            ) as fd:
                examine(fd, task, unshared_only=self._limits.unshared_only)
                if not task.failure:
                    self._read_quiet(fd, task, file)
                    return
        except (Damaged, OSError) as error:
            task.failure = _unreadable(error)
        self._batches.end(task)

    def _read_quiet(self, fd: int, task: FileTask, file: BusyFile) -> None:
        volume, where, size = self._volume, show_path(file.path), file.size
        if file.attribute is None:
            # Short gaps are read as well: a hole is zeros, and any other block stays in the file.
            ranges = list(joined(file.ranges, GAP_BYTES_MAX))
            self._read_planned(task, plan((), ranges, 0, size), partial(_read_all, fd))
            return
        stub = volume.space.decode(file.attribute, fd, where)
        if self._is_apart(stub):
            # What users have written goes to the store with the whole file, once it is calm.
            task.failure = OTHER_DOMAIN
            self._batches.end(task)
            return
        content, covered = volume.content(stub, where), min(stub.covered, size)
        parts = plan(content.recipe.spans(0, covered), file.ranges, covered, size)
        local = local_ranges(fd, size)
        self._read_planned(task, parts, partial(content.read_file, fd, local, covered))

    def _read_planned(
        self,
        task: FileTask,
        parts: Iterable[KeptSpan | FreshRange],
        read: Callable[[int, int], bytes | bytearray],
    ) -> None:
        """Read the fresh parts of a plan, and note the chunks that are kept."""
        size, step = task.identity.size, self._limits.batch_bytes
        kept: list[KeptChunk] = []
        is_whole = False
        for part in parts:
            if isinstance(part, KeptSpan):
                if len(kept) >= KEPT_PER_SEGMENT_MAX:
                    self._batches.add_part(task, b"", kept, final=False, cut=True)
                    kept = []
                kept.append(self._kept(part))
                continue
            for start in range(part.start, part.end, step):
                end = min(start + step, part.end)
                data, is_whole = bytes(read(start, end)), end == size
                self._batches.add_part(task, data, kept, final=is_whole, cut=end == part.end)
                kept = []
        if not is_whole:
            self._batches.add_part(task, b"", kept, final=True, cut=True)

    def _kept(self, part: KeptSpan) -> KeptChunk:
        if part.chunk == HOLE:
            return KeptChunk(HOLE, part.length, HOLE_FINGERPRINT)
        record = self._volume.chunk_records.describe(part.chunk)
        if record.raw_length != part.length or fingerprint_check(record.fingerprint) != part.check:
            # A new recipe would call right what the old one knows to be wrong.
            raise DamagedChunk(
                f"chunk {show_id(part.chunk)} differs from the chunk in the recipe", part.chunk
            )
        return KeptChunk(part.chunk, part.length, record.fingerprint)


def _unreadable(error: Damaged | OSError) -> str:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return f"cannot be read: {reason}"


def _read_all(fd: int, start: int, end: int) -> bytearray:
    """Read bytes [start, end) of a plain file, with zeros after its end."""
    data = bytearray(end - start)
    read_into(fd, memoryview(data), start)
    return data


def batches_within(room_bytes: int, threads: int) -> tuple[int, int]:
    """Return the size of batches in bytes, and their number, for this much memory."""
    batch_bytes = min(max(BATCH_BYTES_MIN, room_bytes // BATCHES_MIN // MIB * MIB), BATCH_BYTES)
    return batch_bytes, min(max(BATCHES_MIN, room_bytes // batch_bytes), 6 + 2 * threads)
