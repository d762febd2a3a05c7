"""The partitions of a volume in a job: what each holds, how much is to come, and where it goes."""

from collections.abc import Sequence
from dataclasses import asdict

from dedupd.config.memory_budget import capacity, fitting, hooks_share, index_bytes, planned
from dedupd.config.policy import Policy
from dedupd.format.container import Kind
from dedupd.store.chunk_index import IndexCounters
from dedupd.store.container.table_totals import entries_by_partition
from dedupd.system.file_system import rotates
from dedupd.system.files import opened
from dedupd.volume.partition_map import (
    TYPES_MAX,
    PartitionMap,
    load_map,
    plan,
    save_map,
    type_of,
    type_of_suffix,
)
from dedupd.volume.volume import Volume
from jobs.tree.candidates import Candidate, PlainFiles


class Partitioning:
    """Divides the candidates of one run among partitions that the budget has room for."""

    def __init__(self, volume: Volume, policy: Policy) -> None:
        self._volume = volume
        self._policy = policy
        self._chunk_bytes = volume.parameters.chunking.average_bytes
        self._work: dict[str, int] = {}
        self._known: dict[int, int] = {}
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
        for one in found:
            self.expect(one)
        return bool(found)

    def _expect(self, file_type: str, chunks: int) -> None:
        if file_type not in self._work and len(self._work) >= TYPES_MAX:
            file_type = ""
        self._work[file_type] = self._work.get(file_type, 0) + chunks

    def plan(self) -> list[int]:
        """Decide where everything goes; returns the partitions that get something, in order."""
        for kind in (Kind.CHUNKS, Kind.RECIPES):
            with opened(self._volume.store.open_directory(kind)) as dir_fd:
                for number, entries in entries_by_partition(dir_fd).items():
                    self._known[number] = self._known.get(number, 0) + entries
        with self._volume.store.neighbours.turn():
            before = load_map(self._volume)
            self._map = self._planned = plan(
                before, self._work, self._known, self.capacity, self._policy.partitions
            )
            if self._map != before:
                save_map(self._volume, self._map)
        if len(self._work) >= TYPES_MAX:
            return self._map.open  # nobody knows where the types go that were not counted
        return sorted({self._map.of_type(t) for t in self._work}) or [self._map.rest]

    def is_in(self, file_type: str, partition: int) -> bool:
        """Whether files of a type were planned to go to a partition."""
        return self._planned.of_type(file_type) == partition

    def move_on(self, partition: int) -> int:
        """Close a partition that is full; returns the one that takes its place."""
        with self._volume.store.neighbours.turn():
            now = load_map(self._volume)  # a neighbour may have moved on, too
            known = now if now.last >= self._map.last else self._map
            self._map = known.moved_on(partition)
            save_map(self._volume, self._map)
        return self._map.last

    @property
    def index_bytes(self) -> int:
        """What the largest index of the run takes at most, about, hooks of the others included."""
        most = 0
        for number in self._planned.open:
            work = sum(n for t, n in self._work.items() if self._planned.of_type(t) == number)
            most = max(most, self._known.get(number, 0) + work)
        most = min(most, self.capacity)
        choice = fitting(self._policy.index, most, self._policy.memory_bytes)
        partitions = {*self._planned.open, *self._known}
        hooks = hooks_share(self._policy.memory_bytes) if len(partitions) > 1 else 0
        return index_bytes(choice, most) + hooks


def combined(first: IndexCounters, second: IndexCounters) -> IndexCounters:
    """The counters of two indexes, one of which came after the other."""
    sums = {name: value + getattr(second, name) for name, value in asdict(first).items()}
    sums["memory_bytes"] = max(first.memory_bytes, second.memory_bytes)
    return IndexCounters(**sums)
