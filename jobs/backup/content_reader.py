"""Reads the bytes of a file in pieces, from its own blocks and from the store, without zeros."""

import errno
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice

from dedupd_core.byte_ranges import missing_ranges
from dedupd_core.format.stub import StubAttribute
from dedupd_core.store.recipe.recipe_reader import Span
from dedupd_core.stub.content import proved_record
from dedupd_core.stub.stub_file import SparseStub
from dedupd_core.system.extents import has_unwritten
from dedupd_core.system.files import data_ranges, read_at
from dedupd_core.units import MIB
from dedupd_core.volume.volume import Volume

PIECE_BYTES = 1 * MIB
"""Bytes per read of a file's own blocks."""

_CHUNKS_AT_ONCE = 32
"""Chunks in memory per file: 4 MiB of the largest chunks."""


class ContentReader:
    """Reads files of a volume. ``pool`` decompresses chunks."""

    def __init__(self, volume: Volume, pool: ThreadPoolExecutor) -> None:
        self._volume = volume
        self._pool = pool

    def pieces(
        self, fd: int, stub: StubAttribute | None, where: str
    ) -> Iterator[tuple[int, bytes | memoryview]]:
        """Yield (offset, bytes) of all data. Bytes of chunks match their fingerprints.

        Raises Damaged, OSError.
        """
        size = os.fstat(fd).st_size
        if stub is None:
            yield from own_pieces(fd, data_ranges(fd, 0, size))
            return
        sparse = sparse_stub(self._volume, fd, stub, where)
        missing = sparse.missing(0, size)
        yield from own_pieces(fd, _local(fd, missing, size, stub.covered))
        for start, end in missing:
            rest = sparse.content.spans(start, end)
            while spans := list(islice(rest, _CHUNKS_AT_ONCE)):
                for span, raw in zip(spans, self._pool.map(self._chunk, spans), strict=True):
                    low, high = max(start, span.offset), min(end, span.offset + span.length)
                    yield low, memoryview(raw)[low - span.offset : high - span.offset]

    def _chunk(self, span: Span) -> bytes:
        volume = self._volume
        return proved_record(volume.chunk_records, span, volume.parameters.fingerprint)[1]


def sparse_stub(volume: Volume, fd: int, stub: StubAttribute, where: str) -> SparseStub:
    """Return a stub for reading, which may have blocks that were never written."""
    sparse = SparseStub(fd, stub, volume.stub_files, partial(volume.content, where=where))
    status = os.fstat(fd)
    sparse.has_unwritten = status.st_blocks > 0 and has_unwritten(fd, status.st_size)
    return sparse


def _local(
    fd: int, missing: list[tuple[int, int]], size: int, covered: int
) -> Iterator[tuple[int, int]]:
    """Yield the ranges that a stub has in its own blocks."""
    for start, end in missing_ranges(missing, 0, size):
        if start < covered:
            yield start, min(end, covered)
        yield from data_ranges(fd, max(start, covered), end)


def own_pieces(fd: int, ranges: Iterator[tuple[int, int]]) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, bytes) of ranges in a file's own blocks. Raises OSError."""
    for start, end in ranges:
        for at in range(start, end, PIECE_BYTES):
            length = min(PIECE_BYTES, end - at)
            data = read_at(fd, length, at)
            if len(data) != length:
                raise OSError(
                    errno.EIO, f"the file was truncated to {at + len(data)} bytes while it was read"
                )
            yield at, data
