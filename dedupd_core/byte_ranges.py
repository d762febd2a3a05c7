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


def intersections(
    some: Iterable[tuple[int, int]], others: Iterable[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """What two rows of ranges, each ascending and apart, have in common."""
    rest = iter(others)
    other = next(rest, None)
    for start, end in some:
        while other is not None and other[0] < end:
            low, high = max(start, other[0]), min(end, other[1])
            if low < high:
                yield low, high
            if other[1] > end:
                break
            other = next(rest, None)


def joined(ranges: Iterable[tuple[int, int]], gap_max: int = 0) -> Iterator[tuple[int, int]]:
    """Ranges that ascend, as one where no more than a gap of so many bytes is between two."""
    start = end = -1
    for low, high in ranges:
        if start >= 0 and low - end <= gap_max:
            end = max(end, high)
            continue
        if start >= 0:
            yield start, end
        start, end = low, high
    if start >= 0:
        yield start, end
