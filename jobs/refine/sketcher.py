"""Makes and keeps the sketches of containers during a run."""

from collections.abc import Callable, Container, Iterator, Sequence

from dedupd_core import native
from dedupd_core.failpoint import define, reach
from dedupd_core.format.container import seed_of
from dedupd_core.format.derived.sketch import SKETCH_BYTES
from dedupd_core.format.table import ENTRY_BYTES, State
from dedupd_core.store.container.table_scan import TableScan
from dedupd_core.store.sketches import (
    load_sketches,
    remove_sketches,
    save_sketches,
    sketches_bytes,
)
from dedupd_core.system.files import opened
from jobs.frame.run import JobRun

_SKETCHED = define("refine.sketched", "the sketches of a container are in their file")

_STATES = frozenset((State.LIVE, State.ORPHANED, State.QUARANTINED))
"""States of records that have a sketch."""

RECORDS_AT_ONCE = 1024
"""Number of records to sketch between two safe points."""


class Sketcher:
    """Makes the sketches of containers. ``tables`` have recovered."""

    def __init__(
        self, run: JobRun, tables: TableScan, threads: int, looked: Callable[[int], int]
    ) -> None:
        """``looked``: number of records of a container that earlier runs have processed."""
        self._run = run
        self._tables = tables
        self._directory = tables.directory
        self._threads = threads
        self._looked = looked
        self._new_bytes: dict[int, int] = {}

    def drop_unpaid(self, saved_bytes: int, rewritten: Container[int]) -> None:
        """Remove the sketches of unchanged containers if new ones need more space than was saved.
        So a run that saves nothing does not enlarge the store."""
        if sum(self._new_bytes.values()) > saved_bytes:
            for number in self._new_bytes:
                if number not in rewritten:
                    remove_sketches(self._directory, number)

    def without(
        self, waiting: Sequence[int], others: set[int], sizes: Callable[[int], int]
    ) -> Iterator[int]:
        """Yield those of ``others`` that were processed, but whose sketches were removed: the
        youngest, up to the size of ``waiting`` containers. New data is probably similar to them."""
        remaining = sum(map(sizes, waiting))
        for number in sorted(others - set(waiting), reverse=True):
            if self._looked(number) and not sketches_bytes(self._directory, number):
                remaining -= sizes(number)
                if remaining < 0:
                    return
                yield number

    def sketched(self, number: int) -> bytes:
        """Return the sketches of a container; make the missing ones. Raises Cancelled, NoSpace."""
        count = self._tables.shapes[number].count
        made = bytearray(load_sketches(self._directory, number)[: count * SKETCH_BYTES])
        have = len(made) // SKETCH_BYTES
        if self._forget_dead(number, made) or have < count:
            self._sketch(number, made, have)
        # An interrupted run may have made some, which have saved nothing yet.
        new = count - min(have, self._looked(number))
        if new:
            self._new_bytes[number] = sketches_bytes(self._directory, number) * new // count
        return bytes(made)

    def _sketch(self, number: int, made: bytearray, have: int) -> None:
        """Make the sketches of the records from the ordinal ``have`` on, and save all."""
        with opened(self._directory.open_data(number)) as fd:
            for block in self._tables.blocks([self._tables.whole(number)]):
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

    def _forget_dead(self, number: int, sketches: bytearray) -> bool:
        """Remove the sketches of records that no longer exist; return whether there were any."""
        found_any, nothing = False, bytes(SKETCH_BYTES)
        for block in self._tables.blocks([self._tables.whole(number)]):
            for at, state in enumerate(block.states()):
                start = (block.first + at) * SKETCH_BYTES
                if state not in _STATES and any(sketches[start : start + SKETCH_BYTES]):
                    sketches[start : start + SKETCH_BYTES] = nothing
                    found_any = True
        return found_any
