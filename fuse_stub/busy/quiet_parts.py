"""The parts of a busy file that a job is about to store, and which of them stay unchanged."""

import os
from collections.abc import Iterator

from dedupd_core import native
from dedupd_core.byte_ranges import intersections
from dedupd_core.units import align_down, align_up

GRAIN_BYTES = native.mount.GRAIN_BYTES


RANGES_MAX = 65536
"""Ranges per offer, which is sent to the job as text."""


def present_quiet(
    fd: int, quiet: list[tuple[int, int]], block_bytes: int, bytes_max: int
) -> Iterator[tuple[int, int]]:
    """Yield the parts of the ``quiet`` ranges that are in complete blocks of the file: at most
    ``bytes_max`` bytes and ``RANGES_MAX`` ranges."""
    count = 0
    # A block that is only partly punched would keep its space, and contain zeros.
    bytes_max = align_down(bytes_max, block_bytes)
    file_end = align_down(os.fstat(fd).st_size, block_bytes)
    for start, end in intersections(native.system.present_ranges(fd, 0, file_end), quiet):
        start = align_up(start, block_bytes)
        end = min(align_down(end, block_bytes), start + bytes_max)
        if start < end and count < RANGES_MAX:
            bytes_max -= end - start
            count += 1
            yield start, end


class QuietParts:
    """An offer of parts of a file to a job. Used by the event-loop thread.

    It is made under the file's exclusive lock. From then on, each write is noted under that lock
    before it is made. ``is_over`` is set when anything else changes the file's blocks.
    """

    def __init__(self, size: int, recipe: int | None) -> None:
        """``recipe``: that of the stub; None for a plain file."""
        self.ranges: list[tuple[int, int]] = []
        self.size = size
        self.recipe = recipe
        self.is_over = False
        self._written: set[int] = set()

    @property
    def size_bytes(self) -> int:
        return sum(end - start for start, end in self.ranges)

    def note(self, start: int, end: int) -> None:
        """Note a write of bytes [start, end) that is about to be made."""
        self._written.update(range(start // GRAIN_BYTES, -(-end // GRAIN_BYTES)))

    def pieces(self) -> Iterator[tuple[int, int]]:
        """Yield the offered ranges in pieces that are in one grain each."""
        for start, end in self.ranges:
            while start < end:
                stop = min(end, align_down(start, GRAIN_BYTES) + GRAIN_BYTES)
                yield start, stop
                start = stop

    def is_written(self, at: int) -> bool:
        """Return whether the grain of a byte has been written to."""
        return at // GRAIN_BYTES in self._written
