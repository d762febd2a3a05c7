"""Reading candidates into large buffers: many small files at once, or parts of a large one."""

import mmap
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from dedupd_core import native
from dedupd_core.byte_ranges import joined
from dedupd_core.errors import Damaged, DamagedChunk, FileChanged
from dedupd_core.format.ids import HOLE, show_id
from dedupd_core.format.recipe import fingerprint_check
from dedupd_core.format.stub import StubAttribute
from dedupd_core.store.recipe.recipe_reader import HOLE_FINGERPRINT
from dedupd_core.store.recipe.recipe_writer import Growth
from dedupd_core.stub.local_blocks import refuse_tampered
from dedupd_core.stub.transition import LARGE_UNITS, FileIdentity, local_ranges
from dedupd_core.system.file_reader import (
    BATCH_BYTES,
    HOLE_BYTES_MIN,
    SMALL_BYTES_MAX,
    FileReader,
    Stopped,
    fill,
    open_failure,
    open_unnoticed,
    stretches,
)
from dedupd_core.system.files import data_ranges, opened, read_into
from dedupd_core.system.leases import has_writers
from dedupd_core.system.page_cache import BufferPool
from dedupd_core.system.paths import open_beneath, show_path
from dedupd_core.units import MIB
from dedupd_core.volume.volume import Volume
from jobs.busy.busy_files import BusyFile
from jobs.optimize.buffers import Batch, FilesBatch, FileTask, KeptChunk, Segment
from jobs.optimize.partial_plan import Fresh, Keep, plan
from jobs.tree.candidates import SHARED_BELOW, Candidate

BATCH_BYTES_MIN = 2 * MIB
"""In a job that has little memory; more than any file that is read together with others."""

BATCHES_MIN = 4
"""One that is read into, one that is cut, and two whose chunks are compressed."""

SETTLE_NS = 50_000_000
"""A write within one tick of the kernel's clock (4 to 10 ms) of a file's last change would leave
no trace in its times; a file is read only once it is older than several ticks."""

GAP_BYTES_MAX = 128 << 10
"""Between two ranges of a busy file that are read as one: less would make small chunks. It is less
than what the mount tells apart, so nothing is read here that is being written to."""

SECOND_NS = 1_000_000_000

FILES_PER_BATCH_MAX = 1024

OTHER_DOMAIN = "is in the store for another domain"
"""Said of a busy file: only as a whole it comes to the domain that it is in now."""

KEPT_PER_SEGMENT_MAX = 4096
"""Chunks of an old recipe that are noted at once: a bound of memory."""

Work = tuple[Candidate, bool] | native.ingest.FileList | BusyFile
"""A candidate, and whether to compress it; or plain files, or a busy one, which say so
themselves."""


@dataclass(frozen=True, slots=True)
class ReaderLimits:
    """What a reader takes of the machine.

    ``headroom_bytes`` are left free at the front of every buffer for the unfinished chunk of a
    file that goes on in it, and ``batch_bytes`` come after them. ``ahead`` batches are read before
    they are asked for, small files by so many ``threads``. With ``unshared_only`` files are left
    whose blocks snapshots, or copies below, have as well.
    """

    headroom_bytes: int
    batch_bytes: int = BATCH_BYTES
    ahead: int = 2
    threads: int = 1
    unshared_only: bool = True


