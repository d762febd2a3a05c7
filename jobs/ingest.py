"""The ingest pipeline: batches in, chunks and recipes in the store, files ready to be committed.

Reading (one thread), chunking and fingerprinting (native threads), look-up (here), compression
(a pool) and appending (here) overlap; a fixed set of buffers bounds the memory.
"""

import time
from array import array
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from mmap import mmap

from dedupd import native
from dedupd.format import container as fmt
from dedupd.format.ids import HOLE
from dedupd.format.recipe import DIGEST_BYTES, RecipeRef
from dedupd.policy import Policy
from dedupd.store.recipes import HOLE_FINGERPRINT, RecipeBuilder
from dedupd.store.writer import NewRecord
from dedupd.uncached import BufferPool
from dedupd.volume import Volume
from jobs import checkpoint
from jobs.buffers import Batch, FileTask, Piece
from jobs.checkpoint import Checkpoint
from jobs.writing import Store


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
    records: list[NewRecord]
    compress: bool
    encoded: "Future[tuple[native.Encoded, float]]"


@dataclass(slots=True)
class _InFlight:
    """A batch whose new chunks are not all appended yet."""

    batch: Batch
    parts: list[_Part] = field(default_factory=list)
    finished: list[FileTask] = field(default_factory=list)


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
        self._open_task: FileTask | None = None

    @property
    def code_path(self) -> str:
        """The chunker's code path in use."""
        return self._chunker.path

    def close(self) -> None:
        self._workers.shutdown(wait=True, cancel_futures=True)

    def feed(self, batch: Batch) -> None:
        """Take in the next batch, in the order of reading."""
        self.sums.read_s += batch.read_s
        last = batch.pieces[-1] if batch.pieces else None
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
            or task.identity.size < checkpoint.FILE_BYTES_MIN
            or task.builder is None
        ):
            return None
        return Checkpoint(task.identity, task.builder.growth)

    @property
    def is_in_large_file(self) -> bool:
        """Whether the file that goes on in the next batch is worth a checkpoint."""
        task = self._open_task
        return task is not None and task.identity.size >= checkpoint.FILE_BYTES_MIN

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
            if part.compress:
                self.sums.incompressible_chunks += encoded.codecs.count(fmt.Codec.RAW)
            front.parts.pop(0)

    def _chunk(self, batch: Batch) -> _InFlight:
        """Cut, fingerprint and look up a buffer; start compressing what is new."""
        assert batch.buffer is not None
        state = _InFlight(batch)
        pieces = [p for p in batch.pieces if (p.end > p.start or p.kept) and not p.task.failure]
        view = memoryview(batch.buffer)
        for piece in pieces:
            if piece.task.carry:
                carry, piece.task.carry = piece.task.carry, b""
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
        lead = 2 * self._max_bytes
        assert batch.zeros > lead
        data = task.carry + bytes(lead)
        self._place(state, data, [Piece(task, 0, len(data), final=False)])
        left = len(task.carry) + batch.zeros - lead
        whole = left if piece.final else left // self._max_bytes * self._max_bytes
        if whole:
            self._builder(task).push(HOLE, whole, HOLE_FINGERPRINT)
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
            data, [(p.start, p.end, p.final or p.cut) for p in pieces], self._threads
        )
        self.sums.chunk_s += time.perf_counter() - began
        began = time.perf_counter()
        cuts = _Cuts.of(pieces, found)
        known = self._store.index.lookup(found.fingerprints)
        ids = self._store_new(state, data, pieces, cuts, known)
        self.sums.chunks += len(known)
        at = 0
        for piece, count in zip(pieces, cuts.counts, strict=True):
            task = piece.task
            if (
                count == 1
                and piece.final
                and task.builder is None
                and task.resumed is None
                and not piece.kept
            ):
                self._name_single_chunk(task, cuts, known, ids, at)
            else:
                self._extend_recipe(piece, cuts, known, ids, at, count)
            at += count
            if not piece.final:
                end = cuts.ends[at - 1] if count else piece.start
                task.carry = bytes(memoryview(data)[end : piece.end])
        self.sums.lookup_s += time.perf_counter() - began

    def _name_single_chunk(
        self,
        task: FileTask,
        cuts: "_Cuts",
        known: Sequence[int],
        ids: dict[bytes, int],
        at: int,
    ) -> None:
        """The recipe of a file that is one chunk: the chunk itself, or a hole."""
        fingerprint = cuts.fingerprints[at]
        if cuts.zero[at]:
            length = cuts.ends[at] - cuts.starts[at]
            self.sums.zero_bytes += length
            self._builder(task).push(HOLE, length, HOLE_FINGERPRINT)
        else:
            chunk_id = known[at] or ids[fingerprint]
            task.recipe = RecipeRef(chunk_id, fingerprint[:DIGEST_BYTES], direct=True)

    def _extend_recipe(
        self,
        piece: Piece,
        cuts: "_Cuts",
        known: Sequence[int],
        ids: dict[bytes, int],
        at: int,
        count: int,
    ) -> None:
        """Add a piece's chunks to its file's recipe, after those that it keeps."""
        for kept in piece.kept:
            self._builder(piece.task).push(*kept)
        for i in range(at, at + count):
            fingerprint, length = cuts.fingerprints[i], cuts.ends[i] - cuts.starts[i]
            if cuts.zero[i]:
                chunk_id = HOLE
                self.sums.zero_bytes += length
            else:
                chunk_id = known[i] or ids[fingerprint]
            self._builder(piece.task).push(chunk_id, length, fingerprint)

    def _builder(self, task: FileTask) -> RecipeBuilder:
        if task.builder is None:
            task.builder = (
                RecipeBuilder(self._store.recipes)
                if task.resumed is None
                else RecipeBuilder.resumed(self._store.recipes, task.resumed)
            )
        return task.builder

    def _store_new(
        self,
        state: _InFlight,
        data: mmap | bytes,
        pieces: Sequence[Piece],
        cuts: "_Cuts",
        known: Sequence[int],
    ) -> dict[bytes, int]:
        """Reserve ids for the chunks that no container has, and start encoding them."""
        groups: tuple[list[int], list[int]] = ([], [])
        fresh: set[bytes] = set()
        at = duplicate_bytes = 0
        for piece, count in zip(pieces, cuts.counts, strict=True):
            group = groups[piece.task.compress]
            for i in range(at, at + count):
                if cuts.zero[i]:
                    continue
                if known[i] or cuts.fingerprints[i] in fresh:
                    duplicate_bytes += cuts.ends[i] - cuts.starts[i]
                else:
                    fresh.add(cuts.fingerprints[i])
                    group.append(i)
            at += count
        self.sums.duplicate_bytes += duplicate_bytes
        ids: dict[bytes, int] = {}
        for compress, group in enumerate(groups):
            if not group:
                continue
            starts = array("I", [cuts.starts[i] for i in group])
            lengths = array("I", [cuts.ends[i] - cuts.starts[i] for i in group])
            raw = sum(lengths)
            first = self._store.chunks.reserve(len(group), raw)
            records = [
                NewRecord(cuts.fingerprints[i], length, cuts.hints[i])
                for i, length in zip(group, lengths, strict=True)
            ]
            ids.update((record.fingerprint, first + n) for n, record in enumerate(records))
            self.sums.new_chunks += len(group)
            self.sums.new_raw_bytes += raw
            level = self._policy.compression_level if compress else 0
            encoded = self._workers.submit(self._encode, data, starts, lengths, level)
            state.parts.append(_Part(first, records, bool(level), encoded))
        if ids:
            self._store.index.insert(b"".join(ids), list(ids.values()))
        return ids

    def _encode(
        self, data: mmap | bytes, starts: "array[int]", lengths: "array[int]", level: int
    ) -> tuple[native.Encoded, float]:
        began = time.perf_counter()
        encoded = native.encode(
            data,
            starts,
            lengths,
            level=level,
            saving_min=self._policy.compression_saving_min,
            header_bytes=fmt.RECORD_HEADER_BYTES,
            align_bytes=fmt.ALIGN_BYTES,
        )
        return encoded, time.perf_counter() - began


@dataclass(frozen=True, slots=True)
class _Cuts:
    """The chunks of a buffer, column by column; ``counts`` says how many each piece has.

    ``hints`` are the lengths of the chunks that follow in the same file, or 0.
    """

    starts: list[int]
    ends: list[int]
    hints: list[int]
    zero: bytes
    fingerprints: list[bytes]
    counts: list[int]

    @classmethod
    def of(cls, pieces: Sequence[Piece], found: native.Chunks) -> "_Cuts":
        ends = memoryview(found.ends).cast("I").tolist()
        counts = memoryview(found.counts).cast("I").tolist()
        starts: list[int] = []
        hints: list[int] = []
        at = 0
        for piece, count in zip(pieces, counts, strict=True):
            if count == 1:
                starts.append(piece.start)
                hints.append(0)
            elif count:
                starts.append(piece.start)
                starts += ends[at : at + count - 1]
                hints += [ends[i] - ends[i - 1] for i in range(at + 1, at + count)]
                hints.append(0)
            at += count
        packed, size = found.fingerprints, native.HASH_BYTES
        fingerprints = [packed[i : i + size] for i in range(0, len(packed), size)]
        return cls(starts, ends, hints, found.zero, fingerprints, counts)
