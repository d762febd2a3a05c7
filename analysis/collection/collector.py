"""Collection: reads the data of all datasets once, for all chunkings, into a chunk log."""

import os
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from analysis.collection.chunk_log import Checkpoint, Log, ScanState, Timing, write_part
from analysis.collection.chunkings import DEFAULT, lanes_of
from analysis.collection.compression_trial import CompressedSizes
from analysis.collection.file_batches import HEADROOM_BYTES, Batch, Cursor
from analysis.collection.file_log import logged_files
from analysis.collection.log_lanes import Lane, Selection, Stream, WholeFiles
from analysis.collection.study_reader import Reader
from analysis.collection.tree_walk import Failure, Scan, write_failures
from dedupd_core.system.file_reader import BATCH_BYTES
from dedupd_core.system.page_cache import BufferPool, new_buffer

BUFFERS = 5
"""One is filled while the lanes process the others at their own speed; 8 MiB each."""

ROWS_HELD_MAX = 1_000_000
"""About 45 MB of rows; twice as much while they are written."""

LOOK_AROUND_S = 1.0
"""The interval between checks of the clock and the watcher while no batch is ready."""

CHECKPOINT_S = 30.0
"""The longest work that an interruption loses."""


class Watcher(Protocol):
    """The caller of a collection: shows its progress, and stops it by raising in ``safe_point``."""

    def update(self, *, phase: str, done: int, total: int, files: int) -> None: ...
    def safe_point(self) -> None: ...


class NoWatcher:
    """A watcher that does nothing."""

    def update(self, *, phase: str, done: int, total: int, files: int) -> None:
        pass

    def safe_point(self) -> None:
        pass


def collect(log: Log, left_out: str, watcher: Watcher | None = None, threads: int = 0) -> None:
    """Fill the log from its checkpoint to the end. ``left_out`` is a directory to skip.

    After any interruption, the log has a valid checkpoint, and the same call continues there.
    ``threads`` 0 means one per core.
    """
    watcher = watcher or NoWatcher()
    if log.checkpoint.complete:
        return
    log.begin()
    run = _Collection(log, left_out, watcher, threads or os.cpu_count() or 1)
    try:
        run.run()
    finally:
        run.close()


@dataclass(slots=True)
class _SharedBatch:
    """A batch that some lanes have not processed yet."""

    batch: Batch
    lanes: int


