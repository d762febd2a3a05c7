"""The gc job: a record that no stub and no open file needs becomes an orphan
(docs/design/collection.md).

It marks from the stubs of the tree, from open files without a name, and from the recipes that these
name. From one run to the next it keeps only the marks of recipes, which never change
(``jobs/gc/mark_phases.py``); nothing is counted.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from dedupd_core import native
from dedupd_core.errors import Damaged
from dedupd_core.failpoint import define, reach
from dedupd_core.format import table as tbl
from dedupd_core.format.container import COPIES_OF, Kind
from dedupd_core.format.ids import show_id
from dedupd_core.format.table import State
from dedupd_core.replica.replica import refuse_unfinished
from dedupd_core.shared.fellows import require_all
from dedupd_core.store import saved_marks
from dedupd_core.store.container.directory import ContainerDirectory
from dedupd_core.store.container.record_states import set_entries
from dedupd_core.store.container.table_file import LOST
from dedupd_core.store.container.table_scan import TableBlock, TableScan
from dedupd_core.store.mark_set import Marks, Needs
from dedupd_core.units import counted
from dedupd_core.volume.hints import HintKey
from dedupd_core.volume.unfinished_files import Checkpoints
from dedupd_core.volume.volume import Volume
from jobs.check.leaning import note_held
from jobs.compact.in_place import InPlace
from jobs.frame.report import FileReport, Job
from jobs.frame.run import JobRun
from jobs.gc import mark_phases
from jobs.gc.deletion_marker import DeletionMarker
from jobs.gc.lost_attributes import suspect
from jobs.gc.mark_phases import RecipeMarks
from jobs.gc.noise_watch import refuse_noise
from jobs.gc.recipe_marker import RecipeReading
from jobs.gc.tables import kept_digests, recovered_tables
from jobs.gc.tree_marker import TreeMarker

_MARKED = define("gc.marked", "everything needed is marked, in memory, nothing is changed")
_SYNCED = define("gc.synced", "the tree is durable as it was read, nothing is changed")
_SWEPT = define("gc.swept", "the orphans of one container are durable")

NOTHING_NEW = "nothing has changed since the last run"


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


class Gc(Job[GcReport]):
    """One collection over one store, for all of its volumes. Needs the locks of all
    (``dedupd_core/shared/fellows.py``); they may be mounted."""

    def __init__(
        self,
        volume: Volume,
        run: JobRun,
        *,
        full: bool = False,
        dry_run: bool = False,
        all_garbage: bool = False,
    ) -> None:
        """``full``: build upon nothing that an earlier run has found. ``all_garbage``: a tree with
        files and without stubs is meant to be so."""
        super().__init__(volume, run, GcReport())
        self._full = full
        self._dry_run = dry_run
        self._all_garbage = all_garbage
        self._epoch = 1

    def run(self) -> GcReport:
        """Mark, then sweep. Raises Cancelled, Busy, NoSpace; NoiseWritten; UnseenMember where a
        volume of the store is not held.

        Where anything could not be read that may name a chunk, or all stubs may have lost their
        attributes, nothing is swept: the report says what it was.
        """
        volume = self._volume
        require_all(volume)
        for member in self._members:
            refuse_unfinished(member.base_fd, member.root)
            refuse_noise(member, self._run, dry_run=self._dry_run)
        if not self._dry_run:
            # Chunks that only a checkpoint names are garbage from here on.
            for member in self._members:
                Checkpoints(member).clear()
            saved_marks.remove_unfinished(volume.store.base_fd, volume.disk)
        with ExitStack() as files:
            self._tables = recovered_tables(volume, self._run, files)
            self._collect()
        if not self._dry_run and not self._run.findings.count:
            # Also what a run before this one had no time for.
            InPlace(volume, self._run, self._report).give_back()
        return self.report()

    def _collect(self) -> None:
        volume, run, report, tables = self._volume, self._run, self._report, self._tables
        marks = {kind: Marks(tables[kind].counts()) for kind in Kind}
        chunks, wanted = marks[Kind.CHUNKS], Needs(tables[Kind.RECIPES].counts())
        has_stubs: dict[str, bool] = {}
        for member in self._members:
            has_stubs[member.parameters.uuid] = self._walk(member, chunks, wanted)
        digests = {Kind.CHUNKS: chunks.digest(), Kind.RECIPES: wanted.digest()}
        if not self._full and volume.store_hints.get(HintKey.LAST_COLLECTION) == self._state(
            digests
        ):
            report.outcome = NOTHING_NEW
            return
        recipes = self._read_recipes(wanted)
        chunks.include(recipes.chunks)
        marks[Kind.RECIPES] = recipes.nodes
        for kind in (Kind.CHUNKS, Kind.RECIPES):
            self._follow(kind, marks[kind])
            if self._mark_twins(kind, marks[kind]):
                self._follow(kind, marks[kind])
            if kind is Kind.CHUNKS:
                named = {number: chunks.bits(number) for number in tables[kind].shapes}
            while self._mark_bases(kind, marks[kind]):
                self._follow(kind, marks[kind])
            self._tell_strays(kind, marks[kind])
        for kind, copies in COPIES_OF.items():
            self._mark_copies(copies, marks[kind], marks[copies])
        report.chunks_needed = chunks.count()
        report.chunks = sum(tables[Kind.CHUNKS].counts().values())
        reach(_MARKED)
        if run.findings.count:
            report.outcome = "nothing collected: see the messages"
        else:
            self._sweep(marks)
            if not self._dry_run:
                # What refine may win back, where these lean on something else.
                held = {number: _without(chunks.bits(number), own) for number, own in named.items()}
                note_held(volume.store_hints, held)
                volume.store_hints.put(HintKey.LAST_COLLECTION, self._state(digests))
                volume.sharing.note_stubs(has_stubs)

    @property
    def _members(self) -> tuple[Volume, ...]:
        """All volumes of the store."""
        return self._volume, *self._volume.fellows

    def _walk(self, member: Volume, chunks: Marks, wanted: Needs) -> bool:
        """Mark what a volume names; says whether that is anything.

        No job makes references meanwhile, so the order of the volumes does not matter.
        """
        run, report = self._run, self._report
        run.update(phase="walking the tree")
        deletions = DeletionMarker(member, run, dry_run=self._dry_run)
        roots = TreeMarker(member, run, chunks, wanted).mark()
        report.files += roots.files
        report.stubs += roots.stubs
        for problem in roots.problems:
            run.findings.add(problem if member is self._volume else f"{member.root}: {problem}")
        if roots.files and not roots.stubs and not self._all_garbage:
            self._suspect_lost_attributes(member, roots.files)
        kept = deletions.mark(chunks, wanted)
        report.deletions += kept
        report.deletions_early += deletions.early
        return roots.stubs + kept > 0

    def _suspect_lost_attributes(self, member: Volume, files: int) -> None:
        """Find that a tree may have lost its stubs to a program that leaves attributes out, where
        the store has chunks in use. In a shared store they may be those of other volumes: then it
        counts whether this one had any."""
        if not member.sharing.may_have_stubs(member.parameters.uuid):
            return
        if not any(State.LIVE in block.states() for block in self._tables[Kind.CHUNKS].blocks()):
            return
        if found := suspect(member, self._run.safe_point):
            self._run.findings.add(
                f"{member.root}: none of its {counted(files, 'file')} is a stub, but the store has"
                f" chunks; {found}, so these may be stubs without their attributes. If files were"
                " copied or restored without attributes, keep the store, and restore them as"
                " described in docs/guide/backup.md. If no file should be a stub, run `dedupd"
                f" run gc --all-garbage {member.root}`"
            )

    def _state(self, named: dict[Kind, bytes]) -> str:
        """A digest of what the tree names, given as digests of marks, and of which records are
        live or merged.

        If neither has changed since a collection that went through, there is no new garbage. A
        record shows that has become either since without being needed, because a table was lost or
        a job died. A wrong hint is only ever a reason to do nothing, and leaves garbage where it
        is.
        """
        kept = [(int(kind), sorted(kept_digests(self._tables[kind]).items())) for kind in Kind]
        return native.hashing.fingerprint(b"".join(named.values()) + repr(kept).encode()).hex()

    # --- marking ------------------------------------------------------------------------------

    def _read_recipes(self, wanted: Needs) -> RecipeMarks:
        """Marks of all that the recipes of stubs lead to. Recipes known from an earlier run are not
        read again."""
        found = None if self._full else mark_phases.resumed(self._volume, self._tables, wanted)
        self._report.resumed = found is not None
        marks = found or RecipeMarks(wanted, self._tables)
        reading = RecipeReading(self._volume, self._run, self._tables, marks, self._save)
        try:
            reading.mark()
        finally:
            self._report.recipes, self._report.recipe_entries = reading.recipes, reading.entries
        return marks

    def _save(self, marks: RecipeMarks) -> None:
        if not self._dry_run:
            mark_phases.save(self._volume, self._tables, marks)

    def _follow(self, kind: Kind, marks: Marks) -> None:
        """Mark the records that marked ones were merged into, and the records that repeat these.

        A repaired record names the one whose bytes it has. Where the table of that one was lost,
        the repaired record alone still has them.
        """
        found_any = True
        while found_any:
            found_any = False
            for block in self._tables[kind].blocks():
                followed = marks.follow(block.first_id, block.entries)
                marks.note_strays(followed.strays)
                self._epoch = max(self._epoch, followed.epoch + 1)
                found_any |= followed.found_any

    def _mark_twins(self, kind: Kind, marks: Marks) -> bool:
        """Mark the records with the fingerprint of a marked record that is lost; returns whether
        there are any. Scrub repairs the lost one with them, and an entry that led to them may be
        lost too."""
        lost = set(self._lost_fingerprints(kind, marks))
        if not lost:
            return False
        before = marks.count()
        for block in self._tables[kind].blocks():
            twins = (at for at in range(block.end - block.first) if block.fingerprint(at) in lost)
            marks.add(block.first_id + at for at in twins)
        return marks.count() > before

    def _mark_bases(self, kind: Kind, marks: Marks) -> bool:
        """Mark the records that marked ones lean on, whatever their state: a merged or quarantined
        one may be read by its own bytes yet. Returns whether any was not marked before."""
        found_any = False
        directory = self._tables[kind].directory
        for block in self._tables[kind].blocks():
            leaned = marks.lean(block.first_id, block.entries)
            marks.note_strays(leaned.strays)
            found_any |= leaned.found_any
            for at in memoryview(leaned.unknown).cast("I"):
                base = self._told_base(directory, block, at)
                if base and base not in marks:
                    found_any |= marks.knows(base)
                    marks.add((base,))
        return found_any

    def _told_base(self, directory: ContainerDirectory, block: TableBlock, at: int) -> int:
        """What a record leans on whose entry does not say it; 0, with a finding, where its header
        does not either."""
        record_id, entry = block.first_id + at, block.entry(at)
        try:
            base = directory.base_of(record_id, entry) if entry is not None else 0
        except (Damaged, OSError):
            base = 0
        if not base:
            self._run.findings.add(
                f"chunk {show_id(record_id)} depends on another record, and its header cannot be"
                " read; its base is kept; run `dedupd run scrub`"
            )
        return base

    def _lost_fingerprints(self, kind: Kind, marks: Marks) -> Iterator[bytes]:
        """Those of marked records that are quarantined, as far as they are known."""
        for block in self._tables[kind].blocks():
            for at, state in enumerate(block.states()):
                if state == State.QUARANTINED and block.first_id + at in marks:
                    fingerprint = block.fingerprint(at)
                    if fingerprint != LOST.fingerprint:
                        yield fingerprint

    def _tell_strays(self, kind: Kind, marks: Marks) -> None:
        """Report ids that no table knows. A record that one of them was merged into is needed, and
        is not known before scrub has made the container one that can be opened."""
        what = "chunk" if kind is Kind.CHUNKS else "recipe"
        for stray in sorted(marks.strays):
            self._run.findings.add(
                f"{what} {show_id(stray)} is missing; the records that it refers to are kept;"
                " run `dedupd run scrub`"
            )

    def _mark_copies(self, kind: Kind, marks: Marks, copies: Marks) -> None:
        """Mark the second copies of marked records, and of lost records: whether a lost one is
        needed is unknown, and its copy may be the only one."""
        for block in self._tables[kind].blocks():
            epoch = copies.add_copies(block.first_id, block.entries, marks)
            self._epoch = max(self._epoch, epoch + 1)

    # --- sweeping -----------------------------------------------------------------------------

    def _sweep(self, marks: dict[Kind, Marks]) -> None:
        self._report.epoch = self._epoch
        if not self._dry_run:
            # A stub that the walk did not find must not come back after a power cut.
            for member in self._members:
                member.disk.sync_file_system(member.data_fd)
            reach(_SYNCED)
        for kind in Kind:
            tables = self._tables[kind]
            # What leans on another goes first: so nothing live ever leans on an orphan.
            for rank in range(tbl.RANK_MAX, -1, -1):
                for number in self._run.each(f"sweeping {kind.name.lower()}", tables.shapes):
                    bits = memoryview(marks[kind].bits(number))
                    self._sweep_container(tables, number, bits, rank)

    def _sweep_container(self, tables: TableScan, number: int, bits: memoryview, rank: int) -> None:
        """Sweep the records of a container that are of a rank."""
        is_last = rank == 0
        changed_any = False
        for block in tables.blocks([tables.whole(number)]):
            places, orphans = native.upkeep.misfits(block.entries, bits[block.first // 8 :])
            self._report.orphans_before += orphans if is_last else 0
            changes: dict[int, tbl.TableEntry] = {}
            for at in memoryview(places).cast("I"):
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
            return entry._replace(state=State.ORPHANED, target=self._epoch)
        # Nothing will ask for the record that it was merged into, or for bytes that failed a check.
        return entry._replace(state=State.TOMBSTONE, target=0)


def _without(bits: bytes, others: bytes) -> bytes:
    """The bits that are set in the first alone, which is as long as the second."""
    left = int.from_bytes(bits, "little") & ~int.from_bytes(others, "little")
    return left.to_bytes(len(bits), "little")
