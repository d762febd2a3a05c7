"""The ingest pipeline: batches in, chunks and recipes in the store, files ready to be committed.

Reading (one thread), chunking and fingerprinting (native threads), look-up (here), compression
(a pool) and appending (here) overlap; a fixed set of buffers bounds the memory.
"""

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from mmap import mmap

from dedupd import native
from dedupd.config.policy import Policy
from dedupd.format import container as fmt
from dedupd.format.ids import HOLE
from dedupd.store.recipe.recipe_reader import HOLE_FINGERPRINT
from dedupd.store.recipe.recipe_writer import RecipeBuilder
from dedupd.store.writer import NewRecords
from dedupd.system.page_cache import BufferPool
from dedupd.volume import unfinished_files
from dedupd.volume.unfinished_files import Checkpoint
from dedupd.volume.volume import Volume
from jobs.optimize.buffers import Batch, FilesBatch, FileTask, Ready, Segment
from jobs.optimize.store_session import StoreSession


@dataclass(slots=True)
class Sums:
    """What went through the pipeline; times are seconds of the stage, overlapping.

    ``incompressible_chunks`` are new ones that were to be compressed, and were not worth it.
    """

    raw_bytes: int = 0
    chunks: int = 0
    new_chunks: int = 0
    new_raw_bytes: int = 0
    stored_bytes: int = 0
    zero_bytes: int = 0
    duplicate_bytes: int = 0
    incompressible_chunks: int = 0
    read_s: float = 0.0
    chunk_s: float = 0.0
    lookup_s: float = 0.0
    compress_s: float = 0.0
    append_s: float = 0.0
    sync_s: float = 0.0
    commit_s: float = 0.0

    def rounded(self) -> dict[str, int | float]:
        """As in the report."""
        return {k: round(v, 3) for k, v in asdict(self).items()}


@dataclass(slots=True)
class _Part:
    """New chunks of a batch that are encoded alike: reserved, on their way to the container."""

    first_id: int
    records: NewRecords
    raw_bytes: int
    compress: bool
    encoded: "Future[tuple[native.codec.Encoded, float]]"


@dataclass(slots=True)
class _InFlight:
    """A batch whose new chunks are not all appended yet."""

    buffer: mmap | None
    parts: list[_Part] = field(default_factory=list)
    finished: Ready = field(default_factory=Ready)


