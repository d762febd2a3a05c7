"""The sketches of containers, as a run makes and keeps them."""

import os
from collections.abc import Iterator

from dedupd import native
from dedupd.failpoint import define, reach
from dedupd.format.container import seed_of
from dedupd.format.derived.sketch import SKETCH_BYTES
from dedupd.format.table import ENTRY_BYTES, State
from dedupd.store.container.container import data_name
from dedupd.store.container.table_scan import TableBlock, TableScan
from dedupd.store.sketches import load_sketches, save_sketches
from dedupd.system.files import opened
from jobs.frame.run import JobRun

_SKETCHED = define("refine.sketched", "the sketches of a container are in their file")

_STATES = frozenset((State.LIVE, State.ORPHANED, State.QUARANTINED))
"""Of records that have a sketch."""

RECORDS_AT_ONCE = 1024
"""Sketched between two safe points."""


class Sketching:
    """Makes the sketches of containers. ``tables`` have recovered."""

    def __init__(self, run: JobRun, tables: TableScan, threads: int) -> None:
        self._run = run
        self._tables = tables
        self._directory = tables.directory
        self._threads = threads

    def sketched(self, number: int) -> bytes:
        """The sketches of a container, made as far as they were not. Raises Cancelled, NoSpace."""
        count = self._tables.shapes[number].count
        made = bytearray(load_sketches(self._directory, number)[: count * SKETCH_BYTES])
        have = len(made) // SKETCH_BYTES
        if not self._forget_dead(number, made) and have == count:
            return bytes(made)
        flags = os.O_RDONLY | os.O_CLOEXEC
        with opened(os.open(data_name(number), flags, dir_fd=self._directory.fd)) as fd:
            for block in self._blocks(number):
                for first in range(max(have, block.first), block.end, RECORDS_AT_ONCE):
                    self._run.safe_point()
                    end = min(first + RECORDS_AT_ONCE, block.end)
                    made += native.upkeep.sketch_records(
                        fd,
                        block.entries[
                            (first - block.first) * ENTRY_BYTES : (end - block.first) * ENTRY_BYTES
                        ],
                        self._directory.bases.native,
                        seed=seed_of(block.header),
                        first=first,
                        threads=self._threads,
                    )
        save_sketches(self._directory, number, bytes(made))
        reach(_SKETCHED)
        return bytes(made)

    def _blocks(self, number: int) -> Iterator[TableBlock]:
        return self._tables.blocks([self._tables.whole(number)])

    def _forget_dead(self, number: int, sketches: bytearray) -> bool:
        """Take out the sketches of records that are not there any more; says whether there were
        any."""
        found_any, nothing = False, bytes(SKETCH_BYTES)
        for block in self._blocks(number):
            for at, state in enumerate(block.states()):
                start = (block.first + at) * SKETCH_BYTES
                if state not in _STATES and any(sketches[start : start + SKETCH_BYTES]):
                    sketches[start : start + SKETCH_BYTES] = nothing
                    found_any = True
        return found_any
