"""Ranges of a file, as pure values: (start, end) pairs, the end not included."""

from collections.abc import Iterable, Iterator


def missing_ranges(
    present: Iterable[tuple[int, int]], start: int, end: int
) -> Iterator[tuple[int, int]]:
    """The parts of [start, end) that none of ``present`` holds, which ascend by their starts."""
    for begin, stop in present:
        if stop <= start:
            continue
        if begin >= end:
            break
        if start < begin:
            yield start, begin
        start = stop
    if start < end:
        yield start, end
