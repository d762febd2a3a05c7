"""Data and holes of a stub: ``SEEK_DATA``, ``SEEK_HOLE``. The caller may share it."""

import errno
import os
from collections.abc import Iterator

from dedupd_core.stub.stub_file import SparseStub
from dedupd_core.system.files import data_ranges
from dedupd_core.units import GIB, MIB, align_up

WINDOW_BYTES = 64 * MIB
"""So much of a recipe is looked at in one step."""

LOOKED_AT_BYTES_MAX = 64 * GIB
"""A search ends after so much, some million chunks: what is beyond counts as data then."""


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
    covered = min(max(start, align_up(stub.attribute.covered, stub.block_bytes)), end)
    if start < covered:
        yield start, covered
    yield from data_ranges(stub.fd, covered, end)


def _windows(offset: int, size: int) -> Iterator[tuple[int, int]]:
    end = min(size, offset + LOOKED_AT_BYTES_MAX)
    for at in range(offset, end, WINDOW_BYTES):
        yield at, min(at + WINDOW_BYTES, end)
