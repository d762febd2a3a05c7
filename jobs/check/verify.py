"""The verify job: reads everything and checks every invariant (``jobs/check/invariants.py``)."""

import os
from collections import Counter
from dataclasses import dataclass, field

from dedupd_core import native
from dedupd_core.errors import Damaged, DamagedTable
from dedupd_core.format import container as fmt
from dedupd_core.format import table as tbl
from dedupd_core.format.ids import container_of, make_id, ordinal_of, show_id
from dedupd_core.format.table_columns import UncheckedEntries
from dedupd_core.shared.fellows import require_all
from dedupd_core.store.container.directory import ContainerDirectory
from dedupd_core.store.container.files import table_numbers
from dedupd_core.store.container.recovery import is_unfinished
from dedupd_core.store.container.scan import Gap, payload_is_intact, scan
from dedupd_core.store.container.table_file import load_table
from dedupd_core.system.files import opened, read_readable
from dedupd_core.system.processes import cores
from dedupd_core.volume.volume import Volume
from jobs.check.deltas import count_dependants, needs_copy, without_base
from jobs.check.invariants import OF_FILES, Finding, Invariant
from jobs.check.losses import losses
from jobs.check.reconciled_set import (
    check_domains,
    check_log,
    check_merges,
    check_partitions,
    check_set,
)
from jobs.check.record_census import RecordCensus
from jobs.check.record_check import (
    PORTION_BYTES,
    CheckedTable,
    Problem,
    check_all,
    problems,
)
from jobs.check.references import count_collected, references
from jobs.frame.job import Job, Report
from jobs.frame.pace import Throttle
from jobs.frame.run import JobRun


@dataclass(slots=True)
class VerifyReport(Report):
    """The findings of a run.

    ``unsettled`` are stubs in the middle of a transition, and ``unsynced_bytes`` the ends of
    containers that never became durable: an interrupted job leaves them, and the next one clears
    them.
    ``quarantined`` are records known to be damaged, but for those that were ``collected``, or lost
    where nobody needed them: their table was lost since. ``files_hit`` have lost bytes for good.
    """

    job: str = "verify"
    outcome: str = "clean"
    containers: int = 0
    records: int = 0
    stored_bytes: int = 0
    copies: int = 0
    stubs: int = 0
    plain_files: int = 0
    logical_bytes: int = 0
    unreferenced_chunks: int = 0
    quarantined: int = 0
    collected: int = 0
    unsettled: int = 0
    unsynced_bytes: int = 0
    files_hit: int = 0
    findings: list[Finding] = field(default_factory=list)
    by_invariant: dict[str, int] = field(default_factory=dict)