class _Collection:
    """Scan → reader → lanes → rows → parts, with checkpoints in between."""

    def __init__(self, log: Log, left_out: str, watcher: Watcher, threads: int) -> None:
        self._log = log
        self._watcher = watcher
        state = log.checkpoint
        spec = log.spec
        self._streams = _streams(log)
        selection = Selection(spec.sample, spec.salt)
        sizes = CompressedSizes(spec.compression_level) if spec.compression_level else None
        by_name = {stream.name: stream for stream in self._streams}
        lanes = [
            Lane([by_name[name] for name in names], selection, sizes)
            for names in lanes_of(spec.chunkings)
        ]
        self._pool = BufferPool(new_buffer(HEADROOM_BYTES + BATCH_BYTES) for _ in range(BUFFERS))
        self._workers = ThreadPoolExecutor(threads, thread_name_prefix="lane")
        self._queues = _LaneQueues(lanes, self._workers, self._pool)
        self._scan = None if state.scanned else Scan(log, left_out)
        begin = Cursor(state.file, state.position)
        find = self._scan.files if self._scan else partial(logged_files, log)
        self._reader = Reader(spec.datasets, find(begin.file), begin, self._pool)
        self._failures: list[Failure] = []
        self._began_s = time.monotonic() - state.wall_s

    def run(self) -> None:
        saved_s = time.monotonic()
        state = self._log.checkpoint
        cursor, done = Cursor(state.file, state.position), state.done_bytes
        try:
            for batch in self._reader.batches(LOOK_AROUND_S):
                self._watcher.safe_point()
                if batch is not None:
                    self._queues.put(batch)
                    self._failures += batch.failures
                    cursor, done = batch.after, done + batch.done_bytes
                self._tell(done)
                held = sum(stream.rows for stream in self._streams)
                if held >= ROWS_HELD_MAX or time.monotonic() - saved_s > CHECKPOINT_S:
                    self._save(cursor, done, complete=False)
                    saved_s = time.monotonic()
        except BaseException:
            # Stopped or failed: save the work that the lanes have finished.
            self._save(cursor, done, complete=False)
            raise
        self._save(cursor, done, complete=True)

    def close(self) -> None:
        if self._scan is not None:
            self._scan.close()
        self._reader.close()
        self._workers.shutdown(wait=True, cancel_futures=True)

    def _tell(self, done: int) -> None:
        """Report progress. The total is known only after the scan."""
        state = self._log.checkpoint
        if self._scan is not None:
            self._look_at_scan(self._scan)
        self._watcher.update(
            phase="reading" if state.scanned else "finding and reading files",
            done=done,
            total=state.total_bytes if state.scanned else 0,
            files=state.files,
        )

    def _look_at_scan(self, scan: Scan) -> None:
        state = self._log.checkpoint
        # Read this first: after a complete scan, the other values no longer change.
        complete = scan.complete
        progress, failures = scan.take()
        self._failures += failures
        state.files, state.total_bytes = progress.files, progress.size_bytes
        state.scan, state.second_names = progress.state, progress.second_names
        if complete:
            state.scanned, state.scan = True, ScanState()
            self._scan = None

    def _save(self, cursor: Cursor, done: int, *, complete: bool) -> None:
        """Wait until the lanes reach ``cursor``, write their rows, and save a checkpoint."""
        self._queues.wait()
        if self._scan is not None:
            self._look_at_scan(self._scan)
        state = self._log.checkpoint
        number = state.parts + 1
        path = self._log.path
        for stream in self._streams:
            if (rows := stream.take_rows()) is not None:
                write_part(path, ("chunks", f"chunking={stream.name}"), number, rows)
            if stream.whole is not None and (rows := stream.whole.take_rows()) is not None:
                write_part(path, ("whole",), number, rows)
        if self._failures:
            write_failures(path, number, self._failures)
            self._failures = []
        state.parts = number
        state.file, state.position, state.done_bytes = cursor.file, cursor.position, done
        state.wall_s = time.monotonic() - self._began_s
        state.complete = complete
        state.consumed = {
            stream.name: cursor.position - stream.pending
            for stream in self._streams
            if cursor.position
        }
        state.whole = next(s.whole.state() for s in self._streams if s.whole is not None)
        state.timings = {stream.name: stream.timing for stream in self._streams}
        self._log.save()


def _streams(log: Log) -> list[Stream]:
    """Return the chunkings as in the checkpoint; the default, or the first, has whole files."""
    state: Checkpoint = log.checkpoint
    names = log.spec.chunkings
    for_whole = DEFAULT if DEFAULT in names else names[0]
    return [
        Stream(
            name,
            state.position - state.consumed.get(name, state.position),
            state.timings.get(name, Timing()),
            WholeFiles(state.whole) if name == for_whole else None,
        )
        for name in names
    ]


class _LaneQueues:
    """Queues of batches: each lane processes them in order, at its own speed."""

    def __init__(self, lanes: list[Lane], workers: ThreadPoolExecutor, pool: BufferPool) -> None:
        self._lanes = lanes
        self._workers = workers
        self._pool = pool
        self._waiting: list[deque[_SharedBatch]] = [deque() for _ in lanes]
        self._running = [False] * len(lanes)
        self._changed = threading.Condition()
        self._failure: BaseException | None = None

    def put(self, batch: Batch) -> None:
        """Queue a batch for all lanes. Raises the error of a failed lane."""
        item = _SharedBatch(batch, len(self._lanes))
        with self._changed:
            self._raise_failure()
            for number in range(len(self._lanes)):
                self._waiting[number].append(item)
                if not self._running[number]:
                    self._start(number)

    def wait(self) -> None:
        """Wait until every lane has processed all batches. Raises the error of a failed lane."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure or not any(self._running))
            self._raise_failure()

    def _start(self, number: int) -> None:
        self._running[number] = True
        self._workers.submit(self._step, number)

    def _step(self, number: int) -> None:
        """Process one batch of one lane, then queue the lane again, so that lanes take turns."""
        with self._changed:
            item = self._waiting[number].popleft()
        try:
            self._lanes[number].feed(item.batch)
        except BaseException as error:
            with self._changed:
                self._failure = self._failure or error
                self._running[number] = False
                self._pool.close()
                self._changed.notify_all()
            return
        with self._changed:
            item.lanes -= 1
            if item.lanes == 0:
                self._pool.give(item.batch.buffer)
            if self._waiting[number] and self._failure is None:
                self._start(number)
            else:
                self._running[number] = False
            self._changed.notify_all()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
