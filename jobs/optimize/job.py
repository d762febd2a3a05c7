"""The optimize job: candidates of the policy become stubs."""

from contextlib import closing
from functools import partial

from dedupd_core.config.memory_budget import OptimizeShares, optimize_shares
from dedupd_core.config.policy import Policy, RestoreMode, SharedExtents
from dedupd_core.errors import Damaged, DedupdError, NoSpace
from dedupd_core.format.domain import PartitionKey
from dedupd_core.system.files import free_space
from dedupd_core.system.page_cache import BufferPool, new_buffer
from dedupd_core.system.paths import explain
from dedupd_core.system.processes import cores
from dedupd_core.units import MIB
from dedupd_core.volume.commit import Outcome, VolumeCommitter, settle_interrupted
from dedupd_core.volume.commit_requests import CommitRequests
from dedupd_core.volume.enabling.probe import require_suitable
from dedupd_core.volume.restore import require_room, restore_file
from dedupd_core.volume.unfinished_files import Checkpoint, Checkpoints
from dedupd_core.volume.volume import Volume
from jobs.frame.report import Job
from jobs.frame.run import Cancelled, JobRun
from jobs.optimize.admission import Admission, Restoring
from jobs.optimize.buffers import FileTask, Ready
from jobs.optimize.file_reader import BatchReader, ReaderLimits, batches_within
from jobs.optimize.group_commit import RESTORE_GROUPS, GroupCommit, GroupResult
from jobs.optimize.interpreter import let_objects_stream
from jobs.optimize.judging import Judging
from jobs.optimize.left_files import LeftFiles
from jobs.optimize.partitioning import Partitioning
from jobs.optimize.pipeline import Ingest
from jobs.optimize.report import OptimizeReport
from jobs.optimize.store_session import StoreSession
from jobs.optimize.supply import Supply
from jobs.tree.candidates import SHARED_BELOW

__all__ = ["Optimize", "OptimizeReport"]

GROUP_BYTES = 256 * MIB
"""New bytes per sync: rare enough for syncs to cost little, often enough for a crash to."""

GROUP_READ_BYTES = 1024 * MIB
"""Bytes read per sync at most, so that duplicates turn into free space as the job goes on."""

GROUP_FILES_MAX = 4096
"""Files per group: a descriptor each while they are committed."""


