"""The join of reconciliation: which chunks that are not in the reconciled set are there already.

Seed 003, 4.5: what is new is indexed in memory, as much of it as the budget allows, and the tables
of the reconciled set stream by. docs/partitions.md says what that is on the disk.
"""

import os
import secrets
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import compress
from typing import NamedTuple

from dedupd import native
from dedupd.format import container as fmt
from dedupd.format import table as tbl
from dedupd.format.ids import make_id
from dedupd.store.container.container import table_name
from dedupd.store.container.directory import OpenContainers
from dedupd.store.container.recovery import recover_sound
from dedupd.store.container.table_file import Recovered
from dedupd.system.files import opened
from dedupd.system.page_cache import read_uncached
from dedupd.volume.volume import Volume
from jobs.frame.run import JobRun

PIECE_ENTRIES = 1 << 16
"""Entries of a table that are looked at together: 4 MiB, read in one go."""

ENTRY_BYTES = 14
"""Memory for each chunk that is indexed."""

_STORED_WORD, _RAW_WORD, _ENTRY_WORDS = 12, 13, tbl.ENTRY_BYTES // 4


class Range(NamedTuple):
    """Records [first, end) of a container."""

    container: int
    first: int
    end: int


@dataclass(slots=True)
class Shape:
    """A container: how many entries its table has, and how many of them are reconciled."""

    header: fmt.FileHeader
    count: int
    reconciled: int


@dataclass(slots=True)
class Contents:
    """The live chunks of a partition."""

    chunks: int = 0
    raw_bytes: int = 0
    stored_bytes: int = 0


class ChunkTables:
    """The redirection tables of all containers of chunks, in order. Needs the job lock."""

    def __init__(self, volume: Volume, run: JobRun) -> None:
        """Recovers every container; those that cannot be opened are scrub's, and left out."""
        self._volume = volume
        self._run = run
        self.dir_fd = volume.open_directory(fmt.Kind.CHUNKS)
        self.containers = OpenContainers(self.dir_fd, fmt.Kind.CHUNKS, volume.space.volume)
        self.shapes: dict[int, Shape] = {}
        self.contents: dict[int, Contents] = {}
        run.update(phase="tables", done=0, total=0)
        uuid, disk = volume.space.volume, volume.disk
        for done, state in enumerate(recover_sound(self.dir_fd, fmt.Kind.CHUNKS, uuid, disk)):
            self._take_in(state.header.container, state)
            run.update(done=done + 1)
            run.check()

    def close(self) -> None:
        os.close(self.dir_fd)

    def _take_in(self, number: int, state: Recovered) -> None:
        self.shapes[number] = Shape(state.header, len(state.entries), state.reconciled)
        contents = self.contents.setdefault(state.header.partition, Contents())
        words, states = memoryview(state.entries.data).cast("I"), state.entries.states
        is_live = [one == tbl.State.LIVE for one in states]
        contents.chunks += sum(is_live)
        contents.raw_bytes += sum(compress(words[_RAW_WORD::_ENTRY_WORDS], is_live))
        contents.stored_bytes += sum(compress(words[_STORED_WORD::_ENTRY_WORDS], is_live))

    def pieces(self, one: Range) -> Iterator[tuple[memoryview, int, int]]:
        """Entries of a range, some at a time: as they lie there, their seed, the first's id.

        Each is valid until the next is asked for.
        """
        header = self.shapes[one.container].header
        seed = fmt.seed_of(header)
        name = table_name(one.container)
        buffer = bytearray(min(PIECE_ENTRIES, one.end - one.first) * tbl.ENTRY_BYTES)
        with opened(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.dir_fd)) as fd:
            for first in range(one.first, one.end, PIECE_ENTRIES):
                self._run.check()
                count = min(PIECE_ENTRIES, one.end - first)
                offset = tbl.HEADER_BYTES + first * tbl.ENTRY_BYTES
                view = memoryview(buffer)[: count * tbl.ENTRY_BYTES]
                size = read_uncached(fd, view, offset)
                yield view[:size], seed, make_id(one.container, first)

    def reconciled(self) -> list[Range]:
        """The reconciled set, container by container."""
        return [
            Range(number, 0, shape.reconciled)
            for number, shape in sorted(self.shapes.items())
            if shape.reconciled
        ]

    def partition_of(self, container: int) -> int:
        return self.shapes[container].header.partition


def unreconciled(
    shapes: Mapping[int, Shape], partitions: Collection[int] | None = None
) -> list[Range]:
    """What is not in the reconciled set, partition by partition; of all of them, or of some."""
    return [
        Range(number, shape.reconciled, shape.count)
        for number, shape in sorted(
            shapes.items(), key=lambda item: (item[1].header.partition, item[0])
        )
        if shape.reconciled < shape.count
        and (partitions is None or shape.header.partition in partitions)
    ]


def rounds(ranges: list[Range], capacity: int) -> Iterator[list[Range]]:
    """Ranges in groups of up to ``capacity`` records; a range may be divided."""
    group: list[Range] = []
    left = capacity
    for one in ranges:
        first = one.first
        while first < one.end:
            end = min(one.end, first + left)
            group.append(Range(one.container, first, end))
            left -= end - first
            first = end
            if left == 0:
                yield group
                group, left = [], capacity
    if group:
        yield group


def join(
    tables: ChunkTables, group: list[Range], against: list[Range], sample_bits: int = 0
) -> Iterator[bytes]:
    """Pairs of equal chunks, as ``native.upkeep.Join`` gives them: those of ``group`` that are in
    ``against``, or more than once in the group. Raises Cancelled, OSError."""
    count = sum(one.end - one.first for one in group)
    room = (count >> sample_bits) * 2 if sample_bits else count
    # Nobody knows the seed, so nobody can make chunks that look the same.
    work = native.upkeep.Join(room, sample_bits, seed=secrets.randbits(64))
    for one in group:
        for piece in tables.pieces(one):
            if not work.add(*piece):
                break  # a sample that is larger than its double share says enough without the rest
    for one in against:
        for piece in tables.pieces(one):
            found = work.probe(*piece)
            if found:
                yield found
    found = work.finish()
    if found:
        yield found
