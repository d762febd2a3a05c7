"""The parts of one busy file that a job is about to store, and which of them stay as they were."""

import os
from collections.abc import Iterator

from dedupd_core import native
from dedupd_core.byte_ranges import intersections
from dedupd_core.units import align_down, align_up

GRAIN_BYTES = native.mount.GRAIN_BYTES


RANGES_MAX = 65536
"""Of one offer: they travel to the job as text."""


def present_quiet(
    fd: int, quiet: list[tuple[int, int]], block_bytes: int, bytes_max: int
) -> Iterator[tuple[int, int]]:
    """What of the ``quiet`` ranges lies in whole blocks of the file itself: up to so many bytes, in
    up to ``RANGES_MAX`` ranges."""
    count = 0
    # A block of which a part was punched would keep its place, with zeros in it.
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
    """What a job was offered of a file. Used by the thread of the event loop.

    From the moment in which it was made, with the file's lock alone, each write is noted under that
    lock before it is made. ``is_over`` once anything else has changed what the file's bytes lie in.
    """

    def __init__(self, size: int, recipe: int | None) -> None:
        """``recipe`` is that of the stub that the file is, None of a plain one."""
        self.ranges: list[tuple[int, int]] = []
        self.size = size
        self.recipe = recipe
        self.is_over = False
        self._written: set[int] = set()

    @property
    def size_bytes(self) -> int:
        return sum(end - start for start, end in self.ranges)

    def note(self, start: int, end: int) -> None:
        """A write of bytes [start, end) is about to be made."""
        self._written.update(range(start // GRAIN_BYTES, -(-end // GRAIN_BYTES)))

    def pieces(self) -> Iterator[tuple[int, int]]:
        """What was offered, in pieces that lie in one grain each."""
        for start, end in self.ranges:
            while start < end:
                stop = min(end, align_down(start, GRAIN_BYTES) + GRAIN_BYTES)
                yield start, stop
                start = stop

    def is_written(self, at: int) -> bool:
        """Whether the grain of a byte has been written to."""
        return at // GRAIN_BYTES in self._written
