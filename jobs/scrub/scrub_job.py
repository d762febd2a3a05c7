"""The scrub job: finds damage before anybody needs the bytes, and repairs what it can.

It first brings every container to where it can be opened, and every table to where it is complete;
then looks at the records (a quick run at headers and metadata, a full one at every byte); then at
what the tree refers to. Only then it repairs, and what it cannot repair it names, file by file.
Users keep working meanwhile.
"""

import enum
from collections import Counter
from collections.abc import Set
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial

from dedupd_core import native
from dedupd_core.errors import Damaged, DamagedTable, NoSpace
from dedupd_core.failpoint import reach
from dedupd_core.format import container as fmt
from dedupd_core.format import table as tbl
from dedupd_core.format.ids import container_of, ordinal_of, show_id
from dedupd_core.shared.fellows import require_all
from dedupd_core.store.container.directory import ContainerDirectory
from dedupd_core.store.container.files import container_numbers, last_number, table_numbers
from dedupd_core.store.container.record_states import set_states
from dedupd_core.store.container.recovery import is_unfinished
from dedupd_core.store.container.rescue import mend
from dedupd_core.store.container.table_file import Recovered, load_table
from dedupd_core.store.second_copies import all_copies
from dedupd_core.stores.secret_files import made_secret
from dedupd_core.system.paths import explain
from dedupd_core.system.processes import cores
from dedupd_core.volume.container_numbers import ContainerNumbers
from dedupd_core.volume.repair_notes import Note
from dedupd_core.volume.volume import Volume
from jobs.check.deltas import count_dependants, needs_copy, without_base
from jobs.check.invariants import Finding, Invariant
from jobs.check.losses import Loss, losses
from jobs.check.record_census import REFERENCES_MAX, RecordCensus
from jobs.check.references import References, count_collected, references
from jobs.frame.job import Job, Report
from jobs.frame.pace import Throttle
from jobs.frame.run import JobRun
from jobs.repair.file_search import FileSearch
from jobs.repair.repairer import FROM_COPY, FROM_FILE, FROM_TWIN, Repair
from jobs.scrub.record_scrub import QUARANTINED, RecordScrub
from jobs.scrub.redundancy import Redundancy

FINDINGS_KEPT_MAX = 1000
"""In a report; the counts go on."""

CONTAINERS_LOST_MAX = 1024
"""After the last one that is there: a number beyond that is not believed."""


class Depth(enum.StrEnum):
    """How closely a run looks at the payloads of chunks; recipes are always read."""

    QUICK = "quick"
    FULL = "full"


@dataclass(slots=True)
class ScrubReport(Report):
    """What a run did.

    ``findings`` are what was wrong when it began, ``repaired`` how many lost records got their
    bytes back, ``quarantined`` how many are still lost, and ``losses`` what that costs users.
    ``collected`` are records that no file needs and whose tombstones were lost with a table.
    """

    job: str = "scrub"
    outcome: str = "clean"
    depth: str = Depth.QUICK.value
    resumed: bool = False
    left_bytes: int = 0
    """Of containers that later runs look at, because this one was for a share alone."""
    containers: int = 0
    records: int = 0
    read_bytes: int = 0
    raw_bytes: int = 0
    stubs: int = 0
    plain_files: int = 0
    logical_bytes: int = 0
    repaired: dict[str, int] = field(default_factory=dict)
    released: int = 0
    quarantined: int = 0
    collected: int = 0
    copies_written: int = 0
    copies_written_bytes: int = 0
    copies_dropped: int = 0
    copies_missing: int = 0
    findings: list[Finding] = field(default_factory=list)
    by_invariant: dict[str, int] = field(default_factory=dict)
    losses: list[Loss] = field(default_factory=list)
    lost_bytes: int = 0
    files_hit: int = 0
    messages: list[str] = field(default_factory=list)


