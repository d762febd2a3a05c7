"""Registers a volume again whose state differs from its shared store's record, after checks.

The volume was moved, or the volume or the store was restored from an older copy. Then its stubs may
name collected records, which are lost, or garbage that still exists. Such garbage becomes live
again before the store registers the volume, so that no job deletes it.
"""

from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from dedupd_core.errors import DamagedContainer, NotAVolume, UnseenMember, UsageError
from dedupd_core.format.container import COPIES_OF, Kind, seed_of
from dedupd_core.format.ids import make_id
from dedupd_core.format.table import State
from dedupd_core.shared.fellows import opened_member
from dedupd_core.store.container.directory import ContainerDirectory
from dedupd_core.store.container.record_states import revive
from dedupd_core.store.container.recovery import recover_or_discard
from dedupd_core.store.second_copies import all_copies
from dedupd_core.stores.membership import put_membership
from dedupd_core.stores.shared_directory import SharedDirectory
from dedupd_core.volume.volume import Volume
from jobs.check.deltas import count_dependants
from jobs.check.losses import Loss, losses
from jobs.check.record_census import RecordCensus
from jobs.check.references import References, references
from jobs.frame.job import FileReport, Job
from jobs.frame.run import JobRun


@dataclass(slots=True)
class RejoinReport(FileReport):
    """The results of a run. ``revived`` records were garbage, and are needed again."""

    job: str = "rejoin"
    stubs: int = 0
    plain_files: int = 0
    revived: int = 0
    losses: list[Loss] = field(default_factory=list)


class Rejoin(Job[RejoinReport]):
    """Takes all necessary locks; the volume may be mounted."""

    def __init__(self, volume: Volume, run: JobRun, *, accepts_losses: bool = False) -> None:
        super().__init__(volume, run, RejoinReport())
        self._accepts_losses = accepts_losses
        self._known = {kind: RecordCensus() for kind in COPIES_OF}
        self._orphans: dict[Kind, dict[int, list[int]]] = {kind: {} for kind in COPIES_OF}

    def run(self) -> RejoinReport:
        """Check all records that the volume needs, and register it. Raises Busy, Cancelled, and
        UsageError if the volume has its own store, or is a copy of a volume that the store sees."""
        shared, report = self._volume.shared, self._report
        if shared is None:
            raise NotAVolume(f"{self._volume.root}: is not on a shared store")
        with self._volume.tree_lock(), shared.job_lock():
            self._refuse_copy(shared)
            with ExitStack() as files:
                for kind in COPIES_OF:
                    directory = files.enter_context(self._volume.containers(kind))
                    self._take_in(kind, directory)
                found = self._walk()
                report.losses = list(losses(found, self._run, self._known[Kind.CHUNKS]))
                if self._run.findings.count:
                    report.outcome = "unchanged: see the messages"
                elif report.losses and not self._accepts_losses:
                    report.outcome = (
                        "unchanged: chunks of files are missing; restore these files from a"
                        " backup, or use --accept-losses"
                    )
                else:
                    self._revive(files)
                    self._record(shared)
        return self.report()

    def _refuse_copy(self, shared: SharedDirectory) -> None:
        volume = self._volume
        member = shared.members().get(volume.parameters.uuid)
        if member is None or member.root == volume.identity.root:
            return
        try:
            opened_member(shared, member).close()
        except UnseenMember:
            return
        raise UsageError(
            f"{volume.root}: is a copy of {member.root}, which exists and is on the store"
            f" {shared.path}; only one of them can be a volume"
        )

    def _take_in(self, kind: Kind, directory: ContainerDirectory) -> None:
        """Read all records of a kind, their second copies, and which records are garbage."""
        known = self._known[kind]
        for number in directory.numbers():
            self._run.safe_point()
            try:
                state = recover_or_discard(directory, number)
            except DamagedContainer as error:
                self._run.findings.add(f"{error}; run `dedupd run scrub` first")
                continue
            if state is None:
                continue
            known.add_container(number, state.entries, seed_of(state.header))
            states = state.entries.states
            orphans = [at for at, own in enumerate(states) if own == State.ORPHANED]
            if orphans:
                self._orphans[kind][number] = orphans
        of = COPIES_OF[kind]
        with self._volume.containers(of) as copies:
            for copy in self._run.checked(all_copies(copies.fd, of, directory.volume_id)):
                known.add_copy(copy.entry)

    def _walk(self) -> References:
        volume, report, chunks = self._volume, self._report, self._known[Kind.CHUNKS]
        self._run.update(phase="stubs")
        nodes = self._known[Kind.RECIPES]
        found = references(volume, self._run, chunks, nodes, is_exact=True)
        count_dependants(volume, self._run, chunks)
        report.stubs, report.plain_files = found.stubs, found.plain_files
        for finding in found.findings:
            self._run.findings.add(f"{finding.where}: {finding.detail}")
        return found

    def _revive(self, files: ExitStack) -> None:
        """Make garbage that the volume needs live again, durably."""
        for kind, by_container in self._orphans.items():
            directory = files.enter_context(self._volume.containers(kind))
            known = self._known[kind]
            for number, ordinals in by_container.items():
                needed = [at for at in ordinals if known.references(make_id(number, at))]
                if needed:
                    revive(directory, number, needed)
                    self._report.revived += len(needed)

    def _record(self, shared: SharedDirectory) -> None:
        volume = self._volume
        identity = volume.identity
        membership = identity.membership()
        if membership.name != shared.path:
            put_membership(volume.base_fd, replace(membership, name=shared.path), volume.disk)
        shared.put(identity.as_member(membership.token, has_stubs=self._report.stubs > 0))
        shared.admit([identity])
        self._report.outcome = f"registered with its store {shared.path}"
