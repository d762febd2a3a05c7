"""Reading candidates into large buffers: many small files at once, or one large file in pieces."""

import errno
import mmap
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from dedupd import native
from dedupd.errors import Damaged, DamagedChunk, FileChanged
from dedupd.format.ids import HOLE, show_id
from dedupd.format.recipe import fingerprint_check
from dedupd.format.stub import decode_stub
from dedupd.store.recipe.recipe_reader import HOLE_FINGERPRINT
from dedupd.store.recipe.recipe_writer import Growth
from dedupd.stub.content import read_stub
from dedupd.stub.transition import FileIdentity, local_ranges
from dedupd.system.files import data_ranges
from dedupd.system.leases import has_writers
from dedupd.system.page_cache import BufferPool, read_uncached
from dedupd.system.paths import open_beneath, show_path
from dedupd.units import MIB
from dedupd.volume.volume import Volume
from jobs.optimize.buffers import Batch, FilesBatch, FileTask, KeptChunk, Piece
from jobs.optimize.partial_plan import Keep, plan
from jobs.tree.candidates import Candidate

BATCH_BYTES = 8 * MIB
"""Large enough that Python's cost per batch vanishes, small enough for many in flight."""

BATCH_BYTES_MIN = 2 * MIB
"""In a job that has little memory; more than any file that is read together with others."""

ZERO_RUN_BYTES_MIN = 1 * MIB
"""Shorter holes are read as zeros: cheaper than a batch of their own."""

SETTLE_NS = 50_000_000
"""A write within one tick of the kernel's clock (4 to 10 ms) of a file's last change would leave
no trace in its times; a file is read only once it is older than several ticks."""

SECOND_NS = 1_000_000_000

FILES_PER_BATCH_MAX = 1024

KEPT_PER_PIECE_MAX = 4096
"""Chunks of an old recipe that are noted at once: a bound of memory."""

SMALL_BYTES_MAX = 1 * MIB
"""Up to this a file is read as a whole, many of them in one native call."""


Work = tuple[Candidate, bool] | native.ingest.FileList
"""A candidate, and whether to compress it; or plain files, which say so themselves."""


