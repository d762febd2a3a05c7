"""What holds of domains, worked out file by file and record by record, in plain Python."""

import os
from collections.abc import Hashable, Iterator, Mapping

from dedupd_core.format.container import COPIES_OF, Kind
from dedupd_core.format.ids import container_of
from dedupd_core.format.stub import Flag
from dedupd_core.format.table import State, TableEntry
from dedupd_core.system.files import opened
from dedupd_core.volume.volume import Volume
from jobs.frame.run import JobRun
from jobs.refine.refine_job import Refine, RefineReport
from tests.support.gc_oracle import entries
from tests.support.lab import Lab
from tests.support.recipe_nodes import decode_node

Id = tuple[Kind, int]


class Reach:
    """The records that files of an unmounted volume lead to."""

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self.entries = {kind: entries(volume, kind) for kind in COPIES_OF}

    def of(self, name: str) -> set[Id]:
        """All records that a stub needs, or may be read from; none of a plain file."""
        path = os.path.join(self._volume.base, "data", name)
        with opened(os.open(path, os.O_RDONLY)) as fd:
            stub = self._volume.space.read(fd, path)
        if stub is None:
            return set()
        kind = Kind.CHUNKS if stub.flags & Flag.DIRECT else Kind.RECIPES
        found: set[Id] = set()
        self._add(found, kind, stub.recipe)
        return found

    def _add(self, found: set[Id], kind: Kind, record_id: int) -> None:
        if (kind, record_id) in found:
            return
        found.add((kind, record_id))
        for other in self.led_to(kind, record_id):
            self._add(found, *other)

    def led_to(self, kind: Kind, record_id: int) -> Iterator[Id]:
        """What a record leads to, leans on, or names."""
        entry = self.entries[kind][record_id]
        if entry.state == State.MERGED:
            yield kind, entry.target
        elif entry.leans:
            yield kind, self._base(record_id, entry)
        if kind is Kind.RECIPES:
            content = decode_node(self._volume.recipe_records.read(record_id)[1], "")
            below = Kind.RECIPES if content.level else Kind.CHUNKS
            yield from ((below, one) for one in content.ids if one)

    def _base(self, record_id: int, entry: TableEntry) -> int:
        with self._volume.containers(Kind.CHUNKS) as directory:
            return directory.base_of(record_id, entry)


def expect_apart(lab: Lab, domains: Mapping[str, Hashable]) -> dict[str, set[Id]]:
    """No record is reached from files of two domains, and no record of the store leads to one of
    another domain. Returns what each file reaches."""
    with lab.opened() as volume:
        reach = Reach(volume)
        found = {name: reach.of(name) for name in domains}
        owners: dict[Id, tuple[Hashable, str]] = {}
        for name, ids in found.items():
            for one in ids:
                domain, other = owners.setdefault(one, (domains[name], name))
                assert domain == domains[name], f"{name} and {other} share {one}"
        of = {kind: _domains_of(volume, kind) for kind in COPIES_OF}
        for kind, known in reach.entries.items():
            for record_id, entry in known.items():
                if entry.state == State.TOMBSTONE or entry.state == State.QUARANTINED:
                    continue
                for other_kind, other_id in reach.led_to(kind, record_id):
                    own = of[kind][container_of(record_id)]
                    assert of[other_kind][container_of(other_id)] == own, (kind, record_id)
        return found


def _domains_of(volume: Volume, kind: Kind) -> dict[int, bytes]:
    with volume.containers(kind) as directory:
        return {number: directory.header(number).domain for number in directory.numbers()}


def refine(lab: Lab) -> RefineReport:
    with lab.opened() as volume, volume.job_lock():
        return Refine(volume, JobRun("refine")).run()
