"""Ranges of bytes as values: (start, end) pairs, half open."""

from collections.abc import Iterable, Iterator


def missing_ranges(
    present: Iterable[tuple[int, int]], start: int, end: int
) -> Iterator[tuple[int, int]]:
    """Yield the parts of [start, end) outside of ``present``, which is sorted by start."""
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
    """Yield the intersections of two sequences of ranges, each sorted and without overlaps."""
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
    """Yield sorted ranges, joined if the gap between two is at most ``gap_max`` bytes."""
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
