"""The optimize job: candidates of the policy become stubs.

A plan selects the files, and their partitions. It is carried out in rounds, in which each file
goes through the stages in one direction: read, admitted, ingested, committed.
"""

import gc
import sys
from functools import partial

from dedupd_core.config.memory_budget import optimize_shares
from dedupd_core.config.policy import Policy, RestoreMode, SharedExtents
from dedupd_core.errors import Damaged, DedupdError, NoSpace
from dedupd_core.system.files import free_space
from dedupd_core.system.page_cache import BufferPool, new_buffer
from dedupd_core.system.paths import explain
from dedupd_core.system.processes import cores
from dedupd_core.volume.commit import VolumeCommitter, settle_interrupted
from dedupd_core.volume.enabling.probe import require_suitable
from dedupd_core.volume.restore import require_room, restore_file
from dedupd_core.volume.unfinished_files import Checkpoints
from dedupd_core.volume.volume import Volume
from jobs.frame.job import Job
from jobs.frame.run import Cancelled, JobRun
from jobs.optimize.admission import RestoreAdmission
from jobs.optimize.batch_reader import ReaderLimits, batches_within
from jobs.optimize.group_commit import GroupCommit
from jobs.optimize.judgements import Judgements
from jobs.optimize.optimize_report import OptimizeReport
from jobs.optimize.outcomes import LeftFiles, Outcomes
from jobs.optimize.pipeline import Ingest
from jobs.optimize.plan import OptimizePlan
from jobs.optimize.rounds import Round, Stages
from jobs.optimize.store_session import StoreSession

__all__ = ["Optimize", "OptimizeReport"]

GARBAGE_THRESHOLD = 100_000
"""Objects between two searches for cycles; 700 is Python's own choice. Few of the objects that
stream through a run are in cycles, and looking for these all the time took 3 % of it."""

SWITCH_INTERVAL_S = 0.0005
"""How long a thread keeps the interpreter from others that wait for it: the reader and the commit
give it up at every system call. Python's own 5 ms made a run of small files 6 % longer."""


class Optimize(Job[OptimizeReport]):
    """One run over one volume. Needs the volume's job lock, or the lock of those that append."""

    def __init__(self, volume: Volume, run: JobRun, below: bytes = b"") -> None:
        super().__init__(volume, run, OptimizeReport())
        self._policy: Policy = volume.policy()
        self._judgements = Judgements(volume, self._policy)
        self._plan = OptimizePlan(volume, self._policy, below, run, self._judgements, self._report)
        self._committer = VolumeCommitter(volume, self._threads)
        self._checkpoints = Checkpoints(volume)
        self._left_files = LeftFiles(self._report.files_left, run.findings)
        self._report.free_bytes_before = free_space(volume.data_fd).free_bytes

    @property
    def _threads(self) -> int:
        return min(self._policy.cores or cores(), 64)

    @property
    def _restores(self) -> bool:
        """Whether a restore fills the volume, whose writers wait for room."""
        return self._policy.restore_mode is RestoreMode.ON

    def run(self) -> OptimizeReport:
        """Optimize everything the policy asks for.

        Raises UnsuitableFileSystem, NoSpace, Cancelled, Damaged.
        """
        require_suitable(self._volume)  # a mount checks this only at its start
        if not self._restores:
            return self._run_whole()
        with self._committer.awaited(lambda: self._report.freed_bytes):
            return self._run_whole()

    def _run_whole(self) -> OptimizeReport:
        self._committer.let_go()
        gc.set_threshold(GARBAGE_THRESHOLD)
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        if not self._plan.compute():
            return self.report()
        first = self._plan.partitions[0]
        store = StoreSession(self._volume, self._policy.index, first, self._run.safe_point)
        try:
            self._settle()
            self._make_plain()
            self._take_files(store)
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
            self._left_files.save(self._volume, self._run.started_s)

    def report(self) -> OptimizeReport:
        report = self._report
        self._plan.busy.close()
        report.files_skipped = self._plan.skipped.files
        report.bytes_skipped = self._plan.skipped.size_bytes
        report.free_bytes_after = free_space(self._volume.data_fd).free_bytes
        return super().report()

    def _settle(self) -> None:
        """Finish what an interrupted job left half done."""
        for path in self._plan.unsettled:
            self._run.safe_point()
            try:
                settle_interrupted(self._volume, path)
            except (DedupdError, OSError) as error:
                self._run.findings.add_error(path, error)

    def _make_plain(self) -> None:
        """Turn stubs that are in use, and mostly their own blocks by now, into plain files."""
        for path in self._plan.mostly_local:
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
        """Free the space that this run has used and that no file needs."""
        self._checkpoints.clear()
        try:
            self._report.cut_bytes = store.cut_back()
        except (Damaged, OSError) as error:
            self._run.findings.add(
                f"discarded data stays in the store until the next gc: {explain(error)}"
            )

    # --- execution -------------------------------------------------------------------------------

    def _take_files(self, store: StoreSession) -> None:
        """Take the files that were found, then those recalled, then those that the mount offers."""
        judgements, report = self._judgements, self._report
        judgements.begin()
        stages = self._stages(store)
        report.code_path = self._volume.parameters.chunker().path
        try:
            self._run.update(phase="optimizing")
            self._round(stages)
            if judgements.start_recall():
                self._round(stages)
            judgements.save(is_complete=True)
            self._checkpoints.clear()
            while self._plan.busy.take_turn():
                self._round(stages)
            judgements.end()
        except Cancelled:
            judgements.end()
            raise
        finally:
            ingest = stages.ingest
            ingest.close()
            stages.groups.close()
            report.sums = ingest.sums.rounded()
            report.recipe_bytes = store.streams.appended_bytes
            report.index_entries = len(store.index)
            report.index = store.counters()
            report.count_left(ingest.left_files, self._plan.skipped)

    def _round(self, stages: Stages) -> None:
        Round(self._volume, self._run, self._plan, self._judgements, stages, self._report).run()

    def _stages(self, store: StoreSession) -> Stages:
        """The stages of this run, with buffers as large as its memory allows."""
        volume, policy, judgements, busy = (
            self._volume,
            self._policy,
            self._judgements,
            self._plan.busy,
        )
        headroom = volume.parameters.chunking.max_bytes
        shares = optimize_shares(policy.memory_bytes, self._plan.partitioning.index_bytes)
        batch_bytes, buffers = batches_within(shares.buffers_bytes, self._threads)
        pool = BufferPool(new_buffer(headroom + batch_bytes) for _ in range(buffers))
        self._checkpoints.load()
        ingest = Ingest(
            volume,
            store,
            policy,
            pool,
            judgements,
            self._threads,
            in_flight_max=max(1, buffers - 3),
        )
        outcomes = Outcomes(self._report, judgements, busy, self._left_files, self._checkpoints)
        return Stages(
            pool=pool,
            limits=ReaderLimits(
                headroom,
                batch_bytes,
                threads=min(self._threads, 2),
                unshared_only=policy.shared_extents is SharedExtents.SKIP,
            ),
            checkpoints=self._checkpoints,
            room=volume.store_room(),
            restoring=RestoreAdmission(volume, judgements, busy.ask_for)
            if self._restores
            else None,
            store=store,
            ingest=ingest,
            groups=GroupCommit(store, self._committer, partial(outcomes.add_group, ingest.sums)),
            left_files=self._left_files,
            outcomes=outcomes,
        )