class Verify(Job[VerifyReport]):
    """One check of a volume. Changes nothing. Needs the job lock.

    Beside a mount, users may move files meanwhile: then some are looked at twice, or not at all.
    """

    def __init__(self, volume: Volume, run: JobRun, bytes_per_s: float = 0) -> None:
        """``bytes_per_s`` are read at most, 0 for as fast as it goes."""
        super().__init__(volume, run, VerifyReport())
        self._throttle = Throttle(bytes_per_s, run.wait)
        self._known = {kind: RecordCensus() for kind in fmt.COPIES_OF}
        self._without_base: list[int] = []
        self._copied: dict[fmt.Kind, dict[int, dict[int, set[bytes]]]] = {
            kind: {} for kind in fmt.COPIES_OF
        }

    def run(self) -> VerifyReport:
        """Check everything. Raises Cancelled; UnseenMember where a volume of the store is not
        held."""
        require_all(self._volume)
        report = self._report
        for of, kind in fmt.COPIES_OF.items():
            # The copies first: each is compared when what it repeats comes along.
            self._check_containers(kind, of)
            self._check_containers(of, of)
            for record_id in self._known[of].wrong_merges():
                detail = "leads to a record with another fingerprint"
                self._find(Invariant.MERGED_TARGET, show_id(record_id), detail)
        for kind, known in self._known.items():
            report.findings += check_partitions(self._volume, self._run, kind)
            report.findings += check_domains(self._volume, self._run, kind, known)
            report.findings += check_merges(known, self._run)
        self._check_bases()
        report.findings += check_set(self._volume, self._run)
        report.findings += check_log(self._volume)
        self._check_tree()
        return self.report()

    def report(self) -> VerifyReport:
        report = self._report
        report.collected = count_collected(self._volume, self._known)
        report.quarantined = sum(len(known.lost) for known in self._known.values())
        report.quarantined -= report.collected
        report.unreferenced_chunks = self._known[fmt.Kind.CHUNKS].unreferenced()
        report.by_invariant = dict(Counter(f.invariant for f in report.findings))
        report.files_hit = len({f.where for f in report.findings if f.invariant in OF_FILES})
        report.outcome = "damaged" if report.findings else "clean"
        return super().report()

    def _find(self, invariant: Invariant, where: str, detail: str) -> None:
        self._report.findings.append(Finding(invariant, where, detail))

    def _check_containers(self, kind: fmt.Kind, of: fmt.Kind) -> None:
        try:
            fd = os.open(self._volume.directory(kind), os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return  # a volume from before there were second copies
        volume = self._volume
        with ContainerDirectory(fd, kind, volume.space.volume_id, volume.disk) as directory:
            numbers = directory.numbers()
            for number in sorted(set(table_numbers(directory.fd)) - set(numbers)):
                detail = "the container is missing"
                self._find(Invariant.CONTAINER_HEADER, directory.where(number), detail)
            for number in self._run.each(f"{kind.name.lower()} containers", numbers):
                try:
                    checked = self._check_container(directory, number)
                    if checked is not None:
                        self._take_in(kind, of, number, checked)
                except OSError as error:
                    detail = f"cannot be read: {error.strerror}"
                    self._find(Invariant.CONTAINER_RECORDS, directory.where(number), detail)

    def _take_in(self, kind: fmt.Kind, of: fmt.Kind, number: int, checked: CheckedTable) -> None:
        """Take the records of a container into the census, and compare copies with them."""
        known = self._known[of]
        if kind is not of:
            for copy in self._run.checked(checked.of_state(tbl.State.LIVE)):
                copied = self._copied[of].setdefault(container_of(copy.target), {})
                copied.setdefault(ordinal_of(copy.target), set()).add(copy.fingerprint)
                known.add_copy(copy)
                self._report.copies += 1
            return
        known.add_container(number, checked.entries, checked.entries.seed)
        for ordinal, changed in checked.changed.items():
            if changed is None:
                known.forget(make_id(number, ordinal))
            else:
                known.add(make_id(number, ordinal), changed)
        for ordinal, fingerprints in sorted(self._copied[of].get(number, {}).items()):
            entry = checked[ordinal]
            if entry is None or entry.state not in tbl.USABLE:
                continue
            if fingerprints - {entry.fingerprint}:
                detail = "its second copy has different bytes"
                self._find(Invariant.COPY_AGREES, show_id(make_id(number, ordinal)), detail)

    def _check_bases(self) -> None:
        """What leans on a chunk that is not there is not there either."""
        known = self._known[fmt.Kind.CHUNKS]
        gone = set()
        for delta in without_base(self._volume, self._run, known):
            if delta.entry.state == tbl.State.LIVE:
                known.forget(delta.record_id)
                gone.add(delta.record_id)
        with self._volume.containers(fmt.Kind.CHUNKS) as directory:
            wrong = {
                record_id
                for record_id in self._without_base
                if not needs_copy(directory, known, record_id)
            }
        for record_id in sorted(gone | wrong):
            known.forget(record_id)
            detail = "its base cannot be read"
            self._find(Invariant.DELTA_BASE, show_id(record_id), detail)

    def _check_container(self, directory: ContainerDirectory, number: int) -> CheckedTable | None:
        """Check one container; None where it was never finished, or is another one."""
        where = directory.where(number)
        if is_unfinished(directory.fd, number):
            return None
        self._report.containers += 1
        with opened(directory.open_data(number)) as fd:
            try:
                header = fmt.decode_file_header(read_readable(fd, fmt.FILE_HEADER_BYTES, 0), where)
            except Damaged as error:
                self._find(Invariant.CONTAINER_HEADER, where, str(error))
                return None
            if not directory.owns(header, number):
                detail = "the header belongs to another container"
                self._find(Invariant.CONTAINER_HEADER, where, detail)
                return None
            end = size = os.fstat(fd).st_size
            entries = UncheckedEntries(b"", fmt.seed_of(header))
            try:
                mark, table = load_table(directory.fd, header)
                entries = table.resized(mark.synced_count)
                end = min(size, mark.synced_bytes)
                self._check_end(fd, header, mark, size, where)
            except DamagedTable as error:
                self._find(Invariant.TABLE_AGREES, where, str(error))
            found = CheckedTable(directory, number, entries)
            self._check_records(fd, found, end, is_forgeable=header.is_forgeable)
            return found

    def _check_end(
        self, fd: int, header: fmt.FileHeader, mark: tbl.TableHeader, size: int, where: str
    ) -> None:
        """Check the end: bytes after the mark may be torn, before it nothing may be missing."""
        if size < mark.synced_bytes:
            detail = f"{mark.synced_bytes - size} bytes are missing at its end"
            self._find(Invariant.CONTAINER_RECORDS, where, detail)
        end = mark.synced_bytes
        for item in scan(fd, fmt.seed_of(header), end, size):
            if isinstance(item, Gap) or not payload_is_intact(fd, item):
                break
            end = item.end
        self._report.unsynced_bytes += max(0, size - end)

    def _check_records(self, fd: int, found: CheckedTable, end: int, *, is_forgeable: bool) -> None:
        """Check the records. Where there is no table, its entries are those that records imply."""
        entries, start = found.entries, fmt.FILE_HEADER_BYTES
        check = native.store.ContainerCheck(
            fd,
            entries.data,
            seed=entries.seed,
            start=start,
            end=end,
            is_forgeable=is_forgeable,
            algorithm=self._volume.parameters.fingerprint,
            threads=cores(),
            bases=found.directory.bases.native,
        )
        for step in check_all(check, entries.seed, end, PORTION_BYTES, self._throttle.take):
            for first, after, data in check.take_implied():
                entry = tbl.decode_entry(data, entries.seed)
                found.changed.update(dict.fromkeys(range(first, after), entry))
            for problem in step:
                self._problem(problem, found)
        for problem in problems(check.finish(), entries.seed):
            self._problem(problem, found)
        reached = check.reached
        self._without_base += [make_id(found.number, ordinal) for ordinal in reached.without_base]
        self._report.records += reached.records
        self._report.stored_bytes += end - start

    def _problem(self, problem: Problem, found: CheckedTable) -> None:
        is_of_record = problem.invariant in (
            Invariant.RECORD_PAYLOAD,
            Invariant.RECORD_FINGERPRINT,
        )
        name = f"{found.where} record {problem.ordinal}" if is_of_record else found.where
        self._find(problem.invariant, name, problem.detail)
        if problem.ordinal < 0:
            return
        if problem.entry is not None and not is_of_record:
            # A wrong entry costs a scan, and no bytes.
            found.changed[problem.ordinal] = problem.entry
        else:
            found.changed[problem.ordinal] = None

    def _check_tree(self) -> None:
        report, chunks = self._report, self._known[fmt.Kind.CHUNKS]
        self._run.update(phase="stubs", done=0, total=0)
        nodes = self._known[fmt.Kind.RECIPES]
        found = references(self._volume, self._run, chunks, nodes, is_exact=True)
        count_dependants(self._volume, self._run, chunks)
        report.stubs, report.plain_files = found.stubs, found.plain_files
        report.logical_bytes, report.unsettled = found.logical_bytes, found.unsettled
        report.findings += found.findings
        for loss in losses(found, self._run, chunks):
            self._find(loss.invariant, loss.path, loss.detail)
        for known in self._known.values():
            for record_id in sorted(known.relied_on()):
                detail = "only its second copy exists"
                self._find(Invariant.PRIMARY_THERE, show_id(record_id), detail)
