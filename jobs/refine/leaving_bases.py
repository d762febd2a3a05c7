"""Finds the deltas that may leave their base, because only deltas need it.

After a version of a file is replaced, its content remains as the base of the next version, which is
a delta. Then base and delta need more space than one complete chunk. The last gc has recorded such
bases (``HintKey.HELD``). This is a hint: at worst a base is left that a file needs by now.
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
"""A base with more members costs little per member, and leaving it costs much: each member is tried
twice. A base with eight members may cost as much as they do, if they are versions that differ more
and more from it."""

GROUPS_MAX = 30_000
"""Maximum per run; with the members, they need about 20 MiB of memory. The next run handles the
rest."""

ALL_MEMBERS_MAX = 8 * GROUPS_MAX

GAIN_MIN = 0.005
"""The share of a container that must be gained to process it for this reason alone."""


@dataclass(slots=True)
class Group:
    """The deltas to one base, in the order of their ids; bytes are stored bytes."""

    base: int
    base_entry: TableEntry
    members: list[int] = field(default_factory=list)
    first: TableEntry | None = None
    is_whole: bool = True
    """Whether all of them may leave."""

    @property
    def gain_bytes(self) -> int:
        """Estimate the gain: the first delta will compress as well as the base does now."""
        if self.first is None or not self.base_entry.raw_length:
            return 0
        base_bytes = record_size(self.base_entry.stored_length)
        alone = base_bytes * self.first.raw_length // self.base_entry.raw_length
        return base_bytes + record_size(self.first.stored_length) - alone

    @property
    def share_bytes(self) -> int:
        """Return the share of each member in the gain."""
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
        """The planned groups."""
        self.credits: dict[int, int] = {}
        """By member: the bytes freed elsewhere, because the first member replaces the base."""
        self.room_bytes: dict[int, int] = {}
        """Estimated growth of containers: the first member of a group will need as much as its
        base, which is deleted later."""

    def add(self, delta: Delta) -> None:
        """Add a delta from the tables, in the order of ids."""
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
        """Return the record that a record was merged into, if it is live."""
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
        """Plan the worthwhile groups. Returns the containers to process for them.

        A group leaves completely, or not at all. So all of its containers must gain enough, beyond
        the ``left_bytes`` that an earlier run did not gain; a tenth of that if they are
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
        """Return the planned but missed gain per container; ``left_bases`` were left."""
        return _gains(group for group in self.groups if group.base not in left_bases)


def _gains(groups: Iterable[Group]) -> dict[int, int]:
    found: dict[int, int] = defaultdict(int)
    for group in groups:
        for member in group.members:
            found[container_of(member)] += group.share_bytes
    return found
