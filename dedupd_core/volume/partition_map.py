"""Which partition of the index a file belongs to (docs/design/partitions.md; seed 003, 4.5).

A volume begins with one partition, 0, for everything. Where its index would outgrow its share of
the memory, types of files get partitions of their own; and where one is full, it is closed, and
later files go to the next. All of this is a hint: each container names its partition.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dedupd_core.config.rules import extension_of
from dedupd_core.volume.hints import HintKey
from dedupd_core.volume.volume import Volume

TYPES_MAX = 1000
"""Types that are told apart; the rarer ones are the rest."""


def type_of(path: bytes) -> str:
    """The type of a file: the extension of its name, in lower case, or empty."""
    return extension_of(path.rpartition(b"/")[2].decode("utf-8", "surrogateescape"))


def type_of_suffix(suffix: bytes) -> str:
    """The type of a file, from the extension that native code has cut off."""
    return suffix.decode("utf-8", "surrogateescape").lower()


@dataclass(frozen=True, slots=True)
class PartitionMap:
    """The partitions that files go to now: those of some types, and ``rest`` for all others.

    ``last`` is the highest number that was ever given out.
    """

    rest: int = 0
    last: int = 0
    by_type: Mapping[str, int] = field(default_factory=dict)

    def of_type(self, file_type: str) -> int:
        """The partition that files of a type go to."""
        return self.by_type.get(file_type, self.rest)

    def of(self, path: bytes) -> int:
        """The partition that a file goes to."""
        return self.by_type.get(type_of(path), self.rest) if self.by_type else self.rest

    @property
    def open(self) -> list[int]:
        """The partitions that files go to, ascending."""
        return sorted({self.rest, *self.by_type.values()})

    def types(self, partition: int) -> str:
        """The types of files that go to a partition, to be shown."""
        named = sorted(t or "no type" for t, number in self.by_type.items() if number == partition)
        if partition != self.rest:
            return ", ".join(named) or "closed"
        return "all others" if self.by_type else "everything"

    def moved_on(self, partition: int) -> "PartitionMap":
        """Close a partition; its types go to a new one, ``last``."""
        new = self.last + 1
        by_type = {t: new if number == partition else number for t, number in self.by_type.items()}
        rest = new if self.rest == partition else self.rest
        return PartitionMap(rest, new, by_type)

    def knowing(self, numbers: Iterable[int]) -> "PartitionMap":
        """The same, where these numbers are taken."""
        return replace(self, last=max(self.last, *numbers, 0))

    def to_json(self) -> dict[str, Any]:
        """For the catalogue."""
        return {"rest": self.rest, "last": self.last, "by_type": dict(self.by_type)}

    @classmethod
    def from_json(cls, value: Any) -> "PartitionMap":
        """A map that was kept; a new one where the value is none."""
        try:
            by_type = {str(t): int(number) for t, number in value["by_type"].items()}
            return cls(int(value["rest"]), int(value["last"]), by_type)
        except (AttributeError, KeyError, TypeError, ValueError):
            return cls()


def plan(
    current: PartitionMap,
    work: Mapping[str, int],
    known: Mapping[int, int],
    capacity: int,
    count_min: int,
) -> PartitionMap:
    """The partitions for the files to come.

    ``work`` has about how many chunks of each type come, ``known`` how many each partition has.
    None is to have more than ``capacity``; there are to be at least ``count_min``, as far as there
    are types.
    """
    planned = _closed_where_full(current.knowing(known), known, capacity)
    planned = _divided_by_need(planned, work, known, capacity)
    return _divided_by_number(planned, work, known, count_min)


def _closed_where_full(
    current: PartitionMap, known: Mapping[int, int], capacity: int
) -> PartitionMap:
    for number in current.open:
        if known.get(number, 0) >= capacity:
            current = current.moved_on(number)
    return current


def _divided_by_need(
    current: PartitionMap, work: Mapping[str, int], known: Mapping[int, int], capacity: int
) -> PartitionMap:
    """Give types partitions of their own where the rest would become too large.

    First fit, the largest type first. One that is larger than a partition has one for itself, and
    goes on in another when that is full.
    """
    free = _types_of_the_rest(current, work)
    loads = {current.rest: known.get(current.rest, 0) + _work_kept_by_the_rest(current, work)}
    if loads[current.rest] + sum(free.values()) <= capacity:
        return current
    by_type, last = dict(current.by_type), current.last
    for file_type, chunks in list(free.items())[:TYPES_MAX]:
        fitting = (number for number, load in loads.items() if load + chunks <= capacity)
        number = next(fitting, None)
        if number is None:
            number = last = last + 1
        loads[number] = loads.get(number, 0) + chunks
        if number != current.rest:
            by_type[file_type] = number
    return PartitionMap(current.rest, last, by_type)


def _divided_by_number(
    current: PartitionMap, work: Mapping[str, int], known: Mapping[int, int], count_min: int
) -> PartitionMap:
    """Give types partitions of their own until there are enough, each as large as the others."""
    wanted = count_min - len(current.open)
    if wanted <= 0:
        return current
    free = _types_of_the_rest(current, work)
    numbers = range(current.last + 1, current.last + 1 + wanted)
    loads = {current.rest: known.get(current.rest, 0)} | dict.fromkeys(numbers, 0)
    by_type = dict(current.by_type)
    for file_type, chunks in list(free.items())[:TYPES_MAX]:
        number = min(loads, key=loads.__getitem__)
        loads[number] += chunks
        if number != current.rest:
            by_type[file_type] = number
    return PartitionMap(current.rest, max(current.last, *by_type.values(), 0), by_type)


def _work_kept_by_the_rest(current: PartitionMap, work: Mapping[str, int]) -> int:
    """Chunks of types that had a partition, and share one with the rest since both moved on."""
    return sum(chunks for t, chunks in work.items() if current.by_type.get(t) == current.rest)


def _types_of_the_rest(current: PartitionMap, work: Mapping[str, int]) -> dict[str, int]:
    """Types that have no partition of their own, those with the most chunks first."""
    free = [(chunks, t) for t, chunks in work.items() if t not in current.by_type]
    return {t: chunks for chunks, t in sorted(free, key=lambda row: (-row[0], row[1]))}


def load_map(volume: Volume) -> PartitionMap:
    """The map that was kept last; without one, that of a new volume."""
    return PartitionMap.from_json(volume.store_hints.get(HintKey.PARTITIONS))


def save_map(volume: Volume, partitions: PartitionMap) -> None:
    """Remember where files go."""
    volume.store_hints.put(HintKey.PARTITIONS, partitions.to_json())
