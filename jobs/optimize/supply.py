"""The files that a run takes, in the order in which they are taken: partition by partition, and by
domains where the policy has several."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from dedupd_core.config.policy import Policy, RestoreMode
from dedupd_core.format.domain import PartitionKey
from dedupd_core.volume.domains import Domains
from dedupd_core.volume.partition_map import type_of
from dedupd_core.volume.volume import Volume
from jobs.busy.busy_files import BusyFiles
from jobs.frame.run import JobRun
from jobs.optimize.file_reader import Work
from jobs.optimize.judging import Judging
from jobs.optimize.order import Order
from jobs.optimize.partitioning import Partitioning
from jobs.optimize.report import OptimizeReport
from jobs.tree.candidate_cache import CandidateCache, Row, row_of, size_of, wanted
from jobs.tree.candidates import (
    Candidate,
    Judged,
    PlainFiles,
    Skipped,
    candidates,
    found_candidates,
)
from jobs.tree.file_classes import Choice

Turn = tuple[PartitionKey, Iterator[Work]]
"""A partition, and files that go there."""


class Supply:
    """What there is to be done: found by a walk, recalled, or offered by the mount.

    ``skipped`` are the files that were passed over, ``unsettled`` and ``mostly_local`` stubs as in
    :class:`.Skipped`.
    """

    def __init__(
        self,
        volume: Volume,
        policy: Policy,
        below: bytes,
        run: JobRun,
        judging: Judging,
        partitioning: Partitioning,
        report: OptimizeReport,
        memory_bytes: int,
    ) -> None:
        """``memory_bytes``: for the candidates that are kept."""
        self._volume = volume
        self._policy = policy
        self._below = below
        self._run = run
        self._judging = judging
        self._partitioning = partitioning
        self._report = report
        self._memory_bytes = memory_bytes
        self._restores = policy.restore_mode is RestoreMode.ON
        self._judged = Judged(judging.ledger)
        self._found = CandidateCache(memory_bytes)
        self._order = Order(judging.classes, largest_first=self._restores)
        self._domains = Domains.of_volume(volume, policy)
        self.busy = BusyFiles(volume, policy, below)
        self.skipped = Skipped()
        self.unsettled: list[bytes] = []
        self.mostly_local: list[bytes] = []

    def count(self) -> bool:
        """Whether there is anything to do; a quiet volume needs neither store nor index."""
        run, judging = self._run, self._judging
        run.update(phase="scanning")
        total = files = 0
        skipped, errors = Skipped(), list[str]()
        for found in self._walk(skipped, errors):
            total += found.work_bytes if isinstance(found, Candidate) else found.size_bytes
            files += 1
            self._partitioning.expect(found)
            if not self._domains.are_apart:
                self._order.expect(found)
            self._found.add(found)
            run.update(total=total)
        self.unsettled, self.mostly_local = skipped.unsettled, skipped.mostly_local
        judging.walk_is_whole = not (self._below or errors)
        if not self._walks_again:
            self.skipped = skipped
            run.findings.add(*errors)
        pending = self._partitioning.expect_all(self.busy.found()) or judging.is_pending
        return bool(files or pending or skipped.unsettled or skipped.mostly_local)

    @property
    def _walks_again(self) -> bool:
        """Whether what was found is not all, or not as it will be once files are settled."""
        return not self._found.is_complete or bool(self.unsettled or self.mostly_local)

    def turns(self, partitions: list[PartitionKey]) -> Iterator[Turn]:
        """The files of one round, some for each of ``partitions``: what was found, what was
        recalled, or what busy files offer. With several domains, these say where the files go.

        The files of a turn are to be taken before the next turn is asked for.
        """
        if self._domains.are_apart:
            yield from self._turns_by_domain()
            return
        for at, key in enumerate(partitions):
            yield key, self._of_partition(key.number, at == 0, len(partitions) == 1)

    def _walk(self, skipped: Skipped, errors: list[str]) -> Iterator[PlainFiles | Candidate]:
        where = self._volume, self._policy, self._below
        search = candidates if self._restores else found_candidates
        for found in search(*where, skipped, errors, self._run.safe_point, self._judged):
            if not self.busy.awaits(found):
                yield found

    def _walk_to_recall(self) -> Iterator[Candidate]:
        """Files that were left, and have chunks in common with others."""
        check, judged = self._run.safe_point, Judged(recall=self._judging.recall)
        where = self._volume, self._policy, b""
        for found in candidates(*where, Skipped(), [], check, judged):
            if found.attribute is None:
                yield found

    # --- one domain -----------------------------------------------------------------------------

    def _of_partition(self, number: int, is_first: bool, is_only: bool) -> Iterator[Work]:
        is_in = partial(self._partitioning.is_in, partition=number)
        if self.busy.is_turn:
            yield from self.busy.offers(lambda path: is_in(type_of(path)))
            return
        if self._judging.is_recall:
            for found in self._walk_to_recall():
                if is_in(type_of(found.path)):
                    self._report.files_recalled += 1
                    yield self._work(found)
            return
        wanted_types = None if is_only else is_in
        for at, choice in enumerate(self._order.choices(wanted_types)):
            if self._walks_again:
                yield from self._walked(is_in, choice, is_first and at == 0)
                continue
            for one in self._found.through(wanted_types, self._policy.compresses_type, choice):
                yield self._work(one) if isinstance(one, Candidate) else one

    def _work(self, candidate: Candidate) -> Work:
        return candidate, self._policy.compresses(candidate.path)

    def _walked(
        self, is_in: Callable[[str], bool], choice: Choice, is_first: bool
    ) -> Iterator[Work]:
        """Those of a choice, by another walk: the first one has found more than is kept."""
        errors: list[str] = []
        skipped = self.skipped if is_first else Skipped()
        for found in self._walk(skipped, errors):
            for one in (found,) if isinstance(found, Candidate) else found.candidates():
                path, identity = one.path, one.identity
                if choice.takes(path, identity.inode, identity.size) and is_in(type_of(path)):
                    yield self._work(one)
        if is_first:
            self._run.findings.add(*errors)

    # --- several domains ------------------------------------------------------------------------

    def _turns_by_domain(self) -> Iterator[Turn]:
        if self.busy.is_turn:
            yield from self._offers_by_domain()
            return
        for domain, rows in slices(self._rows(), self._domains, self._memory_bytes):
            yield self._partitioning.open_in(domain), self._through(rows)

    def _rows(self) -> Iterator[Row]:
        if self._judging.is_recall:
            for found in self._walk_to_recall():
                self._report.files_recalled += 1
                yield row_of(found)
        elif not self._walks_again:
            yield from self._found.rows()
        else:
            errors: list[str] = []
            yield from map(row_of, self._walk(self.skipped, errors))
            self._run.findings.add(*errors)

    def _through(self, rows: list[Row]) -> Iterator[Work]:
        for choice in self._order.choices():
            for one in wanted(rows, None, self._policy.compresses_type, choice):
                yield self._work(one) if isinstance(one, Candidate) else one

    def _offers_by_domain(self) -> Iterator[Turn]:
        found = {self._domain_of_busy(path) for path in self.busy.waiting()}
        for domain in sorted(one for one in found if one is not None):
            is_in = partial(self._is_busy_in, domain)
            yield self._partitioning.open_in(domain), self.busy.offers(is_in)

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
