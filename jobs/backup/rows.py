"""Divides the content of a file into rows for a stream: chunks of the store, holes, and new chunks
of the file's own blocks."""

import os
from collections.abc import Iterator
from dataclasses import dataclass

from dedupd_core.byte_ranges import missing_ranges
from dedupd_core.errors import FileChanged
from dedupd_core.format.ids import HOLE
from dedupd_core.format.stub import StubAttribute
from dedupd_core.store.recipe.recipe_reader import Span
from dedupd_core.stub.stub_file import SparseStub
from dedupd_core.system.files import data_ranges
from dedupd_core.units import MIB
from dedupd_core.volume.volume import Volume
from jobs.backup.content_reader import sparse_stub

CUT_BYTES = 4 * MIB
"""Bytes per read of data that is split into chunks."""


Key = int | bytes
"""Key of a chunk: its id, or its fingerprint if it is not in the store."""


@dataclass(frozen=True, slots=True)
class Row:
    """A part of a file: a chunk of the store, a hole, or a new chunk with the bytes ``raw``. If
    ``fingerprint`` is empty, the store has it, and ``check`` is the recipe's
    (``recipe.fingerprint_check``). A chunk with number and fingerprint is in a cluster store, whose
    numbers are only valid in this run."""

    length: int
    chunk: int = HOLE
    fingerprint: bytes = b""
    raw: bytes = b""
    check: int = 0

    @property
    def is_hole(self) -> bool:
        return self.chunk == HOLE and not self.fingerprint

    @property
    def span(self) -> Span:
        """Return a chunk of the store as a recipe names it."""
        return Span(0, self.length, self.chunk, self.check)

    @property
    def key(self) -> "Key":
        """Return the key that distinguishes the chunk from all others."""
        return self.fingerprint or self.chunk


class Rows:
    """Divides files of a volume into rows."""

    def __init__(self, volume: Volume) -> None:
        self._volume, self._store = volume, volume.chunk_store
        self._chunker = volume.parameters.chunker()

    def of(self, fd: int, stub: StubAttribute | None, where: str) -> Iterator[Row]:
        """Yield the rows of an open file. Their lengths add up to its size. Raises Damaged."""
        size = os.fstat(fd).st_size
        if stub is None:
            yield from self._own(fd, 0, size)
            return
        sparse = sparse_stub(self._volume, fd, stub, where)
        covered = min(stub.covered, size)
        for start, end, chunk, check in _parts(sparse, covered):
            if chunk is None:
                yield from self._cut(sparse, start, end)
            else:
                yield Row(end - start, chunk, self._fingerprint(chunk), check=check)
        if covered < size:
            yield from self._own(fd, covered, size)

    def _fingerprint(self, chunk: int) -> bytes:
        return b"" if chunk == HOLE else self._store.lasting_fingerprint(chunk)

    def _own(self, fd: int, start: int, end: int) -> Iterator[Row]:
        """Yield the rows of a range without data of the store."""
        at = start
        for low, high in data_ranges(fd, start, end):
            if at < low:
                yield Row(low - at)
            yield from self._cut(fd, low, high)
            at = high
        if at < end:
            yield Row(end - at)

    def _cut(self, source: "int | SparseStub", start: int, end: int) -> Iterator[Row]:
        carry, at = b"", start
        while at < end:
            count = min(CUT_BYTES, end - at)
            if isinstance(source, int):
                data = carry + os.pread(source, count, at)
            else:
                data = carry + bytes(source.read(at, count))
            if len(data) != len(carry) + count:
                raise FileChanged("the file was truncated while it was read")
            at += count
            found = self._chunker.process(data, [(0, len(data), at == end)])
            ends = memoryview(found.ends).cast("I")
            low = 0
            for number, high in enumerate(ends):
                fingerprint = found.fingerprints[32 * number : 32 * number + 32]
                if found.zero[number]:
                    yield Row(high - low)
                else:
                    yield Row(high - low, HOLE, fingerprint, data[low:high])
                low = high
            carry = data[low:]


_Part = tuple[int, int, int | None, int]


def _parts(sparse: SparseStub, covered: int) -> Iterator[_Part]:
    """Yield (start, end, chunk, check of its fingerprint) for the covered range. ``HOLE`` means
    zeros; None means bytes to split into chunks, because they include own blocks or the end of the
    file. Adjacent parts of this kind are joined."""
    missing = sparse.missing(0, covered)
    pending: tuple[int, int] | None = None
    at = 0
    for span in sparse.content.recipe.spans(0, covered):
        low, high = span.offset, span.offset + span.length
        while at < len(missing) and missing[at][1] <= low:
            at += 1
        is_whole = at < len(missing) and missing[at][0] <= low and high <= missing[at][1]
        if is_whole and (span.chunk != HOLE or high <= covered):
            parts: list[_Part] = [(low, high, span.chunk, span.fingerprint_check)]
        elif span.chunk != HOLE:
            parts = [(low, min(high, covered), None, 0)]
        else:
            parts = _hole_parts(missing, at, low, min(high, covered))
        for part in parts:
            if part[2] is None:
                pending = (pending[0] if pending else part[0], part[1])
                continue
            if pending:
                yield *pending, None, 0
                pending = None
            yield part
    if pending:
        yield *pending, None, 0


def _hole_parts(missing: list[tuple[int, int]], first: int, low: int, high: int) -> list[_Part]:
    """Divide a hole of the recipe in which the file has its own blocks."""
    holes = []
    for start, end in missing[first:]:
        if start >= high:
            break
        if end > low:
            holes.append((max(start, low), min(end, high)))
    parts: list[_Part] = [(*hole, HOLE, 0) for hole in holes]
    parts += [(*own, None, 0) for own in missing_ranges(holes, low, high)]
    return sorted(parts, key=lambda part: part[0])
