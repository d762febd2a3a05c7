"""The partitions of a volume in a job: what each holds, how much is to come, and where it goes."""

from collections.abc import Sequence
from dataclasses import asdict

from dedupd_core.config.memory_budget import capacity, fitting, hooks_share, index_bytes, planned
from dedupd_core.config.policy import DedupDomain, Policy
from dedupd_core.format.container import Kind
from dedupd_core.format.domain import NOWHERE, PartitionKey
from dedupd_core.store.chunk_index import IndexCounters
from dedupd_core.store.container.table_totals import entries_by_partition
from dedupd_core.system.file_system import rotates
from dedupd_core.system.files import opened
from dedupd_core.volume.partition_map import (
    TYPES_MAX,
    PartitionMap,
    load_map,
    plan,
    save_map,
    type_of,
    type_of_suffix,
)
from dedupd_core.volume.volume import Volume
from jobs.tree.candidates import Candidate, PlainFiles


class Partitioning:
    """Divides the candidates of one run among partitions that the budget has room for."""

    def __init__(self, volume: Volume, policy: Policy) -> None:
        self._volume = volume
        self._policy = policy
        self._chunk_bytes = volume.parameters.chunking.average_bytes
        self._work: dict[str, int] = {}
        self._known: dict[PartitionKey, int] = {}
        self._are_apart = policy.dedup_domain is not DedupDomain.VOLUME
        self._last: dict[bytes, int] = {}
        """The open partition of each domain other than the volume's: the last one."""
        self._map = PartitionMap()
        self._planned = PartitionMap()
        index = planned(policy.index, rotates=rotates(volume.store.base_fd))
        self.capacity = capacity(index, policy.memory_bytes)

    def expect(self, found: Candidate | PlainFiles) -> None:
        """Count candidates that are to come."""
        if isinstance(found, PlainFiles):
            for suffix, chunks in found.chunks:
                self._expect(type_of_suffix(suffix), chunks)
        else:
            self._expect(type_of(found.path), 1 + found.work_bytes // self._chunk_bytes)

    def expect_all(self, found: Sequence[Candidate]) -> bool:
        """Count some that are to come; whether there are any."""
        for candidate in found:
            self.expect(candidate)
        return bool(found)

    def _expect(self, file_type: str, chunks: int) -> None:
        if file_type not in self._work and len(self._work) >= TYPES_MAX:
            file_type = ""
        self._work[file_type] = self._work.get(file_type, 0) + chunks

    def plan(self) -> list[PartitionKey]:
        """Decide where everything goes; returns the partitions that get something, in order: those
        of the volume. See :meth:`open_in` for other domains."""
        for kind in (Kind.CHUNKS, Kind.RECIPES):
            with opened(self._volume.store.open_directory(kind)) as dir_fd:
                for key, entries in entries_by_partition(dir_fd).items():
                    self._known[key] = self._known.get(key, 0) + entries
        for key in self._known:
            self._last[key.domain] = max(key.number, self._last.get(key.domain, 0))
        if self._are_apart:
            return [PartitionKey(NOWHERE)]
        known = {key.number: n for key, n in self._known.items() if key.is_of_volume}
        with self._volume.store.neighbours.turn():
            before = load_map(self._volume)
            self._map = self._planned = plan(
                before, self._work, known, self.capacity, self._policy.partitions
            )
            if self._map != before:
                save_map(self._volume, self._map)
        if len(self._work) >= TYPES_MAX:
            numbers = self._map.open  # nobody knows where the types go that were not counted
        else:
            numbers = sorted({self._map.of_type(t) for t in self._work}) or [self._map.rest]
        return [PartitionKey(number=number) for number in numbers]

    def open_in(self, domain: bytes) -> PartitionKey:
        """The partition of a domain, other than the volume's, that files go to now. The containers
        say so themselves, and there is no map that could be lost: types are not divided."""
        key = PartitionKey(domain, self._last.get(domain, 0))
        if self._known.get(key, 0) >= self.capacity:
            key = self.move_on(key)
        return key

    def is_in(self, file_type: str, partition: int) -> bool:
        """Whether files of a type were planned to go to a partition."""
        return self._planned.of_type(file_type) == partition

    def move_on(self, partition: PartitionKey) -> PartitionKey:
        """Close a partition that is full; returns the one that takes its place."""
        if not partition.is_of_volume:
            self._last[partition.domain] = partition.number + 1
            return partition._replace(number=partition.number + 1)
        with self._volume.store.neighbours.turn():
            now = load_map(self._volume)  # a neighbour may have moved on, too
            known = now if now.last >= self._map.last else self._map
            self._map = known.moved_on(partition.number)
            save_map(self._volume, self._map)
        return PartitionKey(number=self._map.last)

    @property
    def index_bytes(self) -> int:
        """What the largest index of the run takes at most, about, hooks of the others included."""
        most = min(self._entries_max(), self.capacity)
        choice = fitting(self._policy.index, most, self._policy.memory_bytes)
        hooks = hooks_share(self._policy.memory_bytes) if self._has_others else 0
        return index_bytes(choice, most) + hooks

    def _entries_max(self) -> int:
        """How many entries the largest partition comes to have, if none becomes full."""
        if self._are_apart:
            apart = (n for key, n in self._known.items() if not key.is_of_volume)
            return max(apart, default=0) + sum(self._work.values())
        most = 0
        for number in self._planned.open:
            work = sum(n for t, n in self._work.items() if self._planned.of_type(t) == number)
            most = max(most, self._known.get(PartitionKey(number=number), 0) + work)
        return most

    @property
    def _has_others(self) -> bool:
        """Whether a domain has several partitions."""
        if self._are_apart:
            return any(self._last.values()) or self._entries_max() > self.capacity
        known = {key.number for key in self._known if key.is_of_volume}
        return len({*self._planned.open, *known}) > 1


def combined(first: IndexCounters, second: IndexCounters) -> IndexCounters:
    """The counters of two indexes, one of which came after the other."""
    sums = {name: value + getattr(second, name) for name, value in asdict(first).items()}
    sums["memory_bytes"] = max(first.memory_bytes, second.memory_bytes)
    return IndexCounters(**sums)
