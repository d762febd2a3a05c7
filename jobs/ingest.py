"""The ingest pipeline: batches in, chunks and recipes in the store, files ready to be committed.

Reading (one thread), chunking and fingerprinting (native threads), look-up (here), compression
(a pool) and appending (here) overlap; a fixed set of buffers bounds the memory.
"""

import time
from array import array
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from mmap import mmap

from dedupd import native
from dedupd.disk import Disk
from dedupd.format import container as fmt
from dedupd.format.container import Kind
from dedupd.format.ids import HOLE
from dedupd.index.memory import MemoryIndex
from dedupd.policy import Policy
from dedupd.store.recipes import HOLE_FINGERPRINT, RecipeBuilder, RecipeWriter
from dedupd.store.writer import ContainerWriter, NewRecord
from dedupd.volume import Volume
from jobs.batches import Batch, BufferPool, FileTask, Piece


@dataclass(slots=True)
class Sums:
    """What went through the pipeline; times are seconds of the stage, overlapping."""

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


@dataclass(slots=True)
class _Part:
    """New chunks of a batch that are encoded alike: reserved, on their way to the container."""

    first_id: int
    records: list[NewRecord]
    encoded: "Future[tuple[native.Encoded, float]]"


@dataclass(slots=True)
class _InFlight:
    """A batch whose new chunks are not all appended yet."""

    batch: Batch
    parts: list[_Part] = field(default_factory=list)
    finished: list[FileTask] = field(default_factory=list)


class Store:
    """The volume's store opened for writing, with its index loaded. Needs the job lock."""

    def __init__(self, volume: Volume, disk: Disk) -> None:
        uuid = volume.parameters.uuid_bytes
        self.chunks = ContainerWriter(volume.directory(Kind.CHUNKS), Kind.CHUNKS, uuid, disk)
        self.streams = ContainerWriter(volume.directory(Kind.STREAMS), Kind.STREAMS, uuid, disk)
        self.index = MemoryIndex()
        self.index.load(self.chunks.recover())
        recipe_index = MemoryIndex()
        recipe_index.load(self.streams.recover())
        self.recipes = RecipeWriter(self.streams, recipe_index, volume.parameters.fingerprint)

    def sync(self) -> None:
        """Make everything appended so far durable: chunks before the recipes that name them."""
        self.chunks.sync()
        self.recipes.flush()
        self.streams.sync()

    def close(self) -> None:
        self.chunks.close()
        self.streams.close()


