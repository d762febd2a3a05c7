"""Selects the containers for a refine run: those with cold records that no run has processed."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from dedupd_core.config.policy import RefineMode
from dedupd_core.format.domain import PartitionKey
from dedupd_core.store.container.directory import ContainerDirectory
from dedupd_core.store.container.table_scan import TableShape
from dedupd_core.volume.hints import HintKey
from dedupd_core.volume.volume import Volume

_RANK = {RefineMode.OFF: 0, RefineMode.QUICK: 1, RefineMode.FULL: 2}
"""Ranks of the modes: a run of a lower rank does only a part of the work of a higher rank."""


@dataclass(frozen=True, slots=True)
class RefineProgress:
    """The progress in a container: its first ``count`` records were processed by a run of a rank.
    ``left_bytes`` would be gained by leaving bases that only deltas need, but were not."""

    count: int
    rank: int
    left_bytes: int


class RefineHistory:
    """The progress of earlier runs. If it is lost, containers are processed again."""

    def __init__(self, volume: Volume, mode: RefineMode) -> None:
        self._hints = volume.store_hints
        self._rank = _RANK[mode]

    def of(self, number: int) -> RefineProgress:
        """Return the known progress of a container."""
        found = self._hints.get(HintKey.REFINED.of(f"{number:08d}"))
        if isinstance(found, list) and len(found) == 3 and all(isinstance(n, int) for n in found):
            return RefineProgress(*found)
        return RefineProgress(0, 0, 0)

    def is_done(self, number: int, count: int) -> bool:
        """Return whether this mode has nothing to do in a container of ``count`` records."""
        looked = self.of(number)
        return looked.count >= count and looked.rank >= self._rank

    def done(self, number: int) -> int:
        """Return the number of records that a run of this or a higher mode has processed."""
        looked = self.of(number)
        return looked.count if looked.rank >= self._rank else 0

    def note(self, number: int, count: int, left_bytes: int = 0) -> None:
        """Record that a container was processed."""
        rank = max(self._rank, self.of(number).rank if self.is_done(number, count) else 0)
        self._hints.put(HintKey.REFINED.of(f"{number:08d}"), [count, rank, left_bytes])

    def left_bytes(self, number: int) -> int:
        """Return the bytes in a container that could not be gained."""
        return self.of(number).left_bytes


def cold(
    directory: ContainerDirectory, shapes: dict[int, TableShape], age_s: float
) -> Iterator[int]:
    """Yield, in ascending order, the containers without appends for ``age_s``.

    A container of a partition grows until the next one is started. The last one is as old as its
    file, which compaction makes young again.
    """
    begun_ns: dict[PartitionKey, int] = {}
    last_ns: dict[int, int] = {}
    for number, shape in sorted(shapes.items(), reverse=True):
        partition = shape.header.partition_key
        if partition in begun_ns:
            last_ns[number] = begun_ns[partition]
        else:
            last_ns[number] = directory.stat(number).st_mtime_ns
        begun_ns[partition] = shape.header.created_ns
    now_ns = time.time_ns()
    for number in sorted(shapes):
        if now_ns - last_ns[number] >= age_s * 1e9:
            yield number
