"""The compact job: frees the space of garbage in containers (docs/design/collection.md)."""

from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import NamedTuple

from dedupd_core import native
from dedupd_core.config.policy import SharedExtents
from dedupd_core.errors import DamagedChunk, DamagedContainer, NoSpace
from dedupd_core.format.container import Kind, seed_of
from dedupd_core.store.container.compaction import compact, release, remove_remains
from dedupd_core.store.container.container import container_name
from dedupd_core.store.container.directory import ContainerDirectory
from dedupd_core.store.container.punching import allocated_bytes
from dedupd_core.store.container.recovery import recover_or_discard
from dedupd_core.store.container.table_file import Recovered
from dedupd_core.store.garbage import GAIN_BYTES_MIN, Weight, weigh
from dedupd_core.stores.secret_files import rotate_secret
from dedupd_core.system.files import opened
from dedupd_core.units import format_size
from dedupd_core.volume.volume import Volume
from jobs.compact.space_reclaimer import SpaceReclaimer, keep_last_bytes, kept_open, notify_readers
from jobs.frame.job import FileReport, Job
from jobs.frame.run import JobRun


@dataclass(slots=True)
class CompactReport(FileReport):
    """The results of a run. Bytes are those of the blocks of container files.

    ``punched`` counts records whose blocks were freed inside their container.
    """

    job: str = "compact"
    containers: int = 0
    stored_bytes: int = 0
    dead_bytes: int = 0
    rewritten: int = 0
    removed: int = 0
    punched: int = 0
    copied_bytes: int = 0
    freed_bytes: int = 0
    below_threshold: int = 0
    left_for_lack_of_space: int = 0
    left_shared: int = 0


class CompactionCandidate(NamedTuple):
    """A container that is worth a rewrite."""

    kind: Kind
    number: int
    weight: Weight

    @property
    def cost(self) -> float:
        """Return the bytes to copy per freed byte."""
        weight = self.weight
        return 0.0 if weight.is_dead else weight.needed_bytes / max(1, weight.gain_bytes)


