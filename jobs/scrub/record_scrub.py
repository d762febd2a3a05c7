"""The part of a scrub that looks at records: headers or every byte, against the tables."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from dedupd_core import native
from dedupd_core.errors import Damaged
from dedupd_core.failpoint import define, reach
from dedupd_core.format import container as fmt
from dedupd_core.format import table as tbl
from dedupd_core.format.ids import container_of, make_id, ordinal_of
from dedupd_core.format.table_columns import UncheckedEntries
from dedupd_core.store.container.directory import ContainerDirectory
from dedupd_core.store.container.record_states import set_states
from dedupd_core.store.container.rescue import mend
from dedupd_core.store.container.table_file import LOST
from dedupd_core.system.files import opened
from dedupd_core.system.paths import explain
from dedupd_core.units import MIB
from dedupd_core.volume.repair_notes import Note
from dedupd_core.volume.volume import Volume
from jobs.check.headers_seen import HeadersSeen
from jobs.check.invariants import Invariant
from jobs.check.record_census import RecordCensus
from jobs.check.record_check import (
    PORTION_BYTES,
    CheckedTable,
    Problem,
    check_all,
    problems,
)
from jobs.frame.pace import Throttle
from jobs.frame.run import JobRun
from jobs.scrub.progress import ScrubProgress

QUARANTINED = define("scrub.quarantined", "the results for the records are in their table")

_METADATA = frozenset((fmt.Kind.RECIPES, fmt.Kind.RECIPE_COPIES))
"""Kinds that a quick run reads to the last byte: a lost recipe is a lost file."""


class RecordScrub:
    """Looks at the records of all containers, and corrects the tables by them.

    ``find`` is told each violated invariant; the census, ``known``, follows the tables.
    """

    def __init__(
        self,
        volume: Volume,
        directories: dict[fmt.Kind, ContainerDirectory],
        known: dict[fmt.Kind, RecordCensus],
        run: JobRun,
        throttle: Throttle,
        find: Callable[[Invariant, str, str], None],
        *,
        is_full: bool,
        threads: int,
    ) -> None:
        self._run = run
        self._is_full = is_full
        self._throttle = throttle
        self._directories = directories
        self._known = known
        self._find = find
        self._algorithm, self._threads = volume.parameters.fingerprint, threads
        self.progress = ScrubProgress(volume, is_full)
        self._seen = HeadersSeen(volume)
        self.containers = 0
        self.records = 0
        self.read_bytes = 0
        self.raw_bytes = 0
        self.released = 0
        self.without_base: list[int] = []
        self.resumed = False
        self.left_bytes = 0
        """Of containers that were not looked at, once the share was reached."""

    def run(self, share: float | None = None) -> None:
        """Go through all containers that were not done before an interruption, or before the share
        of them all was reached. Raises Cancelled."""
        sizes = {
            (kind, number): directory.stat(number).st_size
            for kind, directory in self._directories.items()
            for number in self._known[kind].numbers()
        }
        self._run.update(total=sum(sizes.values()), done=0)
        try:
            self._check_all(sizes, share)
        finally:
            for directory in self._directories.values():
                self._seen.keep(directory)

    def _check_all(self, sizes: dict[tuple[fmt.Kind, int], int], share: float | None) -> None:
        limit = None if share is None else share * sum(sizes.values())
        looked_at = 0
        for (kind, number), size in sizes.items():
            if self.progress.is_done(kind, number):
                self.resumed = True
                self._run.update(done=self._run.progress.done + size)
                continue
            if limit is not None and looked_at >= limit:
                if not self.left_bytes:
                    self.progress.stop_before(kind, number)
                self.left_bytes += size
                continue
            self._check(self._directories[kind], number)
            self.progress.done(kind, number)
            looked_at += size

    def look_at(self, notes: Iterable[Note]) -> None:
        """Look at the records that readers could not read, however quick the run is."""
        for kind, record_id in notes:
            self._run.safe_point()
            directory, number = self._directories[kind], container_of(record_id)
            entry = directory.entry(record_id)
            if entry is None or entry.state not in tbl.USABLE:
                continue
            try:
                directory.open(number).read_own(ordinal_of(record_id))
            except (Damaged, OSError) as error:
                problem = Problem(
                    Invariant.RECORD_PAYLOAD, explain(error), ordinal_of(record_id), entry
                )
                own = directory.header(number).container
                self._settle(CheckedTable(directory, own, directory.entries(number)), [problem])

    def _pace(self, count: int) -> None:
        self._throttle.take(count)
        self.read_bytes += count
        self._run.update(done=self._run.progress.done + count)

    def _check(self, directory: ContainerDirectory, number: int) -> None:
        self.containers += 1
        try:
            header = directory.header(number)
            entries = directory.entries(number)
            with opened(directory.open_data(number)) as fd, self._without_holes(fd):
                is_deep = self._is_full or directory.kind in _METADATA
                is_seen = not is_deep and self._headers_agree(fd, entries)
                if not is_seen:
                    is_seen = self._check_records(directory, fd, header, entries)
                self._seen.note(directory, number, entries, is_seen=is_seen)
        except (Damaged, OSError) as error:
            self._find(Invariant.CONTAINER_RECORDS, directory.where(number), explain(error))

    @contextmanager
    def _without_holes(self, fd: int) -> Iterator[None]:
        """Count what is read of a container in the block as read, except for its holes, where dead
        records were punched."""
        before, status = self.read_bytes, os.fstat(fd)
        hole_bytes = max(0, status.st_size - status.st_blocks * 512)
        try:
            yield
        finally:
            self.read_bytes = max(before, self.read_bytes - hole_bytes)

    def _check_records(
        self,
        directory: ContainerDirectory,
        fd: int,
        header: fmt.FileHeader,
        entries: UncheckedEntries,
    ) -> bool:
        """Whether every record was where its entry says, from the first to the last."""
        number = header.container
        start, end = fmt.FILE_HEADER_BYTES, os.fstat(fd).st_size
        begun, ordinal = self.progress.within(directory.kind, header), 0
        if begun is not None:
            start, ordinal = begun
            self.resumed = True
        check = native.store.ContainerCheck(
            fd,
            entries.data,
            seed=entries.seed,
            start=start,
            end=end,
            ordinal=ordinal,
            is_forgeable=header.is_forgeable,
            algorithm=self._algorithm,
            threads=self._threads,
            bases=directory.bases.native,
        )
        portion = self._throttle.portion(PORTION_BYTES, MIB)
        said = CheckedTable(directory, number, entries)
        is_right = begun is None
        for found in check_all(check, entries.seed, end, portion, self._pace):
            is_right &= not found
            self._settle(said, found)
            reached = check.reached
            if not reached.is_disordered:
                self.progress.note(directory.kind, header, reached.offset, reached.ordinal)
        found = problems(check.finish(), entries.seed)
        self._settle(said, found)
        if any(problem.ordinal < 0 for problem in found):
            self._account_for_gap(directory, number, len(entries))
        reached = check.reached
        self._release(said, reached.released)
        self.without_base += [make_id(number, ordinal) for ordinal in reached.without_base]
        self.records += reached.records
        self.raw_bytes += reached.raw_bytes
        return is_right and not found

    def _account_for_gap(self, directory: ContainerDirectory, number: int, count: int) -> None:
        """Add an entry for bytes that are no record and that no entry accounts for: they were a
        record whose entry is lost as well, and its ordinal must not be given out again."""
        mend(directory, number, count + 1)
        self._known[directory.kind].add(make_id(number, count), LOST)

    def _headers_agree(self, fd: int, entries: UncheckedEntries) -> bool:
        """Whether every record is where its entry says; payloads are not read."""
        self._pace(len(entries) * fmt.RECORD_HEADER_BYTES)
        if not native.store.headers_agree(fd, entries.data, seed=entries.seed):
            return False
        self.records += len(entries)
        return True

    def _settle(self, said: CheckedTable, problems: list[Problem]) -> None:
        """Report problems, and correct the table: durably, before going on."""
        changes: dict[int, tbl.TableEntry] = {}
        for problem in problems:
            name = said.where if problem.ordinal < 0 else f"{said.where} record {problem.ordinal}"
            self._find(problem.invariant, name, problem.detail)
            if problem.ordinal < 0:
                continue
            entry = changes.get(problem.ordinal) or said[problem.ordinal]
            if problem.invariant is Invariant.TABLE_AGREES and problem.entry is not None:
                changes[problem.ordinal] = _agreeing(problem.entry, entry)
            else:
                lost = entry or problem.entry or LOST
                changes[problem.ordinal] = lost._replace(state=tbl.State.QUARANTINED)
        said.changed.update(changes)
        self._change(said, changes)

    def _release(self, said: CheckedTable, ordinals: list[int]) -> None:
        """Records that were quarantined and are right after all: it was not the disk."""
        changes = {
            ordinal: entry._replace(state=tbl.State.LIVE)
            for ordinal in ordinals
            if (entry := said[ordinal]) is not None
        }
        self.released += len(changes)
        self._change(said, changes)

    def _change(self, said: CheckedTable, changes: dict[int, tbl.TableEntry]) -> None:
        if not changes:
            return
        by_id = {make_id(said.number, ordinal): e for ordinal, e in changes.items()}
        set_states(said.directory, by_id)
        reach(QUARANTINED)
        for record_id, entry in by_id.items():
            self._known[said.directory.kind].add(record_id, entry)


def _agreeing(found: tbl.TableEntry, said: tbl.TableEntry | None) -> tbl.TableEntry:
    """The entry that a record implies, with the state and the target that only the table knows."""
    is_gone = said is not None and said.state in (tbl.State.MERGED, tbl.State.TOMBSTONE)
    if said is None or (is_gone and said.fingerprint != found.fingerprint):
        return found  # the entry of another record, which a disk has put there
    is_own = said.state in (tbl.State.LIVE, tbl.State.QUARANTINED)
    target = found.target if is_own else said.target
    return found._replace(state=said.state, target=target)