class BatchReader(FileReader[Batch | FilesBatch]):
    """Reads candidates.

    Small plain files go together, into batches of their own; large files, and stubs, come as they
    are read. ``resume`` says how far a large file was when a run was interrupted. ``is_apart``: of
    a stub whose recipe is of another domain than the files, nothing is kept.
    """

    def __init__(
        self,
        volume: Volume,
        candidates: Iterable[Work],
        pool: BufferPool,
        limits: ReaderLimits,
        resume: Callable[[FileIdentity], Growth | None] = lambda _: None,
        is_apart: Callable[[StubAttribute], bool] = lambda _: False,
    ) -> None:
        super().__init__(pool, limits.ahead)
        self._volume = volume
        self._candidates = candidates
        self._headroom = limits.headroom_bytes
        self._batch_bytes = limits.batch_bytes
        self._threads = limits.threads
        self._resume = resume
        self._is_apart = is_apart
        self._unshared_only = limits.unshared_only
        self._batch: Batch | None = None
        self._fill = 0
        self._small = native.ingest.FileList()
        self._thread.start()

    def _read(self) -> None:
        for work in self._candidates:
            if self._stop:
                raise Stopped
            if isinstance(work, native.ingest.FileList):
                self._read_files(work)
            elif isinstance(work, BusyFile):
                self._read_busy(work)
            else:
                self._read_file(*work)
        self._read_small()
        self._emit()

    def _read_file(self, candidate: Candidate, compress: bool) -> None:
        if candidate.attribute is None:
            one = native.ingest.FileList()
            one.add(candidate.path, candidate.identity, not compress)
            self._read_files(one)
        else:
            self._read_alone(FileTask(candidate, candidate.identity, compress))

    def _read_files(self, files: native.ingest.FileList) -> None:
        """Note small files to be read together, and read the others."""
        at = 0
        while True:
            room = self._batch_bytes - self._small.size_bytes
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
        """Read the files noted in one call; those that are out of the ordinary one by one."""
        files, self._small = self._small, native.ingest.FileList()
        if not len(files):
            return
        self._emit()
        buffer, headroom = self._take_buffer(), self._headroom
        began = time.perf_counter()
        left = files.read(self._volume.data_fd, SETTLE_NS, buffer, headroom, self._threads)
        self._put(FilesBatch(buffer, files, time.perf_counter() - began))
        for file in left:
            self._read_alone(FileTask.plain(*file))

    def _read_alone(self, task: FileTask) -> None:
        candidate = task.candidate
        try:
            fd = open_unnoticed(partial(open_beneath, self._volume.data_fd, candidate.path))
        except OSError as error:
            task.failure = open_failure(error)
            self._add(task, 0, 0, True)
            return
        try:
            self._wait_until_settled(fd)
            status = os.fstat(fd)
            task.identity = FileIdentity.of(status)
            if task.identity != candidate.identity:
                task.failure = "changed since it was found"
            elif has_writers(fd):
                # Asked after the identity was taken: a write through a mapping whose page is
                # dirty already leaves no trace in the times, and only now none can be open.
                task.failure = "in use"
            else:
                task.shared_bytes = native.system.shared_bytes(fd, status.st_size)
                if native.system.has_large_units(fd):
                    task.failure = LARGE_UNITS
                elif task.shared_bytes and self._unshared_only:
                    task.failure = SHARED_BELOW
            if task.failure:
                self._add(task, 0, 0, True)
                return
            # A hole takes no room, and what is in the store already is not read.
            task.freed_bytes = status.st_blocks * 512
            task.need_bytes = min(status.st_size, task.freed_bytes)
            if candidate.attribute is None:
                task.resumed = self._resume(task.identity)
                self._read_content(fd, task, status.st_size)
            else:
                self._read_partial(fd, task, candidate.attribute, status.st_size)
            if FileIdentity.of(os.fstat(fd)) != task.identity:
                task.failure = "changed while it was read"
        except FileChanged as change:
            task.failure = str(change)
            self._add(task, self._fill, self._fill, True)
        except (Damaged, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            task.failure = f"cannot be read: {reason}"
            self._add(task, self._fill, self._fill, True)
        finally:
            os.close(fd)

    @staticmethod
    def _wait_until_settled(fd: int) -> None:
        status = os.fstat(fd)
        # Small inodes of ext4 have whole seconds, of which the last change was in any part.
        coarse_ns = 0 if status.st_ctime_ns % SECOND_NS else SECOND_NS
        age_ns = time.time_ns() - max(status.st_ctime_ns + coarse_ns, status.st_mtime_ns)
        if -coarse_ns <= age_ns < SETTLE_NS:
            time.sleep((SETTLE_NS - age_ns) / 1e9)

    def _read_content(self, fd: int, task: FileTask, size: int) -> None:
        start = 0 if task.resumed is None else task.resumed.length
        # The unfinished chunk before a hole has to fit into it.
        hole_bytes_min = max(HOLE_BYTES_MIN, self._headroom + 1)
        ranges = list(data_ranges(fd, start, size))
        parts = list(stretches(ranges, start, size, hole_bytes_min))
        task.short_hole_bytes = sum(part.end - part.start for part in parts if not part.is_hole)
        task.short_hole_bytes -= sum(last - first for first, last in ranges)
        for part in parts:
            if part.is_hole:
                self._emit()
                batch = Batch(None, zeros=part.end - part.start)
                batch.segments.append(Segment(task, 0, 0, final=part.end == size))
                self._put(batch)
                continue
            at = part.start
            while at < part.end:
                if task.failure:  # there is no room for it
                    self._add(task, self._fill, self._fill, True)
                    return
                at += self._read_segment(fd, task, at, part.end, size)

    def _read_partial(self, fd: int, task: FileTask, attribute: bytes, size: int) -> None:
        """Read the parts of a stub that are not in the store, and note the chunks that are."""
        volume, where = self._volume, show_path(task.candidate.path)
        stub = volume.space.decode(attribute, fd, where)
        refuse_tampered(fd, stub, volume.stub_files, where)
        content = volume.content(stub, where)
        local = local_ranges(fd, size)
        covered = min(stub.covered, size)
        if not local and covered == size:
            task.failure = "already optimized"
        if self._is_apart(stub):
            task.need_bytes = size
            parts = plan((), [(0, size)], 0, size)
        else:
            parts = plan(content.recipe.spans(0, covered), local, covered, size)
        self._read_planned(task, parts, partial(content.read_file, fd, local, covered), size)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def _read_busy(self, file: BusyFile) -> None:
        """Read the ranges of a busy file that the mount has offered. Users may write to it: what
        they change is known to the mount."""
        identity = FileIdentity(file.inode, file.size, 0, 0)
        candidate = Candidate(file.path, identity, file.attribute, file.work_bytes)
        task = FileTask(candidate, identity, file.compresses, is_in_parts=True)
        task.is_certain_in_parts = file.is_certain
        task.need_bytes = task.freed_bytes = file.work_bytes
        try:
            with opened(
                open_unnoticed(partial(open_beneath, self._volume.data_fd, file.path))
            ) as fd:
                self._read_quiet(fd, task, file)
        except (Damaged, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            task.failure = f"cannot be read: {reason}"
        if task.failure:
            self._add(task, self._fill, self._fill, True)

    def _read_quiet(self, fd: int, task: FileTask, file: BusyFile) -> None:
        size, volume, where = file.size, self._volume, show_path(file.path)
        task.shared_bytes = native.system.shared_bytes(fd, size)
        if native.system.has_large_units(fd):
            task.failure = LARGE_UNITS
        elif task.shared_bytes and self._unshared_only:
            task.failure = SHARED_BELOW
        elif (os.fstat(fd).st_ino, os.fstat(fd).st_uid) != (file.inode, file.owner):
            task.failure = "changed since it was found"
        elif file.attribute is None:
            # Short gaps are read as well: a hole is zeros, and any other block stays in the file.
            ranges = list(joined(file.ranges, GAP_BYTES_MAX))
            self._read_planned(task, plan((), ranges, 0, size), partial(_read_all, fd), size)
        else:
            stub = volume.space.decode(file.attribute, fd, where)
            if self._is_apart(stub):
                # What users have written goes to the store with the whole file, once it is calm.
                task.failure = OTHER_DOMAIN
                return
            content, covered = volume.content(stub, where), min(stub.covered, size)
            parts = plan(content.recipe.spans(0, covered), file.ranges, covered, size)
            local = local_ranges(fd, size)
            self._read_planned(task, parts, partial(content.read_file, fd, local, covered), size)

    def _read_planned(
        self,
        task: FileTask,
        parts: Iterable[Keep | Fresh],
        read: Callable[[int, int], bytes | bytearray],
        size: int,
    ) -> None:
        """Read the fresh parts of a plan, and note the chunks that are kept."""
        kept: list[KeptChunk] = []
        for part in parts:
            if isinstance(part, Keep):
                if len(kept) >= KEPT_PER_SEGMENT_MAX:
                    self._add_kept(task, kept, final=False)
                    kept = []
                kept.append(self._kept(part))
                continue
            for start in range(part.start, part.end, self._batch_bytes):
                end = min(start + self._batch_bytes, part.end)
                data = read(start, end)
                self._add_range(task, data, kept, final=end == size, cut=end == part.end)
                kept = []
        if kept or task.failure:
            self._add_kept(task, kept, final=True)

    def _add_range(
        self,
        task: FileTask,
        data: bytes | bytearray,
        kept: Sequence[KeptChunk],
        final: bool,
        cut: bool,
    ) -> None:
        if self._batch is not None and self._fill + len(data) > self._headroom + self._batch_bytes:
            self._emit()
        buffer = self._buffer_for(0)
        start, self._fill = self._fill, self._fill + len(data)
        buffer[start : self._fill] = bytes(data)
        assert self._batch is not None
        self._batch.segments.append(Segment(task, start, self._fill, final, cut, kept))
        if not cut:
            self._emit()  # the next segment needs room in front of it for the unfinished chunk

    def _kept(self, part: Keep) -> KeptChunk:
        if part.chunk == HOLE:
            return KeptChunk(HOLE, part.length, HOLE_FINGERPRINT)
        record = self._volume.chunk_records.describe(part.chunk)
        if record.raw_length != part.length or fingerprint_check(record.fingerprint) != part.check:
            # A new recipe would call right what the old one knows to be wrong.
            raise DamagedChunk(
                f"chunk {show_id(part.chunk)} differs from the chunk in the recipe", part.chunk
            )
        return KeptChunk(part.chunk, part.length, record.fingerprint)

    def _add_kept(self, task: FileTask, kept: Sequence[KeptChunk], final: bool) -> None:
        self._add_range(task, bytearray(), kept, final, cut=True)

    def _read_segment(self, fd: int, task: FileTask, offset: int, end: int, size: int) -> int:
        buffer = self._buffer_for(end - offset)
        start = self._fill
        count = min(end - offset, len(buffer) - start)
        began = time.perf_counter()
        fill(fd, memoryview(buffer)[start : start + count], offset)
        assert self._batch is not None
        self._batch.read_s += time.perf_counter() - began
        if FileIdentity.of(os.fstat(fd)) != task.identity:
            # Asked each time: a checkpoint may be made before the end of the file.
            raise FileChanged("changed while it was read")
        self._fill += count
        self._add(task, start, start + count, offset + count == size)
        return count

    def _buffer_for(self, want: int) -> mmap.mmap:
        """The buffer of the current batch; a new batch where a small file would be split."""
        batch = self._batch
        if batch is not None:
            assert batch.buffer is not None
            room = len(batch.buffer) - self._fill
            fits = want <= room or (
                want > self._batch_bytes // 2 and room >= self._batch_bytes // 2
            )
            if not fits or room == 0 or len(batch.segments) >= FILES_PER_BATCH_MAX:
                self._emit()
        if self._batch is None:
            self._begin()
        assert self._batch is not None and self._batch.buffer is not None
        return self._batch.buffer

    def _begin(self) -> None:
        self._batch = Batch(self._take_buffer())
        self._fill = self._headroom

    def _add(self, task: FileTask, start: int, end: int, final: bool) -> None:
        if self._batch is None:
            self._begin()
            start = end = self._fill
        assert self._batch is not None
        self._batch.segments.append(Segment(task, start, end, final))
        if (final and len(self._batch.segments) >= FILES_PER_BATCH_MAX) or not final:
            self._emit()

    def _emit(self) -> None:
        """Hand the current batch over; a file that goes on starts the next one."""
        if self._batch is not None:
            batch, self._batch = self._batch, None
            self._put(batch)


def _read_all(fd: int, start: int, end: int) -> bytearray:
    """Bytes [start, end) of a plain file; zeros where it has become shorter."""
    data = bytearray(end - start)
    read_into(fd, memoryview(data), start)
    return data


def batches_within(room_bytes: int, threads: int) -> tuple[int, int]:
    """The size of batches, in bytes, and how many there are at a time, for so much memory."""
    batch_bytes = min(max(BATCH_BYTES_MIN, room_bytes // BATCHES_MIN // MIB * MIB), BATCH_BYTES)
    return batch_bytes, min(max(BATCHES_MIN, room_bytes // batch_bytes), 6 + 2 * threads)
