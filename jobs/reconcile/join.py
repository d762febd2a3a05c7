"""The join of reconciliation: finds the new chunks that the reconciled set already has.

Seed 003, 4.5: as many new chunks as the budget allows are indexed in memory, and the tables of the
reconciled set are streamed. docs/design/partitions.md describes the files.
"""

import secrets
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import compress

from dedupd_core import native
from dedupd_core.format import table as tbl
from dedupd_core.format.container import seed_of
from dedupd_core.format.domain import PartitionKey, salt_of
from dedupd_core.format.ids import PackedPairs
from dedupd_core.native.system import read_uncached
from dedupd_core.store.container.directory import ContainerDirectory, OpenContainers
from dedupd_core.store.container.table_file import Recovered
from dedupd_core.store.container.table_scan import RecordRange, TableScan, TableShape
from jobs.frame.run import JobRun

ENTRY_BYTES = 14
"""Memory per indexed chunk."""

_STORED_WORD, _RAW_WORD, _ENTRY_WORDS = 12, 13, tbl.ENTRY_BYTES // 4


@dataclass(slots=True)
class Contents:
    """The live chunks of a partition."""

    chunks: int = 0
    raw_bytes: int = 0
    stored_bytes: int = 0


class ChunkTables(TableScan):
    """The redirection tables of all containers of chunks, read without the page cache."""

    def __init__(self, directory: ContainerDirectory, run: JobRun) -> None:
        """Borrows ``directory``, and recovers every container in it. Raises Cancelled."""
        super().__init__(directory, run.safe_point, read_uncached)
        self.containers = OpenContainers(directory)
        self.contents: dict[PartitionKey, Contents] = {}
        for state in run.each("tables", self.recover()):
            self._count(state)

    def _count(self, state: Recovered) -> None:
        contents = self.contents.setdefault(state.header.partition_key, Contents())
        words, states = memoryview(state.entries.data).cast("I"), state.entries.states
        is_live = [state_byte == tbl.State.LIVE for state_byte in states]
        contents.chunks += sum(is_live)
        contents.raw_bytes += sum(compress(words[_RAW_WORD::_ENTRY_WORDS], is_live))
        contents.stored_bytes += sum(compress(words[_STORED_WORD::_ENTRY_WORDS], is_live))

    def reconciled(self) -> list[RecordRange]:
        """Return the reconciled set, container by container."""
        return [
            RecordRange(number, 0, shape.reconciled)
            for number, shape in sorted(self.shapes.items())
            if shape.reconciled
        ]

    def partition_of(self, container: int) -> PartitionKey:
        return self.shapes[container].header.partition_key


def unreconciled(
    shapes: Mapping[int, TableShape], partitions: Collection[PartitionKey] | None = None
) -> list[RecordRange]:
    """Return the records outside of the reconciled set, by partition; of all, or of some."""
    return [
        RecordRange(number, shape.reconciled, shape.count)
        for number, shape in sorted(
            shapes.items(), key=lambda item: (item[1].header.partition_key, item[0])
        )
        if shape.reconciled < shape.count
        and (partitions is None or shape.header.partition_key in partitions)
    ]


def rounds(ranges: list[RecordRange], capacity: int) -> Iterator[list[RecordRange]]:
    """Yield ranges in groups of up to ``capacity`` records; a range may be divided."""
    group: list[RecordRange] = []
    room = capacity
    for records in ranges:
        first = records.first
        while first < records.end:
            end = min(records.end, first + room)
            group.append(RecordRange(records.container, first, end))
            room -= end - first
            first = end
            if room == 0:
                yield group
                group, room = [], capacity
    if group:
        yield group


def join(
    tables: ChunkTables, group: list[RecordRange], against: list[RecordRange], sample_bits: int = 0
) -> Iterator[PackedPairs]:
    """Yield pairs of equal chunks of one domain, in the form of ``native.upkeep.Join``: chunks of
    ``group`` that are in ``against``, or twice in the group. Raises Cancelled, OSError."""
    count = sum(records.end - records.first for records in group)
    room = (count >> sample_bits) * 2 if sample_bits else count
    # The seed is a secret, so users cannot make chunks that appear equal.
    work = native.upkeep.Join(room, sample_bits, seed=secrets.randbits(64))
    for records in group:
        for block in tables.blocks([records]):
            domain = salt_of(block.header.domain)
            if not work.add(block.entries, seed_of(block.header), block.first_id, domain):
                break  # twice the expected sample is enough for an estimate
    for block in tables.blocks(against):
        domain = salt_of(block.header.domain)
        found = work.probe(block.entries, seed_of(block.header), block.first_id, domain)
        if found:
            yield found
    found = work.finish()
    if found:
        yield found
