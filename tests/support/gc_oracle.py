"""What a collection must leave, worked out record by record from the stubs, in plain Python."""

import os
from collections.abc import Iterator

from dedupd_core.format.container import COPIES_OF, Kind
from dedupd_core.format.ids import container_of, make_id, ordinal_of
from dedupd_core.format.stub import Flag
from dedupd_core.format.table import State, TableEntry
from dedupd_core.store.container.recovery import recover
from dedupd_core.system.files import opened
from dedupd_core.volume.volume import Volume
from tests.support.lab import Lab
from tests.support.recipe_nodes import decode_node

COLLECTED = frozenset((State.ORPHANED, State.TOMBSTONE))


def entries(volume: Volume, kind: Kind) -> dict[int, TableEntry]:
    """What the tables say of every record of a kind, by id."""
    found: dict[int, TableEntry] = {}
    with volume.containers(kind) as directory:
        for number in directory.numbers():
            state = recover(directory, number)
            found |= {make_id(number, at): entry for at, entry in enumerate(state.entries)}
    return found


class Needed:
    """The records that the stubs of an unmounted volume need."""

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self.entries = {kind: entries(volume, kind) for kind in Kind}
        self.ids: dict[Kind, set[int]] = {kind: set() for kind in Kind}
        self._seen: set[tuple[int, int]] = set()
        for directory, _, names in os.walk(os.path.join(volume.base, "data")):
            for name in names:
                self._add_file(os.path.join(directory, name))
        for kind in COPIES_OF:
            self._follow(kind)

    def _add_file(self, path: str) -> None:
        with opened(os.open(path, os.O_RDONLY)) as fd:
            stub = self._volume.space.read(fd, path)
        if stub is None:
            return
        if stub.flags & Flag.DIRECT:
            self.ids[Kind.CHUNKS].add(stub.recipe)
        else:
            self._add_node(stub.recipe, stub.covered)

    def _add_node(self, node: int, end: int) -> None:
        """A node of which the first ``end`` bytes are needed."""
        self.ids[Kind.RECIPES].add(node)
        if end <= 0 or (node, end) in self._seen:
            return
        self._seen.add((node, end))
        own = self.entries[Kind.RECIPES][node]
        if own.state == State.MERGED:
            self._add_node(own.target, end)
        content = decode_node(self._volume.recipe_records.read(node)[1], "")
        for one, offset in zip(content.ids, content.offsets, strict=True):
            if offset >= end:
                break
            if content.level:
                self._add_node(one, end - offset)
            elif one:
                self.ids[Kind.CHUNKS].add(one)

    def _follow(self, kind: Kind) -> None:
        """What needed records lead to, and what repeats them."""
        known, needed = self.entries[kind], self.ids[kind]
        before = -1
        while before != len(needed):
            before = len(needed)
            for one, entry in known.items():
                if entry.state == State.MERGED and one in needed:
                    needed.add(entry.target)
                elif entry.leans:
                    if one in needed and entry.state != State.TOMBSTONE:
                        needed.add(self._base_of(one))
                elif entry.state == State.LIVE and _is_repeated(entry.target, needed, known):
                    needed.add(one)

    def _base_of(self, record_id: int) -> int:
        """What a chunk leans on, by its header alone."""
        with self._volume.containers(Kind.CHUNKS) as directory:
            container = directory.open(container_of(record_id))
            return container.describe_own(ordinal_of(record_id)).base

    def wrong(self) -> Iterator[str]:
        """Records that are needed and collected, or not needed and not collected."""
        for kind in COPIES_OF:
            for one, entry in self.entries[kind].items():
                if (one in self.ids[kind]) == (entry.state in COLLECTED):
                    yield f"{kind.name} {one:#x}: {State(entry.state).name}"
            for entry in self.entries[COPIES_OF[kind]].values():
                # Of a container that is gone nobody can tell.
                is_known = entry.target in self.entries[kind]
                if entry.state == State.LIVE and is_known and entry.target not in self.ids[kind]:
                    yield f"a copy of {kind.name} {entry.target:#x} is live"


def _is_repeated(target: int, needed: set[int], known: dict[int, TableEntry]) -> bool:
    """Whether what repeats a record is needed: also where nobody can tell."""
    return target != 0 and (target in needed or target not in known)


def expect_collected(lab: Lab) -> None:
    """Just what is not needed is an orphan, or gone."""
    with lab.opened() as volume:
        assert list(Needed(volume).wrong()) == []
