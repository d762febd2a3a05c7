"""The reconcile job: merges chunks that several partitions have (docs/design/partitions.md).

Seed 003, 4.5. In each round, as many new records as memory holds are compared with the entire
reconciled set, and added to it.
"""

import enum
from collections import Counter
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field

from dedupd_core.config.memory_budget import reconcile_join_bytes
from dedupd_core.errors import DamagedTable
from dedupd_core.failpoint import define, reach
from dedupd_core.format.container import Kind
from dedupd_core.format.domain import PartitionKey, show_domain
from dedupd_core.format.ids import PackedPairs, container_of, unpack_pairs
from dedupd_core.store import merge_log
from dedupd_core.store.container.recovery import recover_sound
from dedupd_core.store.container.table_scan import RecordRange
from dedupd_core.store.merge_log import MergeLog, MergeLogWriter
from dedupd_core.system.files import opened
from dedupd_core.volume.partition_map import PartitionMap, load_map
from dedupd_core.volume.volume import Volume
from jobs.frame.backoff import busy_with
from jobs.frame.job import FileReport, Job
from jobs.frame.run import JobRun
from jobs.reconcile.join import ENTRY_BYTES, ChunkTables, join, rounds, unreconciled
from jobs.reconcile.merge import Merger, MergeResults
from jobs.tree.stub_sizes import stub_bytes_by_type

_LOGGED = define("reconcile.logged", "the merge log is durable, nothing is merged")
_FINISHED = define("reconcile.finished", "the merge log is completed and deleted")

SAMPLES_MAX = 1 << 18
"""Number of chunks that the strategy ``selective`` samples: 4 MiB."""

GAIN_MIN = 0.01
"""Minimum expected share of chunks that others also have, for a partition to be selected."""


ROWS_MAX = 256
"""Number of partitions in a report, the largest first: there may be thousands of domains."""


class Strategy(enum.StrEnum):
    """Which chunks a run reconciles, and when."""

    ALL = "all"
    SELECTIVE = "selective"
    """Partitions with at least 1 % of chunks that others also have, according to a sample."""
    DELAYED = "delayed"
    """All chunks, in rounds that only start while the machine is idle."""


@dataclass(slots=True)
class PartitionReport:
    """A partition and its duplicates in others: a row of table 3 (seed 003).

    Bytes are those of existing chunks; ``logical_bytes`` are those of files whose type the
    partition gets now. ``domain`` is empty for the volume. ``duplicate`` fields count chunks that
    were found in others, and merged unless the run was dry.
    """

    partition: int
    domain: str
    types: str
    chunks: int
    raw_bytes: int
    stored_bytes: int
    logical_bytes: int = 0
    duplicate_chunks: int = 0
    duplicate_raw_bytes: int = 0
    duplicate_stored_bytes: int = 0
    expected_gain: float | None = None


@dataclass(slots=True)
class ReconcileReport(FileReport):
    """The findings and results of a run.

    Savings are fractions of ``logical_bytes``, without compression, as in table 3 of seed 003:
    ``savings_partitioned`` at the start of the run, ``savings_global`` without any duplicates.
    """

    job: str = "reconcile"
    strategy: str = Strategy.ALL.value
    dry_run: bool = False
    partitions: list[PartitionReport] = field(default_factory=list)
    containers: int = 0
    chunks: int = 0
    logical_bytes: int = 0
    savings_partitioned: float = 0.0
    savings_global: float = 0.0
    rounds: int = 0
    rounds_left: int = 0
    resumed: bool = False
    compared_records: int = 0
    scanned_records: int = 0
    merged: MergeResults = field(default_factory=MergeResults)


