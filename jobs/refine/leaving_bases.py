"""Which differences may leave their base: one that nothing but them needs any more.

A version of a file is replaced, and what was its content stays, because the next version is stored
as the difference to it. From then on a base and a difference take more than one whole chunk does.
What needs a base is known from the last gc (``HintKey.HELD``), which is a hint: at worst a base is
left that a file has come to need since.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from dedupd_core.format.container import record_size
from dedupd_core.format.ids import container_of
from dedupd_core.format.table import State, TableEntry
from dedupd_core.store.container.directory import ContainerDirectory, OpenContainers
from dedupd_core.store.forwards import end_in
from dedupd_core.store.garbage import GAIN_BYTES_MIN
from jobs.check.deltas import Delta, RetainedBases

MEMBERS_MAX = 32
"""A base of more serves so many that it costs little, and to leave it costs much: each is tried
twice. One of eight may cost as much as they do, if these are versions that have grown away from it.
"""

GROUPS_MAX = 30_000
"""Of one run, with so many members in all some 20 MiB of memory. What is left over waits for the
next run."""

ALL_MEMBERS_MAX = 8 * GROUPS_MAX

GAIN_MIN = 0.005
"""The part of a container that is to be won for it to be looked at for this alone."""


@dataclass(slots=True)
class Group:
    """The differences to one base, in the order of their ids; bytes as they are stored."""

    base: int
    base_entry: TableEntry
    members: list[int] = field(default_factory=list)
    first: TableEntry | None = None
    is_whole: bool = True
    """Whether all of them may leave."""

    @property
    def gain_bytes(self) -> int:
        """What is won, about: the first one takes as much of its raw bytes as the base does now."""
        if self.first is None or not self.base_entry.raw_length:
            return 0
        base_bytes = record_size(self.base_entry.stored_length)
        alone = base_bytes * self.first.raw_length // self.base_entry.raw_length
        return base_bytes + record_size(self.first.stored_length) - alone

    @property
    def share_bytes(self) -> int:
        """That of each member in what is won."""
        return self.gain_bytes // len(self.members)

    def containers(self) -> set[int]:
        return {container_of(member) for member in self.members}


class BaseGroups:
    """The groups of a run: collected from the tables, then planned."""

    def __init__(self, directory: ContainerDirectory, held: RetainedBases) -> None:
        self._containers = OpenContainers(directory)
        self._held = held
        self._collected: dict[int, Group] = {}
        self._members = 0
        self.groups: list[Group] = []
        """Those that are planned."""
        self.credits: dict[int, int] = {}
        """Of each member what is won elsewhere: the first one takes the place of the base."""
        self.room_bytes: dict[int, int] = {}
        """By how much a container may grow, about: what is first in a group takes as much as its
        base does, which goes later."""

    def add(self, delta: Delta) -> None:
        """Take in a difference, as the tables tell of it, in the order of ids."""
        if delta.entry.state == State.ORPHANED or delta.base not in self._held:
            return
        found = self._end(delta.base)
        if found is None or found[0] not in self._held:
            return
        base, entry = found
        group = self._collected.get(base)
        if group is None:
            if len(self._collected) >= GROUPS_MAX:
                return
            group = self._collected[base] = Group(base, entry, first=delta.entry)
        has_room = len(group.members) < MEMBERS_MAX and self._members < ALL_MEMBERS_MAX
        group.is_whole &= delta.entry.state == State.LIVE and has_room
        if group.is_whole:
            group.members.append(delta.record_id)
            self._members += 1

    def _end(self, record_id: int) -> tuple[int, TableEntry] | None:
        """What a record was merged into, where that is live."""
        end = end_in(self._containers, record_id)
        entry = self._containers.entry(end)
        return (end, entry) if entry is not None and entry.state == State.LIVE else None

    def plan(
        self,
        sizes: Callable[[int], int],
        cold: set[int],
        waiting: Iterable[int],
        left_bytes: Callable[[int], int],
    ) -> set[int]:
        """Plan what is worth it. Returns the containers that are to be looked at for it.

        All of a group leaves, or none: so all of its containers have enough to win, beyond the
        ``left_bytes`` that an earlier run has tried in vain; a tenth of that if they are
        ``waiting``.
        """
        for group in self._collected.values():
            group.members.sort()
        groups = [
            group
            for group in self._collected.values()
            if group.is_whole and group.gain_bytes > 0 and group.containers() <= cold
        ]
        always = set(waiting)
        while True:
            worth = set()
            for number, gain in _gains(groups).items():
                least = max(GAIN_BYTES_MIN, GAIN_MIN * sizes(number))
                if gain - left_bytes(number) >= (least / 10 if number in always else least):
                    worth.add(number)
            kept = [group for group in groups if group.containers() <= worth]
            if len(kept) == len(groups):
                break
            groups = kept
        self._collected.clear()
        self.groups = groups
        for group in groups:
            first, base_bytes = group.members[0], record_size(group.base_entry.stored_length)
            self.credits |= dict.fromkeys(group.members, 0) | {first: base_bytes}
            number = container_of(first)
            self.room_bytes[number] = self.room_bytes.get(number, 0) + base_bytes
        return worth

    def in_vain(self, left_bases: set[int]) -> Mapping[int, int]:
        """What was to be won in each container, and was not: ``left_bases`` are those that were."""
        return _gains(group for group in self.groups if group.base not in left_bases)


def _gains(groups: Iterable[Group]) -> dict[int, int]:
    found: dict[int, int] = defaultdict(int)
    for group in groups:
        for member in group.members:
            found[container_of(member)] += group.share_bytes
    return found
