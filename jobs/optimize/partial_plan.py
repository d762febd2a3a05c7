"""Partial files: which parts of a stub that was written to must be chunked again.

Pure planning. A chunk that no local range touches keeps its place in the recipe; runs of the others
are cut again from the file's current content. A hole is only split, never read.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from dedupd_core.format.ids import HOLE
from dedupd_core.store.recipe.recipe_reader import Span


class KeptSpan(NamedTuple):
    """A chunk, or a hole, that the new recipe takes over. ``check`` is that of the old recipe."""

    chunk: int
    length: int
    check: int = 0


class FreshRange(NamedTuple):
    """A range of the file, [start, end), that is cut again."""

    start: int
    end: int


def plan(
    spans: Iterable[Span], local: Sequence[tuple[int, int]], covered: int, size: int
) -> Iterator[KeptSpan | FreshRange]:
    """How the recipe of a stub's current content comes from its old one, in order.

    ``spans`` are the old recipe's, from 0 to ``covered`` (not beyond ``size``) at least; ``local``
    the (start, end) ranges that lie in the file itself, ascending and apart. The ranges of the plan
    add up to ``size``, and neighbouring ``FreshRange`` ranges are joined.
    """
    pending: FreshRange | None = None
    for part in _parts(spans, local, covered, size):
        if isinstance(part, KeptSpan):
            if pending is not None:
                yield pending
            pending = None
            yield part
        elif pending is None:
            pending = part
        else:
            pending = FreshRange(pending.start, part.end)
    if pending is not None:
        yield pending


def _parts(
    spans: Iterable[Span], local: Sequence[tuple[int, int]], covered: int, size: int
) -> Iterator[KeptSpan | FreshRange]:
    ends = [end for _, end in local]

    def touched(start: int, end: int) -> Iterator[FreshRange]:
        """The local parts of [start, end)."""
        at = bisect_right(ends, start)
        while at < len(local) and local[at][0] < end:
            yield FreshRange(max(start, local[at][0]), min(end, local[at][1]))
            at += 1

    def hole(start: int, end: int) -> Iterator[KeptSpan | FreshRange]:
        for fresh in touched(start, end):
            if start < fresh.start:
                yield KeptSpan(HOLE, fresh.start - start)
            yield fresh
            start = fresh.end
        if start < end:
            yield KeptSpan(HOLE, end - start)

    for span in spans:
        if span.offset >= covered:
            break
        end = min(span.offset + span.length, covered)
        if span.chunk == HOLE:
            yield from hole(span.offset, end)
        elif end < span.offset + span.length or any(touched(span.offset, end)):
            yield FreshRange(span.offset, end)
        else:
            yield KeptSpan(span.chunk, span.length, span.fingerprint_check)
    yield from hole(covered, size)
