"""Ranges of bytes as values: (start, end) pairs, half open."""

from collections.abc import Iterable, Iterator


def missing_ranges(
    present: Iterable[tuple[int, int]], start: int, end: int
) -> Iterator[tuple[int, int]]:
    """The parts of [start, end) that are in none of ``present``, which ascend by their starts."""
    for present_start, present_end in present:
        if present_end <= start:
            continue
        if present_start >= end:
            break
        if start < present_start:
            yield start, present_start
        start = present_end
    if start < end:
        yield start, end
