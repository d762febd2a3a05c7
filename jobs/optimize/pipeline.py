"""The ingest pipeline: batches in, chunks and recipes in the store, files ready to be committed.

Reading (one thread), chunking and fingerprinting (native threads), look-up (here), compression
(a pool) and appending (here) overlap; a fixed set of buffers bounds the memory.
"""

import time
from array import array
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from mmap import mmap

from dedupd_core import native
from dedupd_core.config.policy import Policy
from dedupd_core.format import container as fmt
from dedupd_core.format.ids import HOLE
from dedupd_core.store.recipe.recipe_reader import HOLE_FINGERPRINT
from dedupd_core.store.recipe.recipe_writer import RecipeBuilder
from dedupd_core.store.writer import NewRecords
from dedupd_core.system.page_cache import BufferPool
from dedupd_core.volume import unfinished_files
from dedupd_core.volume.unfinished_files import Checkpoint
from dedupd_core.volume.volume import Volume
from jobs.optimize.buffers import (
    Batch,
    CutBatch,
    FilesBatch,
    FileTask,
    Group,
    Part,
    PendingBatch,
    Phase,
    ReadyFiles,
    Segment,
)
from jobs.optimize.judgements import Judgements
from jobs.optimize.optimize_report import Sums
from jobs.optimize.order import Figures
from jobs.optimize.store_session import StoreSession
from jobs.tree.candidates import SAVES_LITTLE
from jobs.tree.file_classes import class_of