class Reconcile(Job[ReconcileReport]):
    """One run over one volume. Needs the volume's job lock; the volume may be mounted."""

    def __init__(
        self,
        volume: Volume,
        run: JobRun,
        strategy: Strategy = Strategy.ALL,
        *,
        dry_run: bool = False,
    ) -> None:
        """``dry_run``: find all duplicates, but merge none."""
        super().__init__(volume, run, ReconcileReport(strategy=strategy.value, dry_run=dry_run))
        self._strategy = strategy
        self._dry_run = dry_run
        policy = volume.policy()
        join_bytes = reconcile_join_bytes(policy.memory_bytes)
        self._capacity = min(join_bytes // ENTRY_BYTES, 1 << 30)
        self._threads = policy.cores
        self._map: PartitionMap = load_map(volume)
        self._rows: dict[PartitionKey, PartitionReport] = {}

    def run(self) -> ReconcileReport:
        """Reconcile. Raises Cancelled, NoSpace; the next run continues where this one stopped."""
        with ExitStack() as stack:
            self._merging = Merger(self._volume, self._run, self._threads)
            stack.callback(self._merging.close)
            self._report.merged = self._merging.merged
            self._log_fd = self._volume.store.open_merge_directory()
            stack.enter_context(opened(self._log_fd))
            if not self._dry_run:
                self._finish_log()
            directory = stack.enter_context(self._volume.containers(Kind.CHUNKS))
            self._tables = ChunkTables(directory, self._run)
            self._describe()
            todo = unreconciled(self._tables.shapes, self._chosen())
            groups = list(rounds(todo, self._capacity))
            for done, group in enumerate(groups):
                if self._is_put_off():
                    self._report.rounds_left = len(groups) - done
                    break
                self._round(group)
        return self.report()

    def report(self) -> ReconcileReport:
        self._sum_up()
        return super().report()

    # --- rounds -------------------------------------------------------------------------------

    def _finish_log(self) -> None:
        """Process the log of an interrupted run. Its chunks are compared again, because some may be
        in use again."""
        merge_log.remove_unfinished(self._log_fd, self._volume.disk)
        try:
            log = MergeLog(self._log_fd, self._volume.space.volume_id)
        except FileNotFoundError:
            return
        except DamagedTable as error:
            self._run.findings.add(f"{error}; it is rebuilt")
            merge_log.remove(self._log_fd, self._volume.disk)
            return
        self._report.resumed = True
        with closing(log):
            self._bring_in_order()
            self._carry_out(log)

    def _bring_in_order(self) -> None:
        """Recover every container, before its table is changed. Raises Cancelled."""
        with self._volume.containers(Kind.CHUNKS) as directory:
            for _ in self._run.each("tables", recover_sound(directory)):
                pass

    def _carry_out(self, log: MergeLog) -> None:
        self._merging.carry_out(log)
        merge_log.remove(self._log_fd, self._volume.disk)
        reach(_FINISHED)

    def _round(self, group: list[RecordRange]) -> None:
        """Compare a group with the reconciled set, merge the duplicates, and add the group."""
        report, shapes = self._report, self._tables.shapes
        against = self._tables.reconciled()
        report.rounds += 1
        report.compared_records += sum(records.end - records.first for records in group)
        report.scanned_records += sum(records.end for records in against)
        self._run.update(phase=f"comparing, round {report.rounds}", done=0, total=0)
        if self._dry_run:
            for pairs in join(self._tables, group, against):
                self._account(pairs)
            joined = group
        else:
            with closing(self._plan(group, against)) as log:
                self._carry_out(log)
            joined = self._merging.join_set(group)
        for records in joined:
            shapes[records.container].reconciled = records.end

    def _plan(self, group: list[RecordRange], against: list[RecordRange]) -> MergeLog:
        """Return the merge log of a round, durable."""
        volume = self._volume
        volume_id, room = volume.space.volume_id, volume.store_room()
        with closing(MergeLogWriter(self._log_fd, volume_id, volume.disk, room)) as writer:
            for pairs in join(self._tables, group, against):
                self._account(pairs)
                writer.add(pairs)
            writer.complete()
        reach(_LOGGED)
        return MergeLog(self._log_fd, volume_id)

    def _is_put_off(self) -> bool:
        if self._strategy is not Strategy.DELAYED:
            return False
        reason = busy_with()
        if reason:
            self._report.outcome = f"postponed: other programs wait for {reason}"
        return bool(reason)

    # --- choosing partitions ---------------------------------------------------------------------

    def _chosen(self) -> set[PartitionKey] | None:
        """Return the partitions to reconcile; None means all."""
        if self._strategy is not Strategy.SELECTIVE:
            return None
        self._run.update(phase="sampling", done=0, total=0)
        todo = unreconciled(self._tables.shapes)
        count = sum(records.end - records.first for records in todo)
        bits = max(0, (count // SAMPLES_MAX).bit_length())
        common: Counter[tuple[PartitionKey, PartitionKey]] = Counter()
        of = self._tables.partition_of
        for pairs in join(self._tables, todo, self._tables.reconciled(), bits):
            common.update(
                (of(container_of(own)), of(container_of(into))) for own, into in unpack_pairs(pairs)
            )
        chosen: set[PartitionKey] = set()
        others: dict[PartitionKey, dict[PartitionKey, int]] = {}
        for (own, into), pairs_count in common.items():
            others.setdefault(own, {})[into] = pairs_count
        for key, row in self._rows.items():
            found = others.get(key, {})
            row.expected_gain = min(1.0, (sum(found.values()) << bits) / max(1, row.chunks))
            if row.expected_gain >= GAIN_MIN:
                chosen |= {key, *found}
        return chosen

    # --- the report -----------------------------------------------------------------------------

    def _describe(self) -> None:
        """Count the contents of each partition, before any merge."""
        report = self._report
        report.containers = len(self._tables.shapes)
        for key, contents in sorted(self._tables.contents.items()):
            types = self._map.types(key.number) if key.number in self._map.open else "closed"
            types = types if key.is_of_volume else ""
            domain = "" if key.is_of_volume else show_domain(key.domain)
            self._rows[key] = PartitionReport(key.number, domain, types, **asdict(contents))
        largest = sorted(self._rows.values(), key=lambda row: -row.raw_bytes)[:ROWS_MAX]
        report.partitions = sorted(largest, key=lambda row: (row.domain, row.partition))
        report.chunks = sum(row.chunks for row in self._rows.values())
        self._run.update(phase="walking the tree", done=0, total=0)
        sizes = stub_bytes_by_type(self._volume, self._run.safe_point, self._threads)
        report.logical_bytes = sizes.total()
        for file_type, size in sizes.items():
            row = self._rows.get(PartitionKey(number=self._map.of_type(file_type)))
            if row is not None:
                row.logical_bytes += size

    def _account(self, pairs: PackedPairs) -> None:
        """Count the chunks that the partitions share with others."""
        for own, _ in unpack_pairs(pairs):
            entry = self._tables.containers.entry(own)
            if entry is not None:
                row = self._rows[self._tables.partition_of(container_of(own))]
                row.duplicate_chunks += 1
                row.duplicate_raw_bytes += entry.raw_length
                row.duplicate_stored_bytes += entry.stored_length

    def _sum_up(self) -> None:
        report = self._report
        if not report.logical_bytes:
            return
        raw = sum(row.raw_bytes for row in self._rows.values())
        twice = sum(row.duplicate_raw_bytes for row in self._rows.values())
        report.savings_partitioned = 1 - raw / report.logical_bytes
        report.savings_global = 1 - (raw - twice) / report.logical_bytes