class Ingest:
    """Feeds batches into a store. ``ready`` collects files whose chunks are all appended."""

    def __init__(
        self,
        volume: Volume,
        store: Store,
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
        self.ready: list[FileTask] = []

    @property
    def code_path(self) -> str:
        """The chunker's code path in use."""
        return self._chunker.path

    def close(self) -> None:
        self._workers.shutdown(wait=True, cancel_futures=True)

    def feed(self, batch: Batch) -> None:
        """Take in the next batch, in the order of reading."""
        self.sums.read_s += batch.read_s
        if batch.zeros:
            self._queue.append(self._zeros(batch))
        else:
            self._queue.append(self._chunk(batch))

    def drain(self, everything: bool = False) -> None:
        """Append what is encoded; waits while too much is in flight. Raises NoSpace.

        After NoSpace the same call may be repeated once there is room again.
        """
        while self._queue:
            front = self._queue[0]
            waiting = everything or len(self._queue) > self._in_flight_max
            if not waiting and not all(part.encoded.done() for part in front.parts):
                return
            self._append(front)
            self._queue.popleft()
            if front.batch.buffer is not None:
                self._pool.give(front.batch.buffer)
            self.ready += front.finished

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
            front.parts.pop(0)

    def _chunk(self, batch: Batch) -> _InFlight:
        """Cut, fingerprint and look up a buffer; start compressing what is new."""
        assert batch.buffer is not None
        state = _InFlight(batch)
        pieces = [p for p in batch.pieces if p.end > p.start and not p.task.failure]
        view = memoryview(batch.buffer)
        for piece in pieces:
            if piece.first:
                piece.task.builder = RecipeBuilder(self._store.recipes)
            elif piece.task.carry:
                carry = piece.task.carry
                view[piece.start - len(carry) : piece.start] = carry
                piece.start -= len(carry)
                self.sums.raw_bytes -= len(carry)
            self.sums.raw_bytes += piece.end - piece.start
        self._place(state, batch.buffer, pieces)
        state.finished = [p.task for p in batch.pieces if p.final]
        return state

    def _zeros(self, batch: Batch) -> _InFlight:
        """A long hole: cut exactly as if its zeros had been read, without reading them.

        Zeros never match the pattern (the parameters see to that). So once a chunk begins inside
        the run, which is at the latest ``max_bytes`` after the run's start, chunks are cut at
        ``max_bytes`` until the run ends.
        """
        piece = batch.pieces[0]
        task = piece.task
        state = _InFlight(batch)
        if task.failure:
            return state
        if piece.first:
            task.builder = RecipeBuilder(self._store.recipes)
        lead = 2 * self._max_bytes
        assert batch.zeros > lead
        data = task.carry + bytes(lead)
        self._place(state, data, [Piece(task, 0, len(data), piece.first, False)])
        left = len(task.carry) + batch.zeros - lead
        whole = left if piece.final else left // self._max_bytes * self._max_bytes
        if whole:
            _builder(task).push(HOLE, whole, HOLE_FINGERPRINT)
            self.sums.chunks += -(-whole // self._max_bytes)
            self.sums.zero_bytes += whole
        task.carry = bytes(left - whole)
        self.sums.raw_bytes += batch.zeros
        if piece.final:
            state.finished.append(task)
        return state

    def _place(self, state: _InFlight, data: mmap | bytes, pieces: Sequence[Piece]) -> None:
        """Cut ``pieces`` of ``data``, give every chunk an id, and extend the files' recipes."""
        if not pieces:
            return
        began = time.perf_counter()
        found = self._chunker.process(
            data, [(p.start, p.end, p.final) for p in pieces], self._threads
        )
        self.sums.chunk_s += time.perf_counter() - began
        began = time.perf_counter()
        fingerprints = found.fingerprints
        chunks = _chunks_of(pieces, found)
        known = self._store.index.lookup(fingerprints)
        ids = self._store_new(state, data, chunks, known)
        sums = self.sums
        sums.chunks += len(chunks)
        for chunk, chunk_id in zip(chunks, known, strict=True):
            length = chunk.end - chunk.start
            if chunk.zero:
                chunk_id = HOLE
                sums.zero_bytes += length
            elif chunk_id == 0:
                chunk_id = ids[chunk.fingerprint]
            _builder(chunk.task).push(chunk_id, length, chunk.fingerprint)
        for piece in pieces:
            if not piece.final:
                piece.task.carry = bytes(memoryview(data)[_end_of(piece, found, pieces) : piece.end])
        sums.lookup_s += time.perf_counter() - began

    def _store_new(
        self, state: _InFlight, data: mmap | bytes, chunks: Sequence["_Chunk"], known: Sequence[int]
    ) -> dict[bytes, int]:
        """Reserve ids for the chunks that no container has, and start encoding them."""
        groups: dict[bool, list[_Chunk]] = {}
        fresh: set[bytes] = set()
        for chunk, chunk_id in zip(chunks, known, strict=True):
            if chunk_id == 0 and not chunk.zero and chunk.fingerprint not in fresh:
                fresh.add(chunk.fingerprint)
                groups.setdefault(chunk.task.compress, []).append(chunk)
            elif chunk_id != 0 or not chunk.zero:
                self.sums.duplicate_bytes += chunk.end - chunk.start
        ids: dict[bytes, int] = {}
        for compress, group in groups.items():
            raw = sum(chunk.end - chunk.start for chunk in group)
            first = self._store.chunks.reserve(len(group), raw)
            for at, chunk in enumerate(group):
                ids[chunk.fingerprint] = first + at
            self.sums.new_chunks += len(group)
            self.sums.new_raw_bytes += raw
            records = [NewRecord(c.fingerprint, c.end - c.start, c.hint) for c in group]
            level = self._policy.compression_level if compress else 0
            state.parts.append(
                _Part(first, records, self._workers.submit(self._encode, data, group, level))
            )
        if ids:
            self._store.index.insert(b"".join(ids), list(ids.values()))
        return ids

    def _encode(
        self, data: mmap | bytes, group: Sequence["_Chunk"], level: int
    ) -> tuple[native.Encoded, float]:
        began = time.perf_counter()
        encoded = native.encode(
            data,
            array("I", (chunk.start for chunk in group)),
            array("I", (chunk.end - chunk.start for chunk in group)),
            level=level,
            saving_min=self._policy.compression_saving_min,
            header_bytes=fmt.RECORD_HEADER_BYTES,
            align_bytes=fmt.ALIGN_BYTES,
        )
        return encoded, time.perf_counter() - began


@dataclass(frozen=True, slots=True)
class _Chunk:
    """One chunk of a buffer. ``hint`` is the length of the next one in the same file, or 0."""

    task: FileTask
    start: int
    end: int
    hint: int
    zero: bool
    fingerprint: bytes


def _chunks_of(pieces: Sequence[Piece], found: native.Chunks) -> list[_Chunk]:
    ends = memoryview(found.ends).cast("I").tolist()
    counts = memoryview(found.counts).cast("I")
    fingerprints, zero, size = found.fingerprints, found.zero, native.HASH_BYTES
    chunks: list[_Chunk] = []
    at = 0
    for piece, count in zip(pieces, counts, strict=True):
        start = piece.start
        for i in range(at, at + count):
            hint = ends[i + 1] - ends[i] if i + 1 < at + count else 0
            chunks.append(
                _Chunk(
                    piece.task,
                    start,
                    ends[i],
                    hint,
                    zero[i] == 1,
                    fingerprints[i * size : (i + 1) * size],
                )
            )
            start = ends[i]
        at += count
    return chunks


def _end_of(piece: Piece, found: native.Chunks, pieces: Sequence[Piece]) -> int:
    """Where the last chunk of an unfinished piece ends: always the last piece of its batch."""
    assert piece is pieces[-1]
    counts = memoryview(found.counts).cast("I")
    return memoryview(found.ends).cast("I")[-1] if counts[-1] else piece.start


def _builder(task: FileTask) -> RecipeBuilder:
    assert isinstance(task.builder, RecipeBuilder)
    return task.builder