class Ingest:
    """Feeds batches into a store. ``ready`` collects files whose chunks are all appended."""

    def __init__(
        self,
        volume: Volume,
        store: StoreSession,
        policy: Policy,
        pool: BufferPool,
        judgements: Judgements,
        threads: int,
        in_flight_max: int,
    ) -> None:
        self._judgements = judgements
        self._block_bytes = volume.block_bytes
        self._inserted = 0
        self.left_files = self.left_bytes = 0
        """Small files that would save too little."""
        self._store = store
        self._policy = policy
        self._pool = pool
        self._threads = threads
        self._in_flight_max = in_flight_max
        self._chunker = volume.parameters.chunker()
        self._followers = store.followers
        self._max_bytes = volume.parameters.chunking.max_bytes
        self._workers = ThreadPoolExecutor(threads, thread_name_prefix="compress")
        self._queue: deque[PendingBatch] = deque()
        self.sums = Sums()
        self.ready = ReadyFiles()
        self._open_task: FileTask | None = None

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

    def new_bytes_of(self, batch: FilesBatch) -> int:
        """How many bytes the chunks of small files have that the store has not: what they would add
        at most. Nothing of them is taken in."""
        files = batch.files
        found = self._chunker.process_files(batch.buffer, files, self._threads, self._followers)
        placed = found.place(self._store.index.lookup(found.fingerprints), files.as_is)
        return sum(new.raw_bytes for new in placed.new)

    def checkpoint(self) -> Checkpoint | None:
        """Where the very large file is that goes on in the next batch. Nothing may be in flight."""
        assert not self._queue
        task = self._open_task
        if (
            task is None
            or task.failure
            or task.keeps_chunks
            or task.identity.size < unfinished_files.FILE_BYTES_MIN
            or (builder := task.ingestion.builder) is None
        ):
            return None
        return Checkpoint(task.identity, builder.growth, self._store.partition.domain)

    @property
    def is_in_large_file(self) -> bool:
        """Whether the file that goes on in the next batch is worth a checkpoint."""
        task = self._open_task
        return task is not None and task.identity.size >= unfinished_files.FILE_BYTES_MIN

    @property
    def pending_bytes(self) -> int:
        """How much new chunks may take that are on their way, and not appended."""
        return sum(batch.pending_bytes for batch in self._queue)

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
            if not waiting and not front.is_encoded:
                return
            if front.cut is not None:
                self._decide(front, front.cut)
                front.cut = None
            self._append(front)
            self._queue.popleft()
            if len(front.finished):
                self._store.note_finished()
            if front.buffer is not None:
                self._pool.give(front.buffer)
            self.ready.take(front.finished)

    def _append(self, front: PendingBatch) -> None:
        while front.parts:
            part = front.parts[0]
            began = time.perf_counter()
            self.sums.stored_bytes += self._store.chunks.append(
                part.first_id, part.records, part.encoded
            )
            self.sums.append_s += time.perf_counter() - began
            front.parts.pop(0)

    # --- on the way in: cut, look up, start to encode ------------------------------------------

    def _chunk(self, batch: Batch) -> PendingBatch:
        """Cut, fingerprint and look up a buffer; start compressing the new chunks."""
        assert batch.buffer is not None
        state = PendingBatch(batch.buffer)
        segments = [p for p in batch.segments if (p.end > p.start or p.kept) and not p.task.failure]
        view = memoryview(batch.buffer)
        for segment in segments:
            ingestion = segment.task.ingestion
            if ingestion.carry:
                carry, ingestion.carry = ingestion.carry, b""
                view[segment.start - len(carry) : segment.start] = carry
                segment.start -= len(carry)
                self.sums.raw_bytes -= len(carry)
            self.sums.raw_bytes += segment.end - segment.start
            if segment.final:
                self.sums.raw_bytes -= segment.task.source.short_hole_bytes
        self._cut(state, batch.buffer, segments)
        state.finished.tasks = [p.task for p in batch.segments if p.final]
        return state

    def _zeros(self, batch: Batch) -> PendingBatch:
        """A long hole: cut exactly as if its zeros had been read, without reading them.

        Zeros never match the pattern (the parameters see to that). So once a chunk begins inside
        the run, which is at the latest ``max_bytes`` after the run's start, chunks are cut at
        ``max_bytes`` until the run ends.
        """
        segment = batch.segments[0]
        task = segment.task
        state = PendingBatch(None)
        state.finished.tasks = [task] if segment.final else []
        if task.failure:
            return state
        lead = 2 * self._max_bytes
        assert batch.zeros > lead
        ingestion = task.ingestion
        data = ingestion.carry + bytes(lead)
        self._cut(state, data, [Segment(task, 0, len(data), final=False)])
        rest = len(ingestion.carry) + batch.zeros - lead
        whole = rest if segment.final else rest // self._max_bytes * self._max_bytes
        if whole:
            state.zeros = whole
            self.sums.chunks += -(-whole // self._max_bytes)
            self.sums.zero_bytes += whole
        ingestion.carry = bytes(rest - whole)
        if segment.final:
            self.sums.raw_bytes -= task.source.short_hole_bytes
        return state

    def _take_files(self, batch: FilesBatch) -> PendingBatch:
        """As :meth:`_chunk`, for small files that are each in the buffer as a whole."""
        state, files = PendingBatch(None if batch.is_part else batch.buffer), batch.files
        self.sums.raw_bytes += files.read_bytes
        began = time.perf_counter()
        found = self._chunker.process_files(batch.buffer, files, self._threads, self._followers)
        self.sums.chunk_s += time.perf_counter() - began
        state.files = files
        self._look_up(state, batch.buffer, found, files.as_is)
        return state

    def _cut(self, state: PendingBatch, data: mmap | bytes, segments: Sequence[Segment]) -> None:
        """Cut ``segments`` of ``data``, and look the chunks up."""
        if not segments:
            return
        began = time.perf_counter()
        ranges = [(p.start, p.end, p.final or p.cut) for p in segments]
        found = self._chunker.process(data, ranges, self._threads, self._followers)
        self.sums.chunk_s += time.perf_counter() - began
        state.segments = segments
        self._look_up(state, data, found, bytes(not p.task.compress for p in segments))
        for number, segment in enumerate(segments):
            if not segment.final:
                end = found.end(number) or segment.start
                segment.task.ingestion.carry = bytes(memoryview(data)[end : segment.end])

    def _look_up(
        self, state: PendingBatch, data: mmap | bytes, found: native.chunker.Chunks, as_is: bytes
    ) -> None:
        """Look chunks up, and start encoding those that no container has."""
        began = time.perf_counter()
        placed = found.place(self._store.index.lookup(found.fingerprints), as_is)
        self.sums.chunks += len(found)
        self.sums.duplicate_bytes += placed.duplicate_bytes
        self.sums.zero_bytes += placed.zero_bytes
        levels = self._policy.compression_level, 0
        groups = [
            Group(new, bool(level), self._encoding(data, new, level))
            for new, level in zip(placed.new, levels, strict=True)
        ]
        state.cut = CutBatch(found, placed, groups, self._inserted)
        self.sums.lookup_s += time.perf_counter() - began

    def _encoding(
        self, data: mmap | bytes, new: native.ingest.NewChunks, level: int
    ) -> "Future[tuple[native.codec.Encoded, float]] | None":
        if not len(new):
            return None
        return self._workers.submit(self._encode, data, new.starts, new.lengths, level)

    def _encode(
        self, data: mmap | bytes, starts: bytes, lengths: bytes, level: int
    ) -> tuple[native.codec.Encoded, float]:
        began = time.perf_counter()
        encoded = native.codec.encode(
            data,
            starts,
            lengths,
            level=level,
            saving_min=fmt.COMPRESSION_SAVING_MIN,
            header_bytes=fmt.RECORD_HEADER_BYTES,
            align_bytes=fmt.ALIGN_BYTES,
        )
        return encoded, time.perf_counter() - began

    # --- once it is encoded: what pays has ids and recipes ---------------------------------------

    def _decide(self, state: PendingBatch, cut: CutBatch) -> None:
        """Judge the files of a batch. Those that pay get recipes, and their new chunks ids. Raises
        NoSpace, and may be tried again."""
        began = time.perf_counter()
        judgement = self._judged(state, cut)
        for group, kept in zip(cut.groups, judgement.kept, strict=True):
            stored = kept.count(1)
            if stored and group.first_id is None:
                new = group.new if stored == len(kept) else group.new.retained(kept)
                group.first_id = self._store.chunks.reserve(stored, new.raw_bytes)
                self._hand_on(state, group, new, None if stored == len(kept) else kept)
        ids = judgement.ids(*(group.first_id or HOLE for group in cut.groups))
        self.sums.duplicate_bytes += judgement.later_bytes
        judgement.note_stored(self._judgements.ledger)
        if state.files is not None:
            self._finish_files(state, state.files, cut.found, ids, judgement)
        else:
            self._finish_segments(state, cut.found, ids, judgement)
        self.sums.lookup_s += time.perf_counter() - began

    def _judged(self, state: PendingBatch, cut: CutBatch) -> native.ingest.Judgement:
        """What becomes of each file, or part of one, once its new chunks are encoded."""
        if cut.inserted == self._inserted:
            later = [bytes(8 * len(group.new)) for group in cut.groups]
        else:
            # Batches before this one have been stored since it was looked up.
            later = [bytes(self._store.index.lookup(g.new.fingerprints)) for g in cut.groups]
        lengths = [
            b"" if g.encoded is None else g.encoded.result()[0].stored_lengths for g in cut.groups
        ]
        if state.files is not None:
            modes = bytes([native.ingest.JUDGE]) * len(state.files)
            freed = state.files.freed_bytes(self._block_bytes)
        else:
            modes = bytes(map(self._mode_of, state.segments))
            freed = array("Q", (p.task.source.freed_bytes for p in state.segments)).tobytes()
        judgements = self._judgements
        return cut.placed.judge(
            (later[0], later[1]),
            (lengths[0], lengths[1]),
            modes,
            freed,
            judgements.recall,
            judgements.saving_min,
            salt=judgements.salt,
        )

    def _hand_on(
        self,
        state: PendingBatch,
        group: Group,
        new: native.ingest.NewChunks,
        kept: bytes | None,
    ) -> None:
        """Have new chunks that have ids appended; ``kept`` says which those of the group are."""
        assert group.encoded is not None and group.first_id is not None
        encoded, encode_s = group.encoded.result()
        self.sums.compress_s += encode_s
        self.sums.new_chunks += len(new)
        self.sums.new_raw_bytes += new.raw_bytes
        if kept is not None:
            encoded = encoded.retained(kept)
        if group.compress:
            self.sums.incompressible_chunks += encoded.codecs.count(fmt.Codec.RAW)
        first = group.first_id
        self._store.index.insert(new.fingerprints, range(first, first + len(new)))
        self._inserted += len(new)
        records = NewRecords(new.fingerprints, new.lengths, new.hints)
        state.parts.append(Part(first, records, encoded, new.raw_bytes))

    def _finish_files(
        self,
        state: PendingBatch,
        files: native.ingest.FileList,
        found: native.chunker.Chunks,
        ids: bytes,
        judgement: native.ingest.Judgement,
    ) -> None:
        judgements = self._judgements
        for number in files.single(found, ids, judgement, state.finished.requests):
            task = FileTask.plain(*files[number])
            self._extend_recipe(task, found.rows(number, ids))
            state.finished.tasks.append(task)
        state.finished.shared_bytes += files.shared_bytes(judgement)
        judgements.classes.add_tally(files.tally(judgement))
        left_files, left_bytes = files.leave(
            found, judgement, judgements.ledger, judgements.saving_min, judgements.is_recall
        )
        self.left_files += left_files
        self.left_bytes += left_bytes

    def _finish_segments(
        self,
        state: PendingBatch,
        found: native.chunker.Chunks,
        ids: bytes,
        judgement: native.ingest.Judgement,
    ) -> None:
        verdicts = judgement.taken, judgement.costs, judgement.unique
        columns = zip(*verdicts, judgement.fresh, judgement.solid, strict=True)
        for number, (segment, row) in enumerate(zip(state.segments, columns, strict=True)):
            taken, cost_bytes, unique, new_bytes, solid_bytes = row
            task, ingestion = segment.task, segment.task.ingestion
            ingestion.cost_bytes += cost_bytes
            ingestion.unique_chunks += unique
            ingestion.new_bytes += new_bytes
            if task.phase is Phase.ADMITTED and (solid_bytes or segment.final):
                task.phase = Phase.STORED if taken else Phase.NOTED
            # The chunks of a file that has changed while it was read are left, whatever it was.
            if not (task.is_only_read or task.failure):
                for kept in segment.kept:
                    self._builder(task).push(*kept)
                self._extend_recipe(task, found.rows(number, ids))
            prefixes = judgement.prefixes(number, found)
            if task.phase is Phase.MEASURED:
                ingestion.measure(prefixes)
            if task.busy is None:
                ingestion.note(prefixes)
            if task.is_only_read:
                self._judgements.note(task.identity, ingestion.take_notes())
        if state.zeros and not state.segments[0].task.is_only_read:
            self._builder(state.segments[0].task).push(HOLE, state.zeros, HOLE_FINGERPRINT)
        for task in state.finished.tasks:
            self._judge_whole(task)

    def _judge_whole(self, task: FileTask) -> None:
        """Decide on a file of which the last part was looked at."""
        if task.failure or task.is_certain:
            return
        judgements, ingestion, freed_bytes = (
            self._judgements,
            task.ingestion,
            task.source.freed_bytes,
        )
        if task.phase is Phase.MEASURED:
            ingestion.cost_bytes = int(ingestion.cost_bytes * ingestion.distinct_share)
        cost_bytes = ingestion.cost_bytes
        pays = judgements.pays(freed_bytes, cost_bytes)
        saved_bytes = freed_bytes - cost_bytes
        is_stored = not task.is_only_read and (pays or saved_bytes > 0)
        read_bytes = min(task.identity.size, freed_bytes)  # a hole is not read
        figures = Figures(1, read_bytes, ingestion.new_bytes, saved_bytes * is_stored)
        judgements.classes.add(class_of(task.candidate.path), figures)
        if is_stored:
            return  # of what is stored already less may do
        if pays:
            judgements.read_again(task.identity, ingestion.new_bytes)
        elif task.busy is None:
            judgements.note(task.identity, ingestion.take_notes())
            judgements.leave(task.identity, freed_bytes, cost_bytes, ingestion.unique_chunks)
        task.failure = SAVES_LITTLE

    def _extend_recipe(self, task: FileTask, rows: Sequence[tuple[int, int, bytes]]) -> None:
        for row in rows:
            self._builder(task).push(*row)

    def _builder(self, task: FileTask) -> RecipeBuilder:
        ingestion = task.ingestion
        if ingestion.builder is None:
            ingestion.builder = (
                RecipeBuilder(self._store.recipes)
                if task.source.resumed is None
                else RecipeBuilder.resumed(self._store.recipes, task.source.resumed)
            )
        return ingestion.builder

    def _mode_of(self, segment: Segment) -> int:
        """How a part of a file is to be judged."""
        task = segment.task
        if task.failure or task.is_only_read:
            return native.ingest.LEAVE
        if task.is_certain or task.phase is Phase.STORED:
            return native.ingest.STORE
        if segment.final:
            return native.ingest.JUDGE
        return native.ingest.STORE if self._judgements.is_recall else native.ingest.BEGIN
