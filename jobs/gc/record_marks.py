"""The records that are needed: those that trees and recipes name, and what these lead to."""

from collections.abc import Iterator

from dedupd_core.errors import Damaged
from dedupd_core.format.container import COPIES_OF, Kind
from dedupd_core.format.ids import show_id, unpack_ordinals
from dedupd_core.format.table import State
from dedupd_core.native.upkeep import Marks
from dedupd_core.store.container.directory import ContainerDirectory
from dedupd_core.store.container.table_file import LOST
from dedupd_core.store.container.table_scan import TableBlock
from jobs.frame.run import Findings
from jobs.gc.recipe_marks import RecipeMarks, Tables


class RecordMarks:
    """Marks of each kind of record: the plan of a collection.

    ``of_kind`` has to begin with the chunks that trees name; :meth:`complete` marks the rest.
    ``epoch`` is that of new orphans: later than that of any orphan in the tables.
    """

    def __init__(self, tables: Tables, findings: Findings) -> None:
        self._tables = tables
        self._findings = findings
        self._named: dict[int, bytes] = {}
        self.of_kind = {kind: Marks(tables[kind].counts()) for kind in Kind}
        self.epoch = 1

    def complete(self, recipes: RecipeMarks) -> None:
        """Mark what recipes name, what any of that leads to or leans on, and second copies."""
        marks, chunks = self.of_kind, self.of_kind[Kind.CHUNKS]
        chunks.include(recipes.chunks)
        marks[Kind.RECIPES] = recipes.nodes
        for kind in (Kind.CHUNKS, Kind.RECIPES):
            self._follow(kind, marks[kind])
            if self._mark_twins(kind, marks[kind]):
                self._follow(kind, marks[kind])
            if kind is Kind.CHUNKS:
                self._named = {number: chunks.bits(number) for number in self._tables[kind].shapes}
            while self._mark_bases(kind, marks[kind]):
                self._follow(kind, marks[kind])
            self._report_strays(kind, marks[kind])
        for kind, copies in COPIES_OF.items():
            self._mark_copies(copies, marks[kind], marks[copies])

    def retained(self) -> dict[int, bytes]:
        """The chunks that are needed only because others lean on them: bits of each container."""
        chunks = self.of_kind[Kind.CHUNKS]
        return {number: _without(chunks.bits(number), own) for number, own in self._named.items()}

    def _follow(self, kind: Kind, marks: Marks) -> None:
        """Mark the records that marked ones were merged into, and the records that repeat these.

        A repaired record names the record whose bytes it has. If the table of that record was
        lost, only the repaired record still has the bytes.
        """
        found_any = True
        while found_any:
            found_any = False
            for block in self._tables[kind].blocks():
                followed = marks.follow(block.first_id, block.entries)
                self.epoch = max(self.epoch, followed.epoch + 1)
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
            found_any |= leaned.found_any
            for at in unpack_ordinals(leaned.unknown):
                base = self._base_in_header(directory, block, at)
                if base and base not in marks:
                    found_any |= marks.knows(base)
                    marks.add((base,))
        return found_any

    def _base_in_header(self, directory: ContainerDirectory, block: TableBlock, at: int) -> int:
        """What a record leans on whose entry does not say it; 0, with a finding, where its header
        does not either."""
        record_id, entry = block.first_id + at, block.entry(at)
        try:
            base = directory.base_of(record_id, entry) if entry is not None else 0
        except (Damaged, OSError):
            base = 0
        if not base:
            self._findings.add(
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

    def _report_strays(self, kind: Kind, marks: Marks) -> None:
        """Report ids that no table knows. If such a record was merged, its target is needed. The
        target is unknown until scrub has repaired the container."""
        what = "chunk" if kind is Kind.CHUNKS else "recipe"
        for stray in sorted(marks.strays):
            self._findings.add(
                f"{what} {show_id(stray)} is missing; the records that it refers to are kept;"
                " run `dedupd run scrub`"
            )

    def _mark_copies(self, kind: Kind, marks: Marks, copies: Marks) -> None:
        """Mark the second copies of marked records, and of lost records: whether a lost one is
        needed is unknown, and its copy may be the only one."""
        for block in self._tables[kind].blocks():
            epoch = copies.add_copies(block.first_id, block.entries, marks)
            self.epoch = max(self.epoch, epoch + 1)


def _without(bits: bytes, others: bytes) -> bytes:
    """The bits that are set in the first alone, which is as long as the second."""
    remaining = int.from_bytes(bits, "little") & ~int.from_bytes(others, "little")
    return remaining.to_bytes(len(bits), "little")
