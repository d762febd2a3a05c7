"""Splits a file of a volume into chunks for a store in a cluster.

A chunk is read again when it has to be sent, so a file needs only about 200 bytes of memory per
chunk. Chunks that the cluster already has are read once.
"""

import os
from array import array
from collections.abc import Callable, Iterator

from dedupd_core import native
from dedupd_core.byte_ranges import joined, missing_ranges
from dedupd_core.errors import FileChanged
from dedupd_core.format.cluster.objects import FileId, frame_of
from dedupd_core.rados.chunks import NewChunk
from dedupd_core.rados.writer import FileChunk, NewFile
from dedupd_core.stub.local_blocks import checked_stub
from dedupd_core.stub.transition import local_ranges
from dedupd_core.system.files import data_ranges, read_at
from dedupd_core.units import MIB
from dedupd_core.volume.volume import Volume

WINDOW_BYTES = 8 * MIB

ReadRange = Callable[[int, int], bytes | bytearray]


def reader_of(volume: Volume, fd: int, where: str) -> tuple[ReadRange, list[tuple[int, int]]]:
    """Return a function that reads an open file, plain or stub, and its ranges without holes.

    ``fd`` stays the caller's. Raises Damaged, OSError.
    """
    size = os.fstat(fd).st_size
    stub = checked_stub(fd, volume.stub_files, where)
    if stub is None:
        return lambda start, end: read_at(fd, end - start, start), list(data_ranges(fd, 0, size))
    content, local, covered = volume.content(stub, where), local_ranges(fd, size), stub.covered
    ranges = [*local]
    for low, high in missing_ranges(local, 0, min(covered, size)):
        ranges += content.data_ranges(low, high)

    def read(start: int, end: int) -> bytes:
        return content.read_file(fd, local, covered, start, end)

    # A chunk may extend across a local block of the stub.
    return read, list(joined(sorted(ranges)))


def cut_file(
    volume: Volume,
    file: FileId,
    size: int,
    read: ReadRange,
    ranges: list[tuple[int, int]],
    *,
    level: int,
    safe_point: Callable[[], None],
) -> NewFile:
    """Return the chunks of a file, without zeros. Raises FileChanged if it was truncated."""
    chunks = [
        FileChunk(offset, length, _chunk(volume, read, offset, length, fingerprint, level))
        for start, end in ranges
        for offset, length, fingerprint in cut_ranges(volume, read, start, end, safe_point)
    ]
    return NewFile(file, size, chunks)


def cut_ranges(
    volume: Volume, read: ReadRange, start: int, end: int, safe_point: Callable[[], None]
) -> Iterator[tuple[int, int, bytes]]:
    """Yield offset, length and fingerprint of the chunks of a range."""
    chunker = volume.parameters.chunker()
    while start < end:
        safe_point()
        window_end = min(start + WINDOW_BYTES, end)
        data = read(start, window_end)
        if len(data) != window_end - start:
            raise FileChanged("it was truncated while it was read")
        found = chunker.process(data, [(0, len(data), window_end == end)])
        position = 0
        fingerprints, zeros = found.fingerprints, found.zero
        for at, chunk_end in enumerate(array("I", found.ends)):
            if not zeros[at]:
                own = fingerprints[at * 32 : at * 32 + 32]
                yield start + position, chunk_end - position, own
            position = chunk_end
        start += position


def _chunk(
    volume: Volume, read: ReadRange, offset: int, length: int, fingerprint: bytes, level: int
) -> NewChunk:
    algorithm = volume.parameters.fingerprint

    def frame() -> bytes:
        raw = bytes(read(offset, offset + length))
        if native.hashing.fingerprint(raw, algorithm) != fingerprint:
            raise FileChanged("it was changed while it was stored")
        return frame_of(raw, fingerprint, level=level)

    return NewChunk(fingerprint, frame)
