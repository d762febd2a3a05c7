"""The refine job: stores cold chunks as differences to others (docs/design/refine.md)."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from dedupd_core import native
from dedupd_core.config.memory_budget import refine_similar_bytes
from dedupd_core.config.policy import RefineMode
from dedupd_core.errors import DamagedChunk, DamagedContainer, NoSpace
from dedupd_core.failpoint import define, reach
from dedupd_core.format.container import Codec, Kind, seed_of
from dedupd_core.format.derived.sketch import SKETCH_BYTES
from dedupd_core.format.domain import VOLUME
from dedupd_core.format.ids import container_of, ordinal_of, pack_ids, unpack_ids
from dedupd_core.native.system import read_uncached
from dedupd_core.native.upkeep import Marks
from dedupd_core.store.container.compaction import Kept, compact
from dedupd_core.store.container.container import data_name
from dedupd_core.store.container.recovery import recover_or_discard
from dedupd_core.store.container.table_scan import TableScan
from dedupd_core.store.garbage import GAIN_BYTES_MIN, weigh
from dedupd_core.store.sketches import load_sketches, remove_stray_sketches
from dedupd_core.system.processes import cores
from dedupd_core.units import format_size
from dedupd_core.volume.hints import HintKey
from dedupd_core.volume.volume import Volume
from jobs.check.deltas import RetainedBases, deltas
from jobs.compact.space_reclaimer import keep_last_bytes, kept_open, notify_readers
from jobs.frame.job import FileReport, Job
from jobs.frame.run import JobRun
from jobs.refine.dictionaries import Dictionaries
from jobs.refine.leaving_bases import BaseGroups
from jobs.refine.new_payloads import NewPayloads
from jobs.refine.refine_history import RefineHistory, cold
from jobs.refine.sketcher import Sketcher

_LOOKED = define("refine.looked", "a container is refined, or not worthwhile, and recorded as such")

GAIN_MIN = 0.01
"""The share of a container that a new generation must save to replace the old one."""

FULL_LEVEL = 12
"""Of zstd, in the mode ``full``. Level 19 saves about 3 % more for two or three times the time."""

DELTA_SAVING_MIN = 0.2
"""By which a difference is smaller than the best alternative: reads of it decode two chunks."""

MARKED_AT_ONCE = 1 << 16

SLOT_BYTES = 48
"""Memory per searched feature: a slot of 16 bytes, in a table that may have just doubled."""


class SavesTooLittle(Exception):
    """A new generation would save too little. The old one stays."""


@dataclass(slots=True)
class RefineReport(FileReport):
    """The results of a run. Bytes are those of container files.

    ``new_deltas``, ``new_with_dictionary`` and ``compressed_again`` count records with a new
    payload: the difference to another record, a payload with a dictionary, a separate payload of a
    higher level. ``bases_left`` counts bases that no record depends on now, and no file needs.
    ``looked_bytes`` were processed. ``saved_bytes`` includes the savings after gc has freed these
    bases. ``expected_bytes`` is an estimate for the remaining containers.
    """

    job: str = "refine"
    mode: str = RefineMode.OFF.value
    containers: int = 0
    containers_waiting: int = 0
    containers_young: int = 0
    looked_records: int = 0
    looked_bytes: int = 0
    rewritten: int = 0
    not_worth_it: int = 0
    new_deltas: int = 0
    deltas: int = 0
    new_with_dictionary: int = 0
    compressed_again: int = 0
    bases_left: int = 0
    dictionaries: int = 0
    new_dictionaries: int = 0
    saved_bytes: int = 0
    expected_bytes: int = 0
    left_for_lack_of_space: int = 0


class Refine(Job[RefineReport]):
    """One run over one volume. Needs the volume's job lock; the volume may be mounted."""

    def __init__(self, volume: Volume, run: JobRun, mode: RefineMode | None = None) -> None:
        """``mode`` replaces the policy's ``refine``."""
        super().__init__(volume, run, RefineReport())
        self._policy = volume.policy()
        self._mode = self._policy.refine if mode is None else mode
        self._report.mode = self._mode.value
        self._threads = self._policy.cores or cores()
        self._room = volume.store_room()
        self._rewritten = set[int]()
        self._history = RefineHistory(volume, self._mode)
        similar_bytes = refine_similar_bytes(self._policy.memory_bytes)
        self._records_max = similar_bytes // (SLOT_BYTES * SKETCH_BYTES // 8)

    def run(self) -> RefineReport:
        """Refine unprocessed cold chunks. Raises Cancelled, NoSpace; the next run continues where
        this one stopped."""
        if self._mode is RefineMode.OFF:
            self._report.outcome = "refine is off in the policy"
            return self.report()
        with ExitStack() as stack:
            self._directory = stack.enter_context(self._volume.containers(Kind.CHUNKS))
            self._tables = self._recovered_tables()
            self._dictionaries = Dictionaries(self._volume, self._run, self._tables, self._threads)
            self._base_groups = BaseGroups(self._directory, RetainedBases(self._volume.store_hints))
            self._leaned = self._leaned_on()
            waiting = self._plan()
            if not waiting:
                self._report.outcome = "no new chunks are cold"
                return self.report()
            self._number_domains()
            looked = {number: self._history.of(number).count for number in self._tables.shapes}
            self._sketching = Sketcher(self._run, self._tables, self._threads, looked.__getitem__)
            others = set(looked) - set(map(container_of, self._dictionaries.holders()))
            for number in self._sketching.without(waiting, others, self._size):
                self._sketching.sketched(number)
            self._refiner = self._prepared(waiting)
            total = sum(self._size(number) for number in waiting)
            self._run.update(phase="refining", done=0, total=total)
            for group in self._groups(waiting):
                self._round(group, waiting)
            self._note_left(waiting)
            self._sketching.drop_unpaid(self._report.saved_bytes, self._rewritten)
        return self.report()

    # --- preparation --------------------------------------------------------------------------

    def _recovered_tables(self) -> TableScan:
        tables = TableScan(self._directory, self._run.safe_point, read_uncached)
        for _ in self._run.each("tables", tables.recover()):
            pass
        return tables

    def _number_domains(self) -> None:
        """Assign a number to each domain for this run; the volume has 0."""
        found = {shape.header.domain for shape in self._tables.shapes.values()} - {VOLUME}
        self._numbers = {VOLUME: 0} | {domain: at for at, domain in enumerate(sorted(found), 1)}

    def _domain(self, number: int) -> int:
        """Return the number of a container's domain. Its records depend on no other domain."""
        return self._numbers[self._tables.shapes[number].header.domain]

    def _plan(self) -> list[int]:
        """Return the containers to process, in ascending order."""
        shapes, report = self._tables.shapes, self._report
        remove_stray_sketches(self._directory, set(shapes))
        is_cold = set(cold(self._directory, shapes, self._policy.refine_age_s))
        todo = [n for n, shape in shapes.items() if not self._history.is_done(n, shape.count)]
        new = is_cold & set(todo)
        of_groups = self._base_groups.plan(self._size, is_cold, new, self._history.left_bytes)
        waiting = sorted(new | of_groups)
        report.containers, report.containers_waiting = len(shapes), len(waiting)
        report.containers_young = len(todo) - len(new)
        return waiting

    def _leaned_on(self) -> Marks:
        """Return the bases of other records in any state, and the targets of merged bases. All of
        these keep their payloads."""
        marks, found = Marks(self._tables.counts()), list[int]()
        for delta in deltas(self._directory, list(self._tables.shapes), self._run.safe_point):
            self._report.deltas += delta.entry.codec == Codec.DELTA
            if delta.base:
                found.append(delta.base)
                if delta.entry.codec == Codec.DELTA:
                    self._base_groups.add(delta)
                if delta.entry.codec == Codec.DICTIONARY:
                    self._dictionaries.in_use.add(delta.base)
            if len(found) >= MARKED_AT_ONCE:
                marks.add(found)
                found = []
        marks.add(found)
        found_any = True
        while found_any:
            found_any = False
            for block in self._tables.blocks():
                found_any |= marks.follow(block.first_id, block.entries).found_any
        return marks

    def _prepared(self, waiting: list[int]) -> native.upkeep.Refiner:
        """Return an object that finds new payloads, with dictionaries if the mode uses them. Raises
        Cancelled, NoSpace."""
        is_full = self._mode is RefineMode.FULL
        refiner = native.upkeep.Refiner(
            self._leaned,
            self._directory.bases.native,
            level=FULL_LEVEL if is_full else None,
            saving_min=DELTA_SAVING_MIN,
            algorithm=self._volume.parameters.fingerprint,
            threads=self._threads,
        )
        if is_full:
            # A dictionary contains strings of the files that it was trained with.
            sizes = {number: self._size(number) for number in waiting if not self._domain(number)}
            found = self._dictionaries.choose(sizes, FULL_LEVEL, GAIN_MIN)
            self._report.new_dictionaries = len(found.made)
            for number in {container_of(record_id) for record_id in found.made}:
                self._history.note(number, ordinal_of(max(found.made)) + 1)
            self._report.dictionaries = sum(map(refiner.use_dictionary, found.ids))
        for record_id in self._dictionaries.holders():
            refiner.keep(record_id)
        if self._base_groups.groups:
            # Bases become garbage, but no state changes, so gc would not notice.
            self._volume.store_hints.delete([HintKey.LAST_COLLECTION])
        for group in self._base_groups.groups:
            refiner.let_leave(group.base, pack_ids(group.members))
        return refiner

    def _note_left(self, waiting: list[int]) -> None:
        """Record the missed gains, so that the next run does not try them again."""
        left_bases = set(unpack_ids(self._refiner.left()))
        self._report.bases_left = len(left_bases)
        in_vain = self._base_groups.in_vain(left_bases)
        for number in waiting:
            count = self._history.done(number)
            if count:
                self._history.note(number, count, in_vain.get(number, 0))

    def _size(self, number: int) -> int:
        return self._directory.stat(number).st_size

    # --- rounds ---------------------------------------------------------------------------------

    def _groups(self, waiting: list[int]) -> Iterator[list[int]]:
        """Yield groups of containers whose features fit into memory; each has at least one."""
        group: list[int] = []
        count = 0
        for number in waiting:
            own = self._tables.shapes[number].count
            if group and count + own > self._records_max:
                yield group
                group, count = [], 0
            group.append(number)
            count += own
        if group:
            yield group

    def _round(self, group: list[int], waiting: list[int]) -> None:
        """Refine some containers. Their sketches are in memory; those of all containers processed
        before are streamed."""
        self._refiner.forget()
        for number in group:
            self._refiner.want(self._sketching.sketched(number), domain=self._domain(number))
        later = set(waiting) - {number for number in waiting if number < group[0]}
        for number in self._tables.shapes:
            if number not in later:
                self._offer(number)
        for number in group:
            self._run.safe_point()
            self._refine(number)

    def _offer(self, number: int) -> None:
        """Offer the chunks of a container that was processed before as bases."""
        sketches = memoryview(load_sketches(self._directory, number))
        if not sketches:
            return
        for block in self._tables.blocks([self._tables.whole(number)]):
            part = sketches[block.first * SKETCH_BYTES : block.end * SKETCH_BYTES]
            self._refiner.offer(
                block.first_id,
                part,
                block.entries,
                seed=seed_of(block.header),
                domain=self._domain(number),
            )

    # --- one container ----------------------------------------------------------------------------

    def _refine(self, number: int) -> None:
        run, report = self._run, self._report
        before, size = run.progress.done, self._size(number)
        try:
            self._rewrite(number, before)
        except SavesTooLittle:
            report.not_worth_it += 1
        except (DamagedChunk, DamagedContainer, NoSpace) as error:
            if isinstance(error, DamagedChunk):
                self._volume.repairs.add(Kind.CHUNKS, error.chunk_id)
            run.findings.add(f"chunks: {error}")
            run.update(done=before + size)
            return
        self._history.note(number, self._tables.shapes[number].count)
        reach(_LOOKED)
        report.looked_records += self._tables.shapes[number].count
        report.looked_bytes += size
        rest = run.progress.total - before - size
        saved = report.saved_bytes / max(1, report.looked_bytes)
        report.expected_bytes = max(0, int(rest * saved))
        expected = f"{format_size(report.expected_bytes)} more expected"
        run.update(done=before + size, detail=expected)

    def _rewrite(self, number: int, before: int) -> None:
        """Replace a container by a new generation.

        Raises SavesTooLittle, Damaged, NoSpace.
        """
        directory, run, report = self._directory, self._run, self._report
        with ExitStack() as stack:
            state = recover_or_discard(directory, number)
            if state is None or not state.entries:
                raise SavesTooLittle
            weight = weigh(state.entries.data, seed_of(state.header), state.end)
            if weight.quarantined:
                raise DamagedContainer(
                    f"{data_name(number).decode()}: skipped: {weight.quarantined} of its records"
                    " are quarantined; run `dedupd run scrub`"
                )
            needed_bytes = weight.room_bytes + self._base_groups.room_bytes.get(number, 0)
            if needed_bytes > self._room.left_bytes:
                report.left_for_lack_of_space += 1
                raise NoSpace(
                    f"{data_name(number).decode()}: skipped: it needs {format_size(needed_bytes)}"
                    " of free space while it is rewritten"
                )
            keep_last_bytes(self._volume, run, directory, state)
            stack.enter_context(kept_open(directory, number))
            new = NewPayloads(
                number,
                load_sketches(directory, number),
                self._refiner,
                self._run.safe_point,
                0 if self._report.new_dictionaries else self._history.done(number),
                self._base_groups.credits,
                self._domain(number),
            )

            def given(kept: Kept) -> Kept:
                yield from new.given(kept)
                saved = new.savings.saved_bytes + new.savings.credit_bytes
                is_little = saved < max(GAIN_BYTES_MIN, GAIN_MIN * weight.needed_bytes)
                # Records in other containers may rely on the fact that these have left.
                if is_little and not new.savings.left:
                    raise SavesTooLittle

            size = compact(directory, state, lambda done: run.step(before + done), given)
            report.rewritten += 1
            self._rewritten.add(number)
            records = new.savings.records
            report.new_deltas += records[Codec.DELTA]
            report.deltas += records[Codec.DELTA]
            report.new_with_dictionary += records[Codec.DICTIONARY]
            report.compressed_again += records[Codec.ZSTD]
            report.saved_bytes += weight.size_bytes - size + new.savings.credit_bytes
            directory.bases.native.drop([number])
            notify_readers(self._volume, Kind.CHUNKS, number)
