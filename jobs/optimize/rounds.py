"""One round of an optimize run: files are read, admitted, ingested, and committed in groups."""

from contextlib import closing
from dataclasses import dataclass
from functools import partial

from dedupd_core.config.room import Room
from dedupd_core.errors import NoSpace
from dedupd_core.native.commit import CommitRequests
from dedupd_core.system.page_cache import BufferPool
from dedupd_core.units import MIB
from dedupd_core.volume.unfinished_files import Checkpoint, Checkpoints
from dedupd_core.volume.volume import Volume
from jobs.frame.run import Cancelled, JobRun
from jobs.optimize.admission import Admission, RestoreAdmission
from jobs.optimize.batch_reader import BatchReader, ReaderLimits
from jobs.optimize.buffers import FileTask, ReadyFiles
from jobs.optimize.group_commit import RESTORE_GROUPS, GroupCommit
from jobs.optimize.judgements import Judgements
from jobs.optimize.optimize_report import OptimizeReport
from jobs.optimize.outcomes import LeftFiles, Outcomes
from jobs.optimize.pipeline import Ingest
from jobs.optimize.plan import OptimizePlan, Turn
from jobs.optimize.store_session import StoreSession

GROUP_BYTES = 256 * MIB
"""New bytes per sync: rare enough for syncs to cost little, often enough for a crash to."""

GROUP_READ_BYTES = 1024 * MIB
"""Bytes read per sync at most, so that duplicates become free space during the job."""

GROUP_FILES_MAX = 4096
"""Files per group: a descriptor each while they are committed."""


@dataclass(frozen=True, slots=True)
class Stages:
    """What the files of a run go through, in this order: the rounds share it."""

    pool: BufferPool
    limits: ReaderLimits
    checkpoints: Checkpoints
    room: Room
    restoring: RestoreAdmission | None
    store: StoreSession
    ingest: Ingest
    groups: GroupCommit
    left_files: LeftFiles
    outcomes: Outcomes


class Round:
    """One way through the files of a plan: those found, those recalled, or those that the mount
    offers. At its end each of them is a stub, or is left."""

    def __init__(
        self,
        volume: Volume,
        run: JobRun,
        plan: OptimizePlan,
        judgements: Judgements,
        stages: Stages,
        report: OptimizeReport,
    ) -> None:
        self._volume = volume
        self._run = run
        self._plan = plan
        self._judgements = judgements
        self._report = report
        self._stages = stages
        self._store, self._ingest, self._groups = stages.store, stages.ingest, stages.groups
        self._admission = Admission(
            stages.room,
            stages.pool,
            stages.ingest,
            self._make_room,
            stages.left_files.add,
            stages.restoring,
        )
        self._ready = ReadyFiles()
        self._requests = CommitRequests()
        self._group_parts = 1 if stages.restoring is None else RESTORE_GROUPS
        self._committed_stored = stages.ingest.sums.stored_bytes
        self._committed_read = stages.ingest.sums.raw_bytes

    def run(self) -> None:
        """Take the files, partition by partition. Raises NoSpace, Cancelled; then those that were
        ready are stubs."""
        try:
            for turn in self._plan.turns():
                self._take_turn(turn)
                self._stages.pool.reopen()
            self._commit_all()
        except NoSpace:
            self._groups.wait()
            self._store.cut_unfinished()
            self._commit_all()
            raise
        except Cancelled:
            self._commit_all()
            raise

    def _take_turn(self, turn: Turn) -> None:
        """Ingest and commit the files of one partition."""
        partition, work = turn
        stages, store, partitioning = self._stages, self._store, self._plan.partitioning
        store.use_partition(partition)
        self._judgements.use_domain(partition.domain)
        self._report.partitions += 1
        resume = partial(stages.checkpoints.of, domain=partition.domain)
        with closing(
            BatchReader(
                self._volume, work, stages.pool, stages.limits, resume, is_apart=store.is_apart
            )
        ) as reader:
            for read in reader:
                for batch in self._admission.through(read):
                    self._ingest.feed(batch)
                    self._drain(everything=False)
                    self._commit_full_group()
                if store.entries >= partitioning.capacity:
                    self._append_rest()
                    store.use_partition(partitioning.move_on(store.partition))
                    self._report.partitions += 1
                elif store.outgrows_table:
                    self._append_rest()
                    store.use_filters()
                self._judgements.save_if_full()
                self._run.update(
                    done=self._ingest.sums.raw_bytes, files=self._report.files_optimized
                )
                self._run.safe_point()
            self._append_rest()

    def _append_rest(self) -> None:
        """Append the data that was read so far, so that the index may change after this call. The
        files become stubs with the next group."""
        self._drain(everything=True)
        self._make_requests()
        self._groups.wait_stored()

    def _make_room(self) -> None:
        """Wait for the files that were read so far: files that become stubs free blocks."""
        if not self._ingest.is_idle or self._has_files:
            self._drain(everything=True)
            self._commit_all()

    @property
    def _has_files(self) -> bool:
        """Whether files wait for their commit, or are being committed."""
        return bool(self._ready or self._requests or self._groups.pending)

    def _drain(self, *, everything: bool) -> None:
        while True:
            try:
                self._ingest.drain(everything)
                break
            except NoSpace:
                # Committing what is ready frees its blocks; then there may be room again.
                self._ready.take(self._ingest.ready)
                if not self._has_files:
                    raise
                self._commit_all()
        self._ready.take(self._ingest.ready)

    # --- groups ----------------------------------------------------------------------------------

    def _commit_full_group(self) -> None:
        ingest = self._ingest
        if (
            ingest.sums.stored_bytes - self._committed_stored >= GROUP_BYTES // self._group_parts
            or ingest.sums.raw_bytes - self._committed_read >= GROUP_READ_BYTES // self._group_parts
            or len(self._ready) + len(self._requests) >= GROUP_FILES_MAX
        ):
            if ingest.is_in_large_file:
                self._drain(everything=True)
                self._commit(ingest.checkpoint())
            else:
                self._commit()

    def _commit(self, checkpoint: Checkpoint | None = None) -> None:
        """Send the files that are ready on their way to become stubs. Raises NoSpace; then they are
        on their way with the next call."""
        self._make_requests()
        self._groups.submit(self._requests, checkpoint)
        self._requests = CommitRequests()
        self._committed_stored = self._ingest.sums.stored_bytes
        self._committed_read = self._ingest.sums.raw_bytes

    def _commit_all(self) -> None:
        """Wait until the files that are ready have become stubs."""
        self._ready.take(self._ingest.ready)
        self._commit()
        self._groups.wait()

    def _make_requests(self) -> None:
        """Finish the recipes of the files that are ready. Raises NoSpace."""
        ready, done = self._ready, 0
        self._requests.take(ready.requests)
        self._report.shared_taken_bytes += ready.shared_bytes
        ready.shared_bytes = 0
        try:
            for task in ready.tasks:
                done += 1
                self._make_request(task)
        finally:
            del ready.tasks[:done]

    def _make_request(self, task: FileTask) -> None:
        builder = task.ingestion.builder
        if task.failure or builder is None:
            self._stages.outcomes.add_left(task)
            return
        self._report.shared_taken_bytes += task.source.shared_bytes
        try:
            recipe = builder.finish()
        except NoSpace:
            task.failure = "no space for its recipe"
            self._stages.outcomes.add_left(task)
            raise
        self._requests.add(*task.request(recipe))
