"""The gc job: a record that no stub and no open file needs becomes an orphan
(docs/design/collection.md).

It marks from the stubs of the tree, from open files without a name, and from the recipes that these
name. From one run to the next it keeps only the marks of recipes, which never change
(``jobs/gc/recipe_marks.py``); nothing is counted. The marks of all that is needed are the plan
(``jobs/gc/record_marks.py``), which the sweep carries out (``jobs/gc/sweep.py``).
"""

from contextlib import ExitStack
from functools import partial

from dedupd_core import native
from dedupd_core.failpoint import define, reach
from dedupd_core.format.container import Kind
from dedupd_core.format.table import State
from dedupd_core.native.upkeep import Marks, Needs
from dedupd_core.replica.replica import refuse_unfinished
from dedupd_core.shared.fellows import require_all
from dedupd_core.store import saved_marks
from dedupd_core.units import counted
from dedupd_core.volume.hints import HintKey
from dedupd_core.volume.unfinished_files import Checkpoints
from dedupd_core.volume.volume import Volume
from jobs.check.deltas import note_retained
from jobs.compact.space_reclaimer import SpaceReclaimer
from jobs.frame.job import Job
from jobs.frame.run import JobRun
from jobs.gc import recipe_marks
from jobs.gc.deletion_marker import DeletionMarker
from jobs.gc.lost_attributes import suspect
from jobs.gc.noise_watch import refuse_noise
from jobs.gc.recipe_marker import RecipeReading
from jobs.gc.recipe_marks import RecipeMarks, Tables, kept_digests, recovered_tables
from jobs.gc.record_marks import RecordMarks
from jobs.gc.sweep import GcReport, Sweep
from jobs.gc.tree_marker import TreeMarker

_MARKED = define("gc.marked", "everything needed is marked, in memory, nothing is changed")

NOTHING_NEW = "nothing has changed since the last run"


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

    def run(self) -> GcReport:
        """Mark, then sweep. Raises Cancelled, Busy, NoSpace; NoiseWritten; UnseenMember if a volume
        of the store is not locked.

        If something that may name a chunk is unreadable, or all stubs may have lost their
        attributes, nothing is swept, and the report has the reason.
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
            self._collect(recovered_tables(volume, self._run, files))
        if not self._dry_run and not self._run.findings.count:
            # Also what a run before this one had no time for.
            SpaceReclaimer(volume, self._run, self._report).reclaim()
        return self.report()

    def _collect(self, tables: Tables) -> None:
        """Plan by marks of the needed records, and carry the plan out."""
        volume, report = self._volume, self._report
        marks = RecordMarks(tables, self._run.findings)
        chunks, wanted = marks.of_kind[Kind.CHUNKS], Needs(tables[Kind.RECIPES].counts())
        has_stubs = {
            member.parameters.uuid: self._walk(member, tables, chunks, wanted)
            for member in self._members
        }
        digests = chunks.digest() + wanted.digest()
        last = volume.store_hints.get(HintKey.LAST_COLLECTION)
        if not self._full and last == _state(tables, digests):
            report.outcome = NOTHING_NEW
            return
        marks.complete(self._read_recipes(tables, wanted))
        report.chunks_needed = chunks.count()
        report.chunks = sum(tables[Kind.CHUNKS].counts().values())
        reach(_MARKED)
        if self._run.findings.count:
            report.outcome = "nothing collected: see the messages"
            return
        Sweep(volume, self._run, tables, marks, report, dry_run=self._dry_run).run()
        if not self._dry_run:
            # What refine may win back, where these lean on something else.
            note_retained(volume.store_hints, marks.retained())
            volume.store_hints.put(HintKey.LAST_COLLECTION, _state(tables, digests))
            volume.sharing.note_stubs(has_stubs)

    @property
    def _members(self) -> tuple[Volume, ...]:
        """All volumes of the store."""
        return self._volume, *self._volume.fellows

    def _walk(self, member: Volume, tables: Tables, chunks: Marks, wanted: Needs) -> bool:
        """Mark what a volume names. Return whether it names any record.

        No job makes references at the same time, so the order of the volumes does not matter.
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
            self._suspect_lost_attributes(member, tables, roots.files)
        kept = deletions.mark(chunks, wanted)
        report.deletions += kept
        report.deletions_early += deletions.early
        return roots.stubs + kept > 0

    def _suspect_lost_attributes(self, member: Volume, tables: Tables, files: int) -> None:
        """Find that a tree may have lost its stubs to a program that leaves attributes out, where
        the store has chunks in use. In a shared store they may be those of other volumes: then it
        counts whether this one had any."""
        if not member.sharing.may_have_stubs(member.parameters.uuid):
            return
        if not any(State.LIVE in block.states() for block in tables[Kind.CHUNKS].blocks()):
            return
        if found := suspect(member, self._run.safe_point):
            self._run.findings.add(
                f"{member.root}: none of its {counted(files, 'file')} is a stub, but the store has"
                f" chunks; {found}, so these may be stubs without their attributes. If files were"
                " copied or restored without attributes, keep the store, and restore them as"
                " described in docs/guide/backup.md. If no file should be a stub, run `dedupd"
                f" run gc --all-garbage {member.root}`"
            )

    def _read_recipes(self, tables: Tables, wanted: Needs) -> RecipeMarks:
        """Mark the records that the recipes of stubs name. Recipes of an earlier run are not read
        again."""
        found = None if self._full else recipe_marks.resumed(self._volume, tables, wanted)
        self._report.resumed = found is not None
        marks = found or RecipeMarks(wanted, tables)
        reading = RecipeReading(self._volume, self._run, tables, marks, partial(self._save, tables))
        try:
            reading.mark()
        finally:
            self._report.recipes, self._report.recipe_entries = reading.recipes, reading.entries
        return marks

    def _save(self, tables: Tables, marks: RecipeMarks) -> None:
        if not self._dry_run:
            recipe_marks.save(self._volume, tables, marks)


def _state(tables: Tables, digests: bytes) -> str:
    """A digest of what the tree names, given as digests of marks, and of the records that are live,
    merged or quarantined.

    If neither has changed since a completed collection, there is no new garbage. A record that has
    reached one of these states since then without being needed changes the digest: a table was
    lost, or a job died. A wrong hint only ever causes a run to do nothing, which leaves garbage in
    place.
    """
    kept = [(int(kind), sorted(kept_digests(tables[kind]).items())) for kind in Kind]
    return native.hashing.fingerprint(digests + repr(kept).encode()).hex()