class Ingest:
    """Feeds batches into a store. ``ready`` collects files whose chunks are all appended."""

    def __init__(
        self,
        volume: Volume,
        store: StoreSession,
        policy: Policy,
        pool: BufferPool,
        threads: int,
        in_flight_max: int,
    ) -> None:
        self._store = store
        self._policy = policy
        self._pool = pool
        self._threads = threads
        self._in_flight_max = in_flight_max
        self._chunker = volume.parameters.chunker()
        self._max_bytes = volume.parameters.chunking.max_bytes
        self._workers = ThreadPoolExecutor(threads, thread_name_prefix="compress")
        self._queue: deque[_InFlight] = deque()
        self.sums = Sums()
        self.ready = Ready()
        self._open_task: FileTask | None = None

    @property
    def code_path(self) -> str:
        """The chunker's code path in use."""
        return self._chunker.path

    def close(self) -> None:
        self._workers.shutdown(wait=True, cancel_futures=True)

    def feed(self, batch: Batch | FilesBatch) -> None:
        """Take in the next batch, in the order of reading."""
        self.sums.read_s += batch.read_s
        if isinstance(batch, FilesBatch):
            self._queue.append(self._take_files(batch))
            return
        last = batch.segments[-1] if batch.segments else None
        self._open_task = None if last is None or last.final else last.task
        if batch.zeros:
            self._queue.append(self._zeros(batch))
        else:
            self._queue.append(self._chunk(batch))

    def checkpoint(self) -> Checkpoint | None:
        """Where the very large file is that goes on in the next batch. Nothing may be in flight."""
        assert not self._queue
        task = self._open_task
        if (
            task is None
            or task.failure
            or task.candidate.attribute is not None
            or task.identity.size < unfinished_files.FILE_BYTES_MIN
            or task.builder is None
        ):
            return None
        return Checkpoint(task.identity, task.builder.growth)

    @property
    def is_in_large_file(self) -> bool:
        """Whether the file that goes on in the next batch is worth a checkpoint."""
        task = self._open_task
        return task is not None and task.identity.size >= unfinished_files.FILE_BYTES_MIN

    @property
    def pending_bytes(self) -> int:
        """How much new chunks may take that are on their way, and not appended."""
        return sum(part.raw_bytes for batch in self._queue for part in batch.parts)

    @property
    def is_idle(self) -> bool:
        """Whether all that was fed is appended."""
        return not self._queue

    def drain(self, everything: bool = False) -> None:
        """Append encoded records; waits while too much is in flight. Raises NoSpace.

        After NoSpace the same call may be repeated once there is room again.
        """
        while self._queue:
            front = self._queue[0]
            waiting = everything or len(self._queue) > self._in_flight_max
            if not waiting and not all(part.encoded.done() for part in front.parts):
                return
            self._append(front)
            self._queue.popleft()
            if len(front.finished):
                self._store.note_finished()
            if front.buffer is not None:
                self._pool.give(front.buffer)
            self.ready.take(front.finished)

    def _append(self, front: _InFlight) -> None:
        while front.parts:
            part = front.parts[0]
            encoded, encode_s = part.encoded.result()
            began = time.perf_counter()
            self.sums.stored_bytes += self._store.chunks.append(
                part.first_id, part.records, encoded
            )
            self.sums.append_s += time.perf_counter() - began
            self.sums.compress_s += encode_s
            if part.compress:
                self.sums.incompressible_chunks += encoded.codecs.count(fmt.Codec.RAW)
            front.parts.pop(0)

    def _chunk(self, batch: Batch) -> _InFlight:
        """Cut, fingerprint and look up a buffer; start compressing the new chunks."""
        assert batch.buffer is not None
        state = _InFlight(batch.buffer)
        segments = [p for p in batch.segments if (p.end > p.start or p.kept) and not p.task.failure]
        view = memoryview(batch.buffer)
        for segment in segments:
            if segment.task.carry:
                carry, segment.task.carry = segment.task.carry, b""
                view[segment.start - len(carry) : segment.start] = carry
                segment.start -= len(carry)
                self.sums.raw_bytes -= len(carry)
            self.sums.raw_bytes += segment.end - segment.start
        self._place(state, batch.buffer, segments)
        state.finished.tasks = [p.task for p in batch.segments if p.final]
        return state

    def _zeros(self, batch: Batch) -> _InFlight:
        """A long hole: cut exactly as if its zeros had been read, without reading them.

        Zeros never match the pattern (the parameters see to that). So once a chunk begins inside
        the run, which is at the latest ``max_bytes`` after the run's start, chunks are cut at
        ``max_bytes`` until the run ends.
        """
        segment = batch.segments[0]
        task = segment.task
        state = _InFlight(None)
        state.finished.tasks = [task] if segment.final else []
        if task.failure:
            return state
        lead = 2 * self._max_bytes
        assert batch.zeros > lead
        data = task.carry + bytes(lead)
        self._place(state, data, [Segment(task, 0, len(data), final=False)])
        left = len(task.carry) + batch.zeros - lead
        whole = left if segment.final else left // self._max_bytes * self._max_bytes
        if whole:
            self._builder(task).push(HOLE, whole, HOLE_FINGERPRINT)
            self.sums.chunks += -(-whole // self._max_bytes)
            self.sums.zero_bytes += whole
        task.carry = bytes(left - whole)
        self.sums.raw_bytes += batch.zeros
        return state

    def _take_files(self, batch: FilesBatch) -> _InFlight:
        """As :meth:`_chunk`, for small files that are each in the buffer as a whole."""
        state, files = _InFlight(None if batch.is_part else batch.buffer), batch.files
        self.sums.raw_bytes += files.size_bytes
        began = time.perf_counter()
        found = self._chunker.process_files(batch.buffer, files, self._threads)
        self.sums.chunk_s += time.perf_counter() - began
        began = time.perf_counter()
        ids = self._ids(state, batch.buffer, found, files.as_is)
        for number in files.single(found, ids, state.finished.requests):
            task = FileTask.plain(*files[number])
            self._extend_recipe(task, found.rows(number, ids))
            state.finished.tasks.append(task)
        self.sums.lookup_s += time.perf_counter() - began
        return state

    def _place(self, state: _InFlight, data: mmap | bytes, segments: Sequence[Segment]) -> None:
        """Cut ``segments`` of ``data``, give every chunk an id, and extend the files' recipes."""
        if not segments:
            return
        began = time.perf_counter()
        found = self._chunker.process(
            data, [(p.start, p.end, p.final or p.cut) for p in segments], self._threads
        )
        self.sums.chunk_s += time.perf_counter() - began
        began = time.perf_counter()
        ids = self._ids(state, data, found, bytes(not p.task.compress for p in segments))
        for number, segment in enumerate(segments):
            task, rows = segment.task, found.rows(number, ids)
            for kept in segment.kept:
                self._builder(task).push(*kept)
            self._extend_recipe(task, rows)
            if not segment.final:
                end = segment.start + sum(length for _, length, _ in rows)
                task.carry = bytes(memoryview(data)[end : segment.end])
        self.sums.lookup_s += time.perf_counter() - began

    def _extend_recipe(self, task: FileTask, rows: Sequence[tuple[int, int, bytes]]) -> None:
        for row in rows:
            self._builder(task).push(*row)

    def _builder(self, task: FileTask) -> RecipeBuilder:
        if task.builder is None:
            task.builder = (
                RecipeBuilder(self._store.recipes)
                if task.resumed is None
                else RecipeBuilder.resumed(self._store.recipes, task.resumed)
            )
        return task.builder

    def _ids(
        self, state: _InFlight, data: mmap | bytes, found: native.chunker.Chunks, as_is: bytes
    ) -> bytes:
        """The ids of all chunks; those that no container has are on their way into one."""
        index = self._store.index
        placed = found.place(index.lookup(found.fingerprints), as_is)
        self.sums.chunks += len(found)
        self.sums.duplicate_bytes += placed.duplicate_bytes
        self.sums.zero_bytes += placed.zero_bytes
        first, first_as_is = (
            self._store_new(state, data, new, level)
            for new, level in zip(placed.new, (self._policy.compression_level, 0), strict=True)
        )
        for new, start in zip(placed.new, (first, first_as_is), strict=True):
            if len(new):
                index.insert(new.fingerprints, range(start, start + len(new)))
        return placed.ids(first, first_as_is)

    def _store_new(
        self, state: _InFlight, data: mmap | bytes, new: native.ingest.NewChunks, level: int
    ) -> int:
        """Reserve ids for new chunks, and start encoding them; returns the first id."""
        if not len(new):
            return HOLE
        first = self._store.chunks.reserve(len(new), new.raw_bytes)
        self.sums.new_chunks += len(new)
        self.sums.new_raw_bytes += new.raw_bytes
        encoded = self._workers.submit(self._encode, data, new.starts, new.lengths, level)
        records = NewRecords(new.fingerprints, new.lengths, new.hints)
        state.parts.append(_Part(first, records, new.raw_bytes, bool(level), encoded))
        return first

    def _encode(
        self, data: mmap | bytes, starts: bytes, lengths: bytes, level: int
    ) -> tuple[native.codec.Encoded, float]:
        began = time.perf_counter()
        encoded = native.codec.encode(
            data,
            starts,
            lengths,
            level=level,
            saving_min=self._policy.compression_min_saving,
            header_bytes=fmt.RECORD_HEADER_BYTES,
            align_bytes=fmt.ALIGN_BYTES,
        )
        return encoded, time.perf_counter() - began