class Optimize(Job[OptimizeReport]):
    """One run over one volume. Needs the volume's job lock, or the lock of those that append."""

    def __init__(self, volume: Volume, run: JobRun, below: bytes = b"") -> None:
        super().__init__(volume, run, OptimizeReport())
        self._policy: Policy = volume.policy()
        self._threads = min(self._policy.cores or cores(), 64)
        self._committer = VolumeCommitter(volume, self._threads)
        self._checkpoints = Checkpoints(volume)
        self._ready = Ready()
        self._requests = CommitRequests()
        self._grouped_bytes = 0
        self._grouped_read = 0
        self._partitioning = Partitioning(volume, self._policy)
        self._room = volume.store_room()
        self._judging = Judging(volume, self._policy)
        self._supply = Supply(
            *(volume, self._policy, below, run, self._judging, self._partitioning, self._report),
            self._shares(0).candidates_bytes,
        )
        self._busy = self._supply.busy
        self._restoring: Restoring | None = None
        if self._policy.restore_mode is RestoreMode.ON:
            self._restoring = Restoring(volume, self._judging, self._busy.ask_for)
        self._left = LeftFiles(self._report.files_left, run.findings)
        self._report.free_bytes_before = free_space(volume.data_fd).free_bytes

    def run(self) -> OptimizeReport:
        """Optimize everything the policy asks for.

        Raises UnsuitableFileSystem, NoSpace, Cancelled, Damaged.
        """
        require_suitable(self._volume)  # which the mount, if there is one, has not done of late
        if self._restoring is None:
            return self._run_whole()
        with self._committer.awaited(lambda: self._report.freed_bytes):
            return self._run_whole()

    def _run_whole(self) -> OptimizeReport:
        self._committer.let_go()
        has_work = self._supply.count()
        let_objects_stream()
        if not has_work:
            return self.report()
        self._run.update(phase="loading the index")
        partitions = self._partitioning.plan()
        store = StoreSession(self._volume, self._policy.index, partitions[0], self._run.safe_point)
        try:
            self._settle()
            self._make_plain()
            self._optimize(store, partitions)
            store.save_index()
        except NoSpace:
            self._cut_back(store)
            raise
        finally:
            store.close()
        return self.report()

    def recorded(self) -> OptimizeReport:
        try:
            return super().recorded()
        finally:
            self._left.save(self._volume, self._run.started_s)

    def report(self) -> OptimizeReport:
        report = self._report
        self._busy.close()
        report.files_skipped = self._supply.skipped.files
        report.bytes_skipped = self._supply.skipped.size_bytes
        report.free_bytes_after = free_space(self._volume.data_fd).free_bytes
        return super().report()

    def _shares(self, index_bytes: int) -> OptimizeShares:
        return optimize_shares(self._policy.memory_bytes, index_bytes)

    def _settle(self) -> None:
        """Finish what an interrupted job left half done."""
        for path in self._supply.unsettled:
            self._run.safe_point()
            try:
                settle_interrupted(self._volume, path)
            except (DedupdError, OSError) as error:
                self._run.findings.add_error(path, error)

    def _make_plain(self) -> None:
        """Turn stubs that are in use, and mostly their own blocks by now, into plain files."""
        for path in self._supply.mostly_local:
            self._run.safe_point()
            try:
                require_room(self._volume, path, self._run.safe_point)
                restored = restore_file(self._volume, path, self._run.safe_point)
                self._report.files_made_plain += restored.was_stub
                self._report.filled_bytes += restored.filled_bytes
            except Cancelled:
                raise
            except (DedupdError, OSError) as error:
                self._run.findings.add_error(path, error)

    def _cut_back(self, store: StoreSession) -> None:
        """Give the space back that this run has taken and that no file needs."""
        self._checkpoints.clear()
        try:
            self._report.cut_bytes = store.cut_back()
        except (Damaged, OSError) as error:
            self._run.findings.add(
                f"discarded data stays in the store until the next gc: {explain(error)}"
            )

    def _optimize(self, store: StoreSession, partitions: list[PartitionKey]) -> None:
        self._judging.begin()
        headroom = self._volume.parameters.chunking.max_bytes
        shares = self._shares(self._partitioning.index_bytes)
        batch_bytes, buffers = batches_within(shares.buffers_bytes, self._threads)
        pool = BufferPool(new_buffer(headroom + batch_bytes) for _ in range(buffers))
        limits = ReaderLimits(
            headroom,
            batch_bytes,
            threads=min(self._threads, 2),
            unshared_only=self._policy.shared_extents is SharedExtents.SKIP,
        )
        self._checkpoints.load()
        ingest = Ingest(
            self._volume,
            store,
            self._policy,
            pool,
            self._judging,
            self._threads,
            in_flight_max=max(1, buffers - 3),
        )
        groups = GroupCommit(store, self._committer, partial(self._account, ingest))
        self._report.code_path = self._volume.parameters.chunker().path
        try:
            self._run.update(phase="optimizing")
            self._take_round(partitions, ingest, groups, store, pool, limits)
            if self._judging.start_recall():
                self._take_round(partitions, ingest, groups, store, pool, limits)
            self._judging.save(is_complete=True)
            self._checkpoints.clear()
            while self._busy.take_turn():
                self._take_round(partitions, ingest, groups, store, pool, limits)
            self._judging.end()
        except NoSpace:
            groups.wait()
            store.cut_unfinished()
            self._commit_all(groups, ingest)
            raise
        except Cancelled:
            self._commit_all(groups, ingest)
            self._judging.end()
            raise
        finally:
            ingest.close()
            groups.close()
            self._report.sums = ingest.sums.rounded()
            self._report.recipe_bytes = store.streams.appended_bytes
            self._report.index_entries = len(store.index)
            self._report.index = store.counters()
            self._report.count_left(ingest.left_files, self._supply.skipped)

    def _take_round(
        self,
        partitions: list[PartitionKey],
        ingest: Ingest,
        groups: GroupCommit,
        store: StoreSession,
        pool: BufferPool,
        limits: ReaderLimits,
    ) -> None:
        """Ingest and commit what was found, or what was recalled, partition by partition."""
        for partition, found in self._supply.turns(partitions):
            store.use_partition(partition)
            self._judging.use_domain(partition.domain)
            of = partial(self._checkpoints.of, domain=partition.domain)
            where = self._volume, found, pool, limits, of, store.is_apart
            with closing(BatchReader(*where)) as reader:
                self._take_in(reader, ingest, groups, store, pool)
            pool.reopen()
        self._commit_all(groups, ingest)

    def _take_in(
        self,
        reader: BatchReader,
        ingest: Ingest,
        groups: GroupCommit,
        store: StoreSession,
        pool: BufferPool,
    ) -> None:
        """Ingest and commit everything that ``reader`` reads: the files of one partition."""
        self._report.partitions += 1
        make_room = partial(self._make_room, groups, ingest)
        admission = Admission(self._room, pool, ingest, make_room, self._left.add, self._restoring)
        for read in reader:
            for batch in admission.through(read):
                ingest.feed(batch)
                self._drain(groups, ingest, everything=False)
                self._maybe_commit(groups, ingest)
            if store.entries >= self._partitioning.capacity:
                self._append_rest(groups, ingest)
                store.use_partition(self._partitioning.move_on(store.partition))
                self._report.partitions += 1
            elif store.outgrows_table:
                self._append_rest(groups, ingest)
                store.use_filters()
            self._judging.save_if_full()
            self._run.update(done=ingest.sums.raw_bytes, files=self._report.files_optimized)
            self._run.safe_point()
        self._append_rest(groups, ingest)

    def _append_rest(self, groups: GroupCommit, ingest: Ingest) -> None:
        """Append all that was read so far, so that the index may be another one from here on. Its
        files become stubs with the next group."""
        self._drain(groups, ingest, everything=True)
        self._make_requests()
        groups.wait_stored()

    def _make_room(self, groups: GroupCommit, ingest: Ingest) -> None:
        """Wait for what was read so far, if anything: what becomes stubs gives blocks back."""
        if not ingest.is_idle or self._ready or self._requests or groups.pending:
            self._drain(groups, ingest, everything=True)
            self._commit_all(groups, ingest)

    def _drain(self, groups: GroupCommit, ingest: Ingest, everything: bool) -> None:
        while True:
            try:
                ingest.drain(everything)
                break
            except NoSpace:
                # Committing what is ready frees its blocks; then there may be room again.
                self._take(ingest)
                if not (self._ready or self._requests or groups.pending):
                    raise
                self._commit_all(groups, ingest)
        self._take(ingest)

    def _take(self, ingest: Ingest) -> None:
        self._ready.take(ingest.ready)

    def _maybe_commit(self, groups: GroupCommit, ingest: Ingest) -> None:
        parts = 1 if self._restoring is None else RESTORE_GROUPS
        if (
            ingest.sums.stored_bytes - self._grouped_bytes >= GROUP_BYTES // parts
            or ingest.sums.raw_bytes - self._grouped_read >= GROUP_READ_BYTES // parts
            or len(self._ready) + len(self._requests) >= GROUP_FILES_MAX
        ):
            if ingest.is_in_large_file:
                self._drain(groups, ingest, everything=True)
                self._commit(groups, ingest, ingest.checkpoint())
            else:
                self._commit(groups, ingest)

    def _commit(
        self, groups: GroupCommit, ingest: Ingest, checkpoint: Checkpoint | None = None
    ) -> None:
        """Send the files that are ready on their way to become stubs. Raises NoSpace; then they are
        on their way with the next call."""
        self._make_requests()
        groups.submit(self._requests, checkpoint)
        self._requests = CommitRequests()
        self._grouped_bytes = ingest.sums.stored_bytes
        self._grouped_read = ingest.sums.raw_bytes

    def _commit_all(self, groups: GroupCommit, ingest: Ingest) -> None:
        """Wait until the files that are ready have become stubs."""
        self._take(ingest)
        self._commit(groups, ingest)
        groups.wait()

    def _make_requests(self) -> None:
        """Finish the recipes of the files that are ready. Raises NoSpace."""
        ready, done = self._ready, 0
        self._requests.plain.take(ready.requests)
        try:
            for task in ready.tasks:
                done += 1
                if task.failure or task.builder is None:
                    self._leave_task(task)
                    continue
                self._report.shared_taken_bytes += task.shared_bytes
                try:
                    recipe = task.builder.finish()
                except NoSpace:
                    task.failure = "no space for its recipe"
                    self._leave_task(task)
                    raise
                self._requests.add(task.request(recipe))
        finally:
            del ready.tasks[:done]

    def _account(self, ingest: Ingest, group: GroupResult) -> None:
        ingest.sums.sync_s += group.sync_s
        ingest.sums.commit_s += group.commit_s
        if group.checkpoint is not None:
            self._checkpoints.save(group.checkpoint)
        self._report.count(group.requests, group.results)
        for at, result in enumerate(group.results):
            if result.outcome is not Outcome.DONE:
                failure = result.reason if result.outcome is Outcome.FAILED else None
                request = group.requests[at]
                self._left.add(request.path, result.outcome.value, failure)
                if result.outcome is Outcome.FULL:
                    self._judging.leave_full(request.identity)

    def _leave_task(self, task: FileTask) -> None:
        reason = task.failure or "was empty when it was read"
        if task.is_in_parts:
            self._busy.left(task.candidate, reason, self._judging.is_promising(task.identity.inode))
        self._report.shared_left_bytes += task.shared_bytes if reason == SHARED_BELOW else 0
        self._left.add_unread(task.candidate.path, reason)
