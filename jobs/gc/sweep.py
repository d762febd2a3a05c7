"""The sweep of a collection: records that are not marked become orphans."""

from dataclasses import dataclass

from dedupd_core import native
from dedupd_core.failpoint import define, reach
from dedupd_core.format import table as tbl
from dedupd_core.format.container import COPIES_OF, Kind
from dedupd_core.format.ids import unpack_ordinals
from dedupd_core.format.table import State
from dedupd_core.store.container.directory import ContainerDirectory
from dedupd_core.store.container.record_states import set_entries
from dedupd_core.store.container.table_scan import TableScan
from dedupd_core.volume.volume import Volume
from jobs.frame.job import FileReport
from jobs.frame.run import JobRun
from jobs.gc.recipe_marks import Tables
from jobs.gc.record_marks import RecordMarks

_SYNCED = define("gc.synced", "the tree is durable as it was read, nothing is changed")
_SWEPT = define("gc.swept", "the orphans of one container are durable")


@dataclass(slots=True)
class GcReport(FileReport):
    """The results of a run. Bytes are those of payloads; ``freed_bytes`` those of the blocks that
    came back, of ``removed`` containers and of ``punched`` records.

    ``deletions`` count as needed; ``deletions_early`` were dropped before their time, for their
    space.
    ``resumed``: it has built upon the marks of an earlier run; ``recipes`` are those that it read
    itself, and ``recipe_entries`` the rows of these.
    """

    job: str = "gc"
    resumed: bool = False
    files: int = 0
    stubs: int = 0
    recipes: int = 0
    recipe_entries: int = 0
    chunks: int = 0
    chunks_needed: int = 0
    orphaned_chunks: int = 0
    orphaned_recipes: int = 0
    orphaned_copies: int = 0
    orphaned_bytes: int = 0
    orphans_before: int = 0
    revived: int = 0
    epoch: int = 0
    removed: int = 0
    punched: int = 0
    freed_bytes: int = 0
    deletions: int = 0
    deletions_early: int = 0


class Sweep:
    """Carries out the plan of a collection. A ``dry_run`` only counts."""

    def __init__(
        self,
        volume: Volume,
        run: JobRun,
        tables: Tables,
        marks: RecordMarks,
        report: GcReport,
        *,
        dry_run: bool,
    ) -> None:
        self._volume = volume
        self._run = run
        self._tables = tables
        self._marks = marks
        self._report = report
        self._dry_run = dry_run

    def run(self) -> None:
        """Change the tables to agree with the marks. Raises Cancelled, NoSpace."""
        self._report.epoch = self._marks.epoch
        if not self._dry_run:
            # A stub that the walk did not find must not come back after a power cut.
            for member in (self._volume, *self._volume.fellows):
                member.disk.sync_file_system(member.data_fd)
            reach(_SYNCED)
        for kind in Kind:
            tables = self._tables[kind]
            # What leans on another goes first: so nothing live ever leans on an orphan.
            for rank in range(tbl.RANK_MAX, -1, -1):
                for number in self._run.each(f"sweeping {kind.name.lower()}", tables.shapes):
                    bits = memoryview(self._marks.of_kind[kind].bits(number))
                    self._sweep_container(tables, number, bits, rank)

    def _sweep_container(self, tables: TableScan, number: int, bits: memoryview, rank: int) -> None:
        """Sweep the records of a container that are of a rank."""
        is_last = rank == 0
        changed_any = False
        for block in tables.blocks([tables.whole(number)]):
            places, orphans = native.upkeep.misfits(block.entries, bits[block.first // 8 :])
            self._report.orphans_before += orphans if is_last else 0
            changes: dict[int, tbl.TableEntry] = {}
            for at in unpack_ordinals(places):
                entry = block.entry(at)
                if entry is not None and entry.rank == rank:
                    record_id = block.first_id + at
                    changes[block.first + at] = self._swept(entry, record_id, tables.directory)
            changed_any |= bool(changes)
            if changes and not self._dry_run:
                set_entries(tables.directory, block.header, changes)
        if changed_any or is_last:
            reach(_SWEPT)

    def _swept(
        self, entry: tbl.TableEntry, record_id: int, directory: ContainerDirectory
    ) -> tbl.TableEntry:
        """The new entry of a record whose state does not fit its mark."""
        report, kind = self._report, directory.kind
        if entry.state == State.ORPHANED:
            report.revived += 1
            base = directory.base_of(record_id, entry) if entry.leans else 0
            return entry._replace(state=State.LIVE, target=base)
        if entry.state == State.LIVE:
            report.orphaned_chunks += kind is Kind.CHUNKS
            report.orphaned_recipes += kind is Kind.RECIPES
            report.orphaned_copies += kind not in COPIES_OF
            report.orphaned_bytes += entry.stored_length
            return entry._replace(state=State.ORPHANED, target=self._marks.epoch)
        # Nothing will ask for the record that it was merged into, or for bytes that failed a check.
        return entry._replace(state=State.TOMBSTONE, target=0)