class BatchReader:
    """Reads candidates in a thread of its own, ahead of whoever iterates over the batches.

    Small plain files go together, into batches of their own; what is large, or out of the ordinary,
    comes as it is read.

    ``headroom_bytes`` are left free at the front of every buffer for the unfinished chunk of a
    file that goes on in it, and ``batch_bytes`` come behind them; ``resume`` says how far a large
    file was when a run was interrupted.
    """

    def __init__(
        self,
        volume: Volume,
        candidates: Iterable[Work],
        pool: BufferPool,
        headroom_bytes: int,
        resume: Callable[[FileIdentity], Growth | None] = lambda _: None,
        ahead: int = 2,
        batch_bytes: int = BATCH_BYTES,
        threads: int = 1,
    ) -> None:
        self._volume = volume
        self._candidates = candidates
        self._pool = pool
        self._headroom = headroom_bytes
        self._batch_bytes = batch_bytes
        self._resume = resume
        self._threads = threads
        self._out: queue.Queue[Batch | FilesBatch | BaseException | None] = queue.Queue(ahead)
        self._stop = False
        self._batch: Batch | None = None
        self._fill = 0
        self._small = native.ingest.FileList()
        self._thread = threading.Thread(target=self._run, name="reader", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Batch | FilesBatch]:
        while (item := self._out.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item

    def close(self) -> None:
        """Stop reading; safe at any time."""
        self._stop = True
        self._pool.close()
        while self._thread.is_alive():
            try:
                self._out.get(timeout=0.05)
            except queue.Empty:
                continue
        self._thread.join()

    def _run(self) -> None:
        try:
            for work in self._candidates:
                if self._stop:
                    return
                if isinstance(work, native.ingest.FileList):
                    self._read_files(work)
                else:
                    self._read_file(*work)
            self._read_small()
            self._emit()
            self._out.put(None)
        except _Stopped:
            return
        except BaseException as error:
            self._out.put(error)

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
            fd = self._open(candidate.path)
        except OSError as error:
            task.failure = _open_failure(error)
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
            if task.failure:
                self._add(task, 0, 0, True)
                return
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

    def _open(self, path: bytes) -> int:
        flags = os.O_RDONLY | os.O_NONBLOCK
        try:
            return open_beneath(self._volume.data_fd, path, flags | os.O_NOATIME)
        except PermissionError:
            # Only the owner may leave the access time alone.
            return open_beneath(self._volume.data_fd, path, flags)

    @staticmethod
    def _wait_until_settled(fd: int) -> None:
        status = os.fstat(fd)
        # Small inodes of ext4 have whole seconds, of which the last change was in any part.
        coarse_ns = 0 if status.st_ctime_ns % SECOND_NS else SECOND_NS
        age_ns = time.time_ns() - max(status.st_ctime_ns + coarse_ns, status.st_mtime_ns)
        if -coarse_ns <= age_ns < SETTLE_NS:
            time.sleep((SETTLE_NS - age_ns) / 1e9)

    def _read_content(self, fd: int, task: FileTask, size: int) -> None:
        at = 0 if task.resumed is None else task.resumed.length
        for begin, stop in [*self._ranges(fd, at, size), (size, size)]:
            if begin - at >= ZERO_RUN_BYTES_MIN and begin - at > self._headroom:
                self._emit()
                final = begin == size
                batch = Batch(None, zeros=begin - at)
                batch.pieces.append(Piece(task, 0, 0, final))
                self._put(batch)
                if final:
                    return
            else:
                begin = at
            while begin < stop:
                count = self._read_piece(fd, task, begin, min(stop, size), size)
                begin += count
            at = begin

    @staticmethod
    def _ranges(fd: int, start: int, size: int) -> Iterator[tuple[int, int]]:
        """Data ranges, those with short holes between them joined."""
        pending: tuple[int, int] | None = None
        for begin, stop in data_ranges(fd, start, size):
            if pending is not None and begin - pending[1] < ZERO_RUN_BYTES_MIN:
                pending = pending[0], stop
                continue
            if pending is not None:
                yield pending
            pending = begin, stop
        if pending is not None:
            yield pending if size - pending[1] >= ZERO_RUN_BYTES_MIN else (pending[0], size)

    def _read_partial(self, fd: int, task: FileTask, attribute: bytes, size: int) -> None:
        """Read what is not in the store of a stub, and note what is."""
        volume, where = self._volume, show_path(task.candidate.path)
        stub = decode_stub(attribute, volume.space.volume_id, where)
        content = volume.content(stub, where)
        local = local_ranges(fd, size)
        covered = min(stub.covered, size)
        if not local and covered == size:
            task.failure = "already optimized"
        kept: list[KeptChunk] = []
        for part in plan(content.recipe.spans(0, covered), local, covered, size):
            if isinstance(part, Keep):
                kept.append(self._kept(part))
                if len(kept) >= KEPT_PER_PIECE_MAX:
                    self._add_kept(task, kept, final=False)
                    kept = []
                continue
            for start in range(part.start, part.end, self._batch_bytes):
                end = min(start + self._batch_bytes, part.end)
                data = read_stub(fd, local, covered, content, start, end)
                self._add_range(task, data, kept, final=end == size, cut=end == part.end)
                kept = []
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        if kept or task.failure:
            self._add_kept(task, kept, final=True)

    def _add_range(
        self, task: FileTask, data: bytearray, kept: Sequence[KeptChunk], final: bool, cut: bool
    ) -> None:
        if self._batch is not None and self._fill + len(data) > self._headroom + self._batch_bytes:
            self._emit()
        buffer = self._buffer_for(0)
        start, self._fill = self._fill, self._fill + len(data)
        buffer[start : self._fill] = bytes(data)
        assert self._batch is not None
        self._batch.pieces.append(Piece(task, start, self._fill, final, cut, kept))
        if not cut:
            self._emit()  # what follows needs room in front of it for the unfinished chunk

    def _kept(self, part: Keep) -> KeptChunk:
        if part.chunk == HOLE:
            return KeptChunk(HOLE, part.length, HOLE_FINGERPRINT)
        record = self._volume.chunk_records.describe(part.chunk)
        if record.raw_length != part.length or fingerprint_check(record.fingerprint) != part.check:
            # A new recipe would call right what the old one knows to be wrong.
            raise DamagedChunk(
                f"chunk {show_id(part.chunk)} is not the one that the recipe means", part.chunk
            )
        return KeptChunk(part.chunk, part.length, record.fingerprint)

    def _add_kept(self, task: FileTask, kept: Sequence[KeptChunk], final: bool) -> None:
        self._add_range(task, bytearray(), kept, final, cut=True)

    def _read_piece(self, fd: int, task: FileTask, offset: int, stop: int, size: int) -> int:
        buffer = self._buffer_for(stop - offset)
        start = self._fill
        want = min(stop - offset, len(buffer) - start)
        began = time.perf_counter()
        count = read_uncached(fd, memoryview(buffer)[start : start + want], offset)
        assert self._batch is not None
        self._batch.read_s += time.perf_counter() - began
        if count < want:
            raise FileChanged("shrank while it was read")
        if FileIdentity.of(os.fstat(fd)) != task.identity:
            # Asked each time: a checkpoint may be made of what was read before the end.
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
            if not fits or room == 0 or len(batch.pieces) >= FILES_PER_BATCH_MAX:
                self._emit()
        if self._batch is None:
            self._begin()
        assert self._batch is not None and self._batch.buffer is not None
        return self._batch.buffer

    def _begin(self) -> None:
        self._batch = Batch(self._take_buffer())
        self._fill = self._headroom

    def _take_buffer(self) -> mmap.mmap:
        buffer = self._pool.take()
        if buffer is None or self._stop:
            raise _Stopped
        return buffer

    def _add(self, task: FileTask, start: int, end: int, final: bool) -> None:
        if self._batch is None:
            self._begin()
            start = end = self._fill
        assert self._batch is not None
        self._batch.pieces.append(Piece(task, start, end, final))
        if (final and len(self._batch.pieces) >= FILES_PER_BATCH_MAX) or not final:
            self._emit()

    def _emit(self) -> None:
        """Hand the current batch over. A file that goes on starts the next one."""
        if self._batch is not None:
            batch, self._batch = self._batch, None
            self._put(batch)

    def _put(self, batch: Batch | FilesBatch) -> None:
        while not self._stop:
            try:
                self._out.put(batch, timeout=0.2)
                return
            except queue.Full:
                continue
        raise _Stopped


class _Stopped(Exception):
    """The reader was closed."""


def _open_failure(error: OSError) -> str:
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
        return "moved or removed meanwhile"
    return f"cannot be opened: {error.strerror}"