class Compact(Job[CompactReport]):
    """One compaction of one volume. Needs the volume's job lock; the volume may be mounted."""

    def __init__(
        self, volume: Volume, run: JobRun, *, dry_run: bool = False, rekey: bool = False
    ) -> None:
        """``rekey``: give the store's secret a new key, and rewrite all containers, so that their
        seeds use the new key."""
        super().__init__(volume, run, CompactReport())
        self._dry_run = dry_run
        self._rekey = rekey
        policy = volume.policy()
        self._dead_min = policy.compaction_min_dead
        self._leaves_shared = policy.compaction_shared is SharedExtents.SKIP
        self._room = volume.store_room()

    def run(self) -> CompactReport:
        """Rewrite the containers above the policy's limit, the cheapest first. Raises Cancelled.

        If space is low, containers that fit go first; each frees more room.
        """
        if not self._dry_run:
            if self._rekey:
                rotate_secret(self._volume.store.base_fd, self._volume.disk)
            self._reclaim()
        candidates = [c for kind in Kind for c in self._candidates(kind)]
        total = sum(0 if c.weight.is_dead else c.weight.needed_bytes for c in candidates)
        self._run.update(phase="compacting", done=0, total=total)
        while candidates and not self._dry_run:
            self._run.safe_point()
            fitting = [c for c in candidates if self._has_room(c)]
            if not fitting:
                self._leave(candidates)
                break
            chosen = min(fitting, key=lambda candidate: candidate.cost)
            candidates.remove(chosen)
            self._compact(chosen)
        return self.report()

    def _candidates(self, kind: Kind) -> list[CompactionCandidate]:
        """Weigh every container of a kind."""
        found, report = [], self._report
        with self._volume.containers_to_empty(kind) as directory:
            for number in self._run.each(f"measuring {kind.name.lower()}", directory.numbers()):
                state = self._recovered(directory, number)
                if state is None:
                    continue
                weight = self._weight(directory, state)
                report.containers += 1
                report.stored_bytes += weight.size_bytes
                report.dead_bytes += max(0, weight.gain_bytes)
                if self._is_worth_it(kind, number, weight) and not self._is_left(
                    directory, state, weight
                ):
                    found.append(CompactionCandidate(kind, number, weight))
        return found

    def _reclaim(self) -> None:
        """Bring every container into a known state, and free what needs no copy."""
        for kind in Kind:
            with self._volume.containers_to_empty(kind) as directory:
                remove_remains(directory)
                for number in self._run.each(f"{kind.name.lower()} tables", directory.numbers()):
                    with suppress(DamagedContainer):  # reported when it is weighed
                        recover_or_discard(directory, number)
        SpaceReclaimer(self._volume, self._run, self._report).reclaim()

    @staticmethod
    def _weight(directory: ContainerDirectory, state: Recovered) -> Weight:
        """Weigh a container by its allocated blocks: punched blocks are no longer garbage."""
        taken_bytes = allocated_bytes(directory.stat(state.header.container))
        return weigh(state.entries.data, seed_of(state.header), taken_bytes)

    def _recovered(self, directory: ContainerDirectory, number: int) -> Recovered | None:
        """Return None if scrub must check the container first, or it was never started."""
        try:
            return recover_or_discard(directory, number)
        except DamagedContainer as error:
            self._run.findings.add(f"{directory.kind.name.lower()}: {error}")
            return None

    def _is_worth_it(self, kind: Kind, number: int, weight: Weight) -> bool:
        if weight.gain_bytes < GAIN_BYTES_MIN and not self._rekey:
            return False
        if not (weight.is_worth_it(self._dead_min) or self._rekey):
            self._report.below_threshold += 1
            return False
        if weight.quarantined:
            self._run.findings.add(
                f"{container_name(kind, number)}: skipped: {weight.quarantined} of its records are"
                " quarantined; run `dedupd run scrub`"
            )
            return False
        return True

    def _is_left(self, directory: ContainerDirectory, state: Recovered, weight: Weight) -> bool:
        """Return whether a rewrite would free nothing now, and the policy postpones it.

        Snapshots of the file system below keep the old blocks, so the new ones need extra space.
        """
        if not self._leaves_shared or self._rekey:
            return False
        with opened(directory.open_data(state.header.container)) as fd:
            kept_bytes = native.system.shared_bytes(fd, state.end)
        is_left = kept_bytes > weight.size_bytes - weight.needed_bytes
        self._report.left_shared += is_left
        return is_left

    def _has_room(self, candidate: CompactionCandidate) -> bool:
        if candidate.weight.is_dead:
            return True
        return candidate.weight.room_bytes <= self._room.left_bytes

    def _leave(self, candidates: list[CompactionCandidate]) -> None:
        self._report.left_for_lack_of_space = len(candidates)
        least = min(candidate.weight.room_bytes for candidate in candidates)
        self._run.findings.add(
            f"{len(candidates)} containers are skipped: the smallest needs {format_size(least)} of"
            " free space while it is rewritten"
        )

    def _compact(self, candidate: CompactionCandidate) -> None:
        kind, number, weight = candidate
        volume, report, run = self._volume, self._report, self._run
        before = run.progress.done
        with ExitStack() as stack:
            directory = stack.enter_context(volume.containers_to_empty(kind))
            state = self._recovered(directory, number)
            if state is None:
                return
            stack.enter_context(kept_open(directory, number))
            try:
                keep_last_bytes(volume, run, directory, state)
                if weight.is_dead and len(state.entries.data) > self._room.left_bytes:
                    state = release(directory, state)
                size = compact(directory, state, lambda done: run.step(before + done))
                report.rewritten += 1
                report.copied_bytes += size
            except (DamagedChunk, NoSpace) as error:
                if isinstance(error, DamagedChunk):
                    # A quick scrub would not check it otherwise.
                    volume.repairs.add(kind, error.chunk_id)
                run.findings.add(f"{kind.name.lower()}: {error}")
                return
            report.freed_bytes += weight.size_bytes - size
            notify_readers(volume, kind, number)
