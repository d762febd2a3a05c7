"""Ranges of a stub that are changed, or looked for, without data: fallocate(2), ``SEEK_DATA``.

A hole below ``covered`` stands for the recipe's bytes, so it cannot stand for zeros. A range that
is punched becomes what a write of zeros makes of it, except where a hole means zeros in any case:
beyond ``covered``, which comes down where all from a place on is to be zeros, and where the recipe
has a hole. Each change is one of :class:`~dedupd_core.stub.stub_file.SparseStub`'s: a crash between
two of them leaves some of the range as it was.

Nothing here locks: looking may share a stub, changes need it alone. A change is made in steps, each
of which begins where the one before has ended, with the stub as it is then.
"""

import errno
import os
from collections.abc import Iterator
from typing import NamedTuple

from dedupd_core.stub.stub_file import SparseStub
from dedupd_core.system.files import data_ranges
from dedupd_core.units import GIB, MIB, align_down, align_up

STEP_BYTES = 4 * MIB
"""Zeros, or content, that are written while nobody else uses the file; a step has no more."""

WINDOW_BYTES = 64 * MIB
"""So much of a recipe is looked at in one step."""

LOOKED_AT_BYTES_MAX = 64 * GIB
"""A search ends after so much, some million chunks: what is beyond counts as data then."""


class Step(NamedTuple):
    """What became of a step: it ended at ``end``, and whether the file is plain from now on."""

    end: int
    is_plain: bool = False


def allocate(stub: SparseStub, start: int, end: int, *, keep_size: bool) -> Step:
    """Give a range blocks, from its start on, so that later writes of it need no space. Raises
    NoSpace, OSError, Damaged."""
    size, covered = os.fstat(stub.fd).st_size, _covered_end(stub)
    low = align_down(start, stub.block_bytes)
    step_end = min(end, low + STEP_BYTES, covered)
    if start < step_end:
        for missing_start, missing_end in stub.missing(low, min(step_end, size)):
            data = bytes(stub.read(missing_start, missing_end - missing_start))
            stub.write(missing_start, data)
        if step_end < end:
            return Step(step_end)
    elif covered < end:
        stub.reserve(max(start, covered), end)
    if end > size and not keep_size:
        stub.truncate(end)
    return Step(end)


def zero(stub: SparseStub, start: int, end: int) -> Step:
    """Have a range read as zeros, from its start on, as far as the file goes, and give up blocks
    that are not needed for that. Raises NoSpace, OSError, Damaged."""
    size, block = os.fstat(stub.fd).st_size, stub.block_bytes
    if start >= size:
        return Step(end)
    end = min(end, size)
    low = align_up(start, block)
    high = align_up(end, block) if end == size else align_down(end, block)
    if start < low or low >= high:
        edge = min(low, end) if start < low else end
        _write_zeros(stub, start, edge)
        return Step(max(start, edge))
    if high >= stub.attribute.covered:
        _write_zeros(stub, high, end)
        return Step(end, stub.end_in_zeros(low, high))
    step_end, at = min(high, low + STEP_BYTES), low
    for data_start, data_end in _blocks_with_data(stub, low, step_end):
        stub.give_up(at, data_start)
        stub.write(data_start, bytes(data_end - data_start))
        at = data_end
    stub.give_up(at, step_end)
    return Step(step_end)


def next_data(stub: SparseStub, offset: int) -> int:
    """Where data begin at ``offset`` or behind it. Raises OSError (ENXIO) where there are none."""
    size = os.fstat(stub.fd).st_size
    for start, end in _windows(offset, size):
        for low, _ in _data(stub, start, end):
            return low
    limit = offset + LOOKED_AT_BYTES_MAX
    if limit < size:
        return limit
    raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))


def next_hole(stub: SparseStub, offset: int) -> int:
    """Where a hole, or the end of the file, begins at ``offset`` or behind it. Raises OSError
    (ENXIO) where ``offset`` is not in the file."""
    size = os.fstat(stub.fd).st_size
    if offset >= size:
        raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
    at = offset
    for start, end in _windows(offset, size):
        for low, high in _data(stub, start, end):
            if low > at:
                return at
            at = high
        if at < end:
            return at
    return size


def _data(stub: SparseStub, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The parts of [start, end) that are not known to be zeros, in order."""
    at = start
    for low, high in [*stub.missing(start, end), (end, end)]:
        if at < low:
            yield from _own_data(stub, at, low)
        if low < high:
            yield from stub.content.data_ranges(low, high)
        at = high


def _own_data(stub: SparseStub, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Of a range that is not the recipe's: below ``covered`` it is all blocks of the file's own."""
    covered = min(max(start, _covered_end(stub)), end)
    if start < covered:
        yield start, covered
    yield from data_ranges(stub.fd, covered, end)


def _blocks_with_data(stub: SparseStub, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The whole blocks of [start, end) in which the recipe has data, in order."""
    at = start
    for low, high in stub.content.data_ranges(start, min(end, stub.attribute.covered)):
        low, high = max(at, align_down(low, stub.block_bytes)), align_up(high, stub.block_bytes)
        if low < high:
            yield low, high
            at = high


def _write_zeros(stub: SparseStub, start: int, end: int) -> None:
    """Zeros in less than a block; one that has zeros there already stays as it is."""
    if start < end and any(stub.read(start, end - start)):
        stub.write(start, bytes(end - start))


def _covered_end(stub: SparseStub) -> int:
    """Where the last block that the recipe has a part in ends."""
    return align_up(stub.attribute.covered, stub.block_bytes)


def _windows(offset: int, size: int) -> Iterator[tuple[int, int]]:
    end = min(size, offset + LOOKED_AT_BYTES_MAX)
    for at in range(offset, end, WINDOW_BYTES):
        yield at, min(at + WINDOW_BYTES, end)