class Scrub(Job[ScrubReport]):
    """One run over one volume. Needs the volume's job lock; the volume may be mounted."""

    def __init__(
        self,
        volume: Volume,
        run: JobRun,
        depth: Depth = Depth.QUICK,
        bytes_per_s: float | None = None,
        share: float | None = None,
    ) -> None:
        """``bytes_per_s`` takes the place of the policy's ``scrub_rate``. A full run with ``share``
        looks at that part of the records, and at one container at least; the next goes on there."""
        super().__init__(volume, run, ScrubReport(depth=depth.value))
        self._depth = depth
        self._share = share
        self._policy = volume.policy()
        rate = self._policy.scrub_rate_bytes_per_s if bytes_per_s is None else bytes_per_s
        self._throttle = Throttle(rate, run.wait)
        self._counts: Counter[str] = Counter()
        self._checked: RecordScrub | None = None
        self._noted: list[Note] = []
        self._known = {kind: RecordCensus() for kind in fmt.Kind}
        self._directories: dict[fmt.Kind, ContainerDirectory] = {}
        self._threads = self._policy.cores or cores()
        self._numbers = ContainerNumbers(volume)
        self._dictionaries: set[int] = set()

    def run(self) -> ScrubReport:
        """Check and repair everything. Raises Cancelled, NoSpace; resumes where it stopped.
        Raises UnseenMember where a volume of the store is not held."""
        require_all(self._volume)
        made_secret(self._volume.store.base_fd, self._volume.disk)
        with ExitStack() as stack:
            for kind in fmt.Kind:
                self._directories[kind] = self._volume.containers(kind)
                stack.callback(self._directories[kind].close)
            self._repair_all()
            self._recover_all()
            self._check_all()
            tree = self._walk()
            self._repair(tree)
            self._copy(is_complete=not tree.findings)
            self._name_losses(tree)
            self._numbers.note({kind: last_number(self._directories[kind].fd) for kind in fmt.Kind})
        self._volume.repairs.clear(self._noted)
        if self._checked is not None and not self._checked.left_bytes:
            self._checked.progress.clear()
        return self.report()

    def report(self) -> ScrubReport:
        report = self._report
        report.by_invariant = dict(self._counts)
        report.collected = count_collected(self._volume, self._known)
        report.quarantined = sum(len(self._known[kind].lost) for kind in fmt.COPIES_OF)
        report.quarantined -= report.collected
        report.files_hit = len({loss.path for loss in report.losses})
        report.lost_bytes = sum(loss.end - loss.start for loss in report.losses)
        if report.losses:
            report.outcome = "damaged"
        elif self._counts:
            report.outcome = "repaired" if report.quarantined == 0 else "damaged, no file affected"
        return super().report()

    def _find(self, invariant: Invariant, where: str, detail: str) -> None:
        self._counts[invariant.value] += 1
        if len(self._report.findings) < FINDINGS_KEPT_MAX:
            self._report.findings.append(Finding(invariant, where, detail))

    # --- containers and tables ----------------------------------------------------------------

    def _repair_all(self) -> None:
        """Make every container one that can be opened, and see what its table lacks."""
        self._run.update(phase="containers")
        for kind, directory in self._directories.items():
            numbers = {*container_numbers(directory.fd), *table_numbers(directory.fd)}
            for number in sorted(numbers):
                self._run.safe_point()
                self._repair_container(kind, directory, number)

    def _repair_container(
        self, kind: fmt.Kind, directory: ContainerDirectory, number: int, count_min: int = 0
    ) -> None:
        where = directory.where(number)
        try:
            for wrong in mend(directory, number, count_min):
                is_header = "header" in wrong or wrong.endswith("is missing")
                self._find(
                    Invariant.CONTAINER_HEADER if is_header else Invariant.CONTAINER_RECORDS,
                    where,
                    wrong,
                )
            if not is_unfinished(directory.fd, number):
                self._look_at_table(directory, number)
        except (Damaged, OSError) as error:
            self._find(Invariant.CONTAINER_HEADER, where, explain(error))

    def _look_at_table(self, directory: ContainerDirectory, number: int) -> None:
        """Recovery makes tables whole without a word, so this is where it is told."""
        try:
            mark, entries = load_table(directory.fd, directory.header(number))
            damaged = entries.resized(mark.synced_count).damaged()
        except DamagedTable as error:
            self._find(Invariant.TABLE_AGREES, directory.where(number), str(error))
            return
        for ordinal in damaged:
            detail = f"entry {ordinal} is not valid"
            self._find(Invariant.TABLE_AGREES, directory.where(number), detail)

    def _recover_all(self) -> None:
        self._run.update(phase="tables")
        for kind in fmt.Kind:
            with closing(self._numbers.writer(kind)) as writer:
                known = self._known[kind] = RecordCensus()
                writer.recover(partial(self._take_in, known))

    def _take_in(self, known: RecordCensus, found: Recovered) -> None:
        header = found.header
        known.add_container(header.container, found.entries, fmt.seed_of(header))
        self._run.safe_point()

    def _check_all(self) -> None:
        """Look at the records of every container that was not done before an interruption."""
        noted = self._volume.repairs.pending()
        self._run.update(phase="records")
        check = RecordScrub(
            self._volume,
            self._directories,
            self._known,
            self._run,
            self._throttle,
            self._find,
            is_full=self._depth is Depth.FULL,
            threads=self._threads,
        )
        check.run(self._share)
        check.look_at(noted)
        self._checked = check
        self._noted = noted
        report = self._report
        report.containers, report.records = check.containers, check.records
        report.read_bytes, report.raw_bytes = check.read_bytes, check.raw_bytes
        report.released, report.resumed = check.released, check.resumed
        report.left_bytes = check.left_bytes
        for of, kind in fmt.COPIES_OF.items():
            directory = self._directories[kind]
            copies = all_copies(directory.fd, kind, self._volume.space.volume_id)
            for copy in self._run.checked(copies):
                self._known[of].add_copy(copy.entry)
        self._take_out(check.without_base)

    def _take_out(self, found: list[int]) -> None:
        """Count chunks as lost of which the base is: those that are known to lean on such a one,
        and those of ``found`` whose base is there, and yet of no use. Raises Cancelled."""
        known = self._known[fmt.Kind.CHUNKS]
        for delta in without_base(self._volume, self._run, known):
            if delta.record_id not in known.lost:
                lost = delta.entry._replace(state=tbl.State.QUARANTINED)
                known.add(delta.record_id, lost)
                where = show_id(delta.record_id)
                self._find(Invariant.DELTA_BASE, where, "its base cannot be read")
        directory = self._directories[fmt.Kind.CHUNKS]
        for record_id in found:
            entry = directory.entry(record_id)
            is_lost = record_id in known.lost or needs_copy(directory, known, record_id)
            if entry is not None and not is_lost:
                known.add(record_id, entry._replace(state=tbl.State.QUARANTINED))
                detail = "its base depends on another record, or cannot be read"
                self._find(Invariant.DELTA_BASE, show_id(record_id), detail)

    # --- the tree, repairs, copies -------------------------------------------------------------

    def _walk(self) -> References:
        report = self._report
        self._run.update(phase="stubs", done=0, total=0)
        chunks, nodes = self._known[fmt.Kind.CHUNKS], self._known[fmt.Kind.RECIPES]
        tree = self._references(chunks, nodes)
        report.stubs, report.plain_files = tree.stubs, tree.plain_files
        report.logical_bytes = tree.logical_bytes
        for finding in tree.findings:
            self._find(Invariant(finding.invariant), finding.where, finding.detail)
        grown = self._ensure_entries(
            fmt.Kind.CHUNKS, {*tree.missing_chunks, *chunks.relied_on(), *_unknown_ends(chunks)}
        ) | self._ensure_entries(
            fmt.Kind.RECIPES, {*tree.missing_nodes, *nodes.relied_on(), *_unknown_ends(nodes)}
        )
        if grown:
            self._recover_all()
            self._take_out([])
            chunks, nodes = self._known[fmt.Kind.CHUNKS], self._known[fmt.Kind.RECIPES]
            self._references(chunks, nodes)
        known = self._known[fmt.Kind.CHUNKS]
        self._dictionaries = count_dependants(self._volume, self._run, known)
        return tree

    def _references(self, chunks: RecordCensus, nodes: RecordCensus) -> References:
        return references(self._volume, self._run, chunks, nodes, threads=self._threads)

    def _ensure_entries(self, kind: fmt.Kind, missing: set[int]) -> bool:
        """Give records that are referred to, and that no table knows, an entry to be repaired."""
        known, directory = self._known[kind], self._directories[kind]
        wanted: dict[int, int] = {}
        for record_id in missing:
            number, count = container_of(record_id), ordinal_of(record_id) + 1
            if number and known.count(number) < count <= fmt.ORDINALS_MAX:
                wanted[number] = max(wanted.get(number, 0), count)
        last = max(known.numbers(), default=0)
        for number, count in sorted(wanted.items()):
            self._run.safe_point()
            if number <= last + CONTAINERS_LOST_MAX:
                self._repair_container(kind, directory, number, count)
        return bool(wanted)

    def _repair(self, tree: References) -> None:
        self._run.update(phase="repairing")
        done = Counter(dict.fromkeys((FROM_TWIN, FROM_COPY, FROM_FILE), 0))
        for kind in fmt.COPIES_OF:
            known = self._known[kind]
            if not known.lost:
                continue
            expected = tree.missing_chunks if kind is fmt.Kind.CHUNKS else {}
            with (
                self._numbers.recovered(kind) as writer,
                closing(Repair(self._volume, self._run, kind, writer, known, expected)) as repair,
            ):
                self._repair_bases_first(repair, tree, kind)
            done.update(repair.repaired)
        self._report.repaired = dict(done)

    def _repair_bases_first(self, repair: Repair, tree: References, kind: fmt.Kind) -> None:
        """Repair, and then what leans on others: with these, most of it is sound again. What a
        dictionary was used for comes before the differences to it."""
        known = self._known[kind]
        leaning = {record_id: entry for record_id, entry in known.lost.items() if entry.leans}
        for record_id in leaning:
            del known.lost[record_id]
        if known.lost:
            self._repair_kind(repair, tree, kind)
        for codec in (fmt.Codec.DICTIONARY, fmt.Codec.DELTA):
            own = {record_id: entry for record_id, entry in leaning.items() if entry.codec == codec}
            self._repair_leaning(repair, tree, kind, own)

    def _repair_leaning(
        self, repair: Repair, tree: References, kind: fmt.Kind, leaning: dict[int, tbl.TableEntry]
    ) -> None:
        known, directory = self._known[kind], self._directories[kind]
        for record_id, entry in leaning.items():
            self._run.safe_point()
            known.add(record_id, entry)
            if self._is_sound_again(record_id, entry):
                said = directory.entry(record_id)
                if said is not None and said.state == tbl.State.QUARANTINED:
                    base = directory.base_of(record_id, said)
                    set_states(
                        directory,
                        {record_id: said._replace(state=tbl.State.LIVE, target=base)},
                    )
                    self._report.released += 1
                known.add(record_id, entry._replace(state=tbl.State.LIVE))
        if leaning.keys() & known.lost.keys():
            self._repair_kind(repair, tree, kind)
            self._quarantine(directory, leaning.keys() & known.lost.keys())

    def _is_sound_again(self, record_id: int, entry: tbl.TableEntry) -> bool:
        try:
            _, raw = self._volume.store.chunk_records.read_itself(record_id)
        except (Damaged, OSError):
            return False
        algorithm = self._volume.parameters.fingerprint
        return native.hashing.fingerprint(raw, algorithm) == entry.fingerprint

    def _quarantine(self, directory: ContainerDirectory, lost: Set[int]) -> None:
        """Have the tables say that chunks are lost with those that they lean on: when optimize
        meets their bytes again, it lets them lead there."""
        changes: dict[int, tbl.TableEntry] = {}
        for record_id in lost:
            entry = directory.entry(record_id)
            if entry is not None and entry.state == tbl.State.LIVE:
                changes[record_id] = entry._replace(state=tbl.State.QUARANTINED)
        set_states(directory, changes)
        if changes:
            reach(QUARANTINED)

    def _repair_kind(self, repair: Repair, tree: References, kind: fmt.Kind) -> None:
        repair.from_twins()
        repair.from_copies()
        repair.from_merged()
        lost = [i for i in repair.lost if self._known[kind].references(i)]
        if lost and kind is fmt.Kind.CHUNKS:
            for member in tree.trees:
                search = FileSearch(member.volume, self._run, self._throttle, repair, self._threads)
                search.search(member.suspects)

    def _copy(self, *, is_complete: bool) -> None:
        self._run.update(phase="second copies")
        threshold = self._policy.redundancy_threshold or REFERENCES_MAX
        where = self._volume, self._run, self._throttle
        for kind, copies_kind in fmt.COPIES_OF.items():
            try:
                with (
                    self._numbers.recovered(copies_kind) as writer,
                    closing(Redundancy(*where, kind, writer, self._report)) as copies,
                ):
                    if kind is fmt.Kind.CHUNKS:
                        least, always = threshold + 1, self._dictionaries
                    else:
                        least, always = 1, set[int]()
                    copies.update(self._known[kind], least, always, is_complete=is_complete)
            except NoSpace as error:
                self._report.messages.append(f"second copies: {error}")

    def _name_losses(self, tree: References) -> None:
        self._run.update(phase="listing the lost files")
        for loss in losses(tree, self._run, self._known[fmt.Kind.CHUNKS]):
            self._report.losses.append(loss)
            self._find(loss.invariant, loss.path, loss.detail)


def _unknown_ends(known: RecordCensus) -> set[int]:
    """Records that merged ones lead to and no table knows: the merged ones may have the bytes."""
    ends = map(known.end_of, known.merged)
    return set(filter(known.is_unknown, ends))
