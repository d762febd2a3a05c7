"""The plan of a run: which files it takes, and in which order. Partition by partition, and by
domains where the policy has several."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from dedupd_core.config.memory_budget import optimize_shares
from dedupd_core.config.policy import Policy, RestoreMode
from dedupd_core.format.domain import PartitionKey
from dedupd_core.volume.domains import Domains
from dedupd_core.volume.partition_map import type_of
from dedupd_core.volume.volume import Volume
from jobs.frame.run import JobRun
from jobs.optimize.buffers import FileTask, Work
from jobs.optimize.busy_files import BusyFiles
from jobs.optimize.judgements import Judgements
from jobs.optimize.optimize_report import OptimizeReport
from jobs.optimize.order import Order
from jobs.optimize.partitioning import Partitioning
from jobs.tree.candidate_cache import CandidateCache, Row, chosen_work, row_of, size_of
from jobs.tree.candidates import (
    Candidate,
    JudgedFiles,
    PlainFiles,
    SkippedFiles,
    candidates,
    found_candidates,
)
from jobs.tree.file_classes import Choice

Turn = tuple[PartitionKey, Iterator[Work]]
"""A partition, and files that go there."""


class OptimizePlan:
    """What there is to be done: found by a walk, recalled, or offered by the mount.

    ``skipped`` are the files that were passed over, ``unsettled`` and ``mostly_local`` stubs as in
    :class:`.SkippedFiles`. ``partitions`` of the volume's domain get something.
    """

    def __init__(
        self,
        volume: Volume,
        policy: Policy,
        below: bytes,
        run: JobRun,
        judgements: Judgements,
        report: OptimizeReport,
    ) -> None:
        self._volume = volume
        self._policy = policy
        self._below = below
        self._run = run
        self._judgements = judgements
        self._report = report
        self._memory_bytes = optimize_shares(policy.memory_bytes, 0).candidates_bytes
        """For the candidates that are kept."""
        self._restores = policy.restore_mode is RestoreMode.ON
        self._judged = JudgedFiles(judgements.ledger)
        self._candidates = CandidateCache(self._memory_bytes)
        self._order = Order(judgements.classes, largest_first=self._restores)
        self._domains = Domains.of_volume(volume, policy)
        self.partitioning = Partitioning(volume, policy)
        self.partitions: list[PartitionKey] = []
        self.busy = BusyFiles(volume, policy, below)
        self.skipped = SkippedFiles()
        self.unsettled: list[bytes] = []
        self.mostly_local: list[bytes] = []

    def compute(self) -> bool:
        """Walk, and assign the files to partitions. Return whether there are any: an idle volume
        needs neither store nor index."""
        has_work = self._walk_once()
        if has_work:
            self._run.update(phase="loading the index")
            self.partitions = self.partitioning.plan()
        return has_work

    def _walk_once(self) -> bool:
        run, judgements = self._run, self._judgements
        run.update(phase="scanning")
        total = files = 0
        skipped, errors = SkippedFiles(), list[str]()
        for found in self._walk(skipped, errors):
            total += found.work_bytes if isinstance(found, Candidate) else found.size_bytes
            files += 1
            self.partitioning.expect(found)
            if not self._domains.are_apart:
                self._order.expect(found)
            self._candidates.add(found)
            run.update(total=total)
        self.unsettled, self.mostly_local = skipped.unsettled, skipped.mostly_local
        judgements.walk_is_whole = not (self._below or errors)
        if not self._walks_again:
            self.skipped = skipped
            run.findings.add(*errors)
        pending = self.partitioning.expect_all(self.busy.found()) or judgements.is_pending
        return bool(files or pending or skipped.unsettled or skipped.mostly_local)

    @property
    def _walks_again(self) -> bool:
        """Whether what was found is not all, or not as it will be once files are settled."""
        return not self._candidates.is_complete or bool(self.unsettled or self.mostly_local)

    def turns(self) -> Iterator[Turn]:
        """The files of one round, some for each of the ``partitions``: what was found, what was
        recalled, or what busy files offer. With several domains, these say where the files go.

        The files of a turn are to be taken before the next turn is asked for.
        """
        if self._domains.are_apart:
            yield from self._turns_by_domain()
            return
        for at, key in enumerate(self.partitions):
            yield key, self._of_partition(key.number, at == 0, len(self.partitions) == 1)

    def _walk(self, skipped: SkippedFiles, errors: list[str]) -> Iterator[PlainFiles | Candidate]:
        search = candidates if self._restores else found_candidates
        for found in search(
            self._volume,
            self._policy,
            self._below,
            skipped,
            errors,
            self._run.safe_point,
            self._judged,
        ):
            if not self.busy.defers(found):
                yield found

    def _walk_to_recall(self) -> Iterator[Candidate]:
        """Files that were left, and have chunks in common with others."""
        check, judged = self._run.safe_point, JudgedFiles(recall=self._judgements.recall)
        for found in candidates(self._volume, self._policy, b"", SkippedFiles(), [], check, judged):
            if found.attribute is None:
                yield found

    # --- one domain -----------------------------------------------------------------------------

    def _of_partition(self, number: int, is_first: bool, is_only: bool) -> Iterator[Work]:
        is_in = partial(self.partitioning.is_in, partition=number)
        if self.busy.is_turn:
            offers = self.busy.offers(lambda path: is_in(type_of(path)))
            yield from map(FileTask.of_busy, offers)
            return
        if self._judgements.is_recall:
            for found in self._walk_to_recall():
                if is_in(type_of(found.path)):
                    self._report.files_recalled += 1
                    yield self._task(found)
            return
        wanted_types = None if is_only else is_in
        for at, choice in enumerate(self._order.choices(wanted_types)):
            if self._walks_again:
                yield from self._walked(is_in, choice, is_first and at == 0)
                continue
            compresses = self._policy.compresses_type
            for work in self._candidates.through(wanted_types, compresses, choice):
                yield self._task(work) if isinstance(work, Candidate) else work

    def _task(self, candidate: Candidate) -> FileTask:
        return FileTask.whole(candidate, self._policy.compresses(candidate.path))

    def _walked(
        self, is_in: Callable[[str], bool], choice: Choice, is_first: bool
    ) -> Iterator[Work]:
        """Those of a choice, by another walk: the first one has found more than is kept."""
        errors: list[str] = []
        skipped = self.skipped if is_first else SkippedFiles()
        for found in self._walk(skipped, errors):
            for candidate in (found,) if isinstance(found, Candidate) else found.candidates():
                path, identity = candidate.path, candidate.identity
                if choice.takes(path, identity.inode, identity.size) and is_in(type_of(path)):
                    yield self._task(candidate)
        if is_first:
            self._run.findings.add(*errors)

    # --- several domains ------------------------------------------------------------------------

    def _turns_by_domain(self) -> Iterator[Turn]:
        if self.busy.is_turn:
            yield from self._offers_by_domain()
            return
        for domain, rows in slices(self._rows(), self._domains, self._memory_bytes):
            yield self.partitioning.open_in(domain), self._through(rows)

    def _rows(self) -> Iterator[Row]:
        if self._judgements.is_recall:
            for found in self._walk_to_recall():
                self._report.files_recalled += 1
                yield row_of(found)
        elif not self._walks_again:
            yield from self._candidates.rows()
        else:
            errors: list[str] = []
            yield from map(row_of, self._walk(self.skipped, errors))
            self._run.findings.add(*errors)

    def _through(self, rows: list[Row]) -> Iterator[Work]:
        for choice in self._order.choices():
            for work in chosen_work(rows, None, self._policy.compresses_type, choice):
                yield self._task(work) if isinstance(work, Candidate) else work

    def _offers_by_domain(self) -> Iterator[Turn]:
        domains = map(self._domain_of_busy, self.busy.waiting())
        for domain in sorted({domain for domain in domains if domain is not None}):
            offers = self.busy.offers(partial(self._is_busy_in, domain))
            yield self.partitioning.open_in(domain), map(FileTask.of_busy, offers)

    def _is_busy_in(self, domain: bytes, path: bytes) -> bool:
        return self._domain_of_busy(path) == domain

    def _domain_of_busy(self, path: bytes) -> bytes | None:
        owner = self.busy.owner(path)
        return None if owner is None else self._domains.of(path, owner)


def slices(
    rows: Iterable[Row], domains: Domains, bytes_max: int
) -> Iterator[tuple[bytes, list[Row]]]:
    """Rows by domain, as many at a time as fit into memory: a domain may come several times."""
    found: dict[bytes, list[Row]] = {}
    size = 0
    for row in rows:
        found.setdefault(domains.of(row[0], row[-1]), []).append(row)
        size += size_of(row)
        if size >= bytes_max:
            yield from sorted(found.items())
            found, size = {}, 0
    yield from sorted(found.items())
