"""Chunks of a store without a volume, as native code reads them for a stub that is made of them."""

import struct
from collections.abc import Sequence
from itertools import accumulate, pairwise

from dedupd_core import native
from dedupd_core.format.recipe import content_digest, encode_node
from dedupd_core.store.reader import RecordReader

Row = tuple[int, int, int]
"""Id, length and fingerprint check of a chunk, as a recipe names it."""

NODE = 1 << 40
"""The id of a recipe that no container has: native code is given it."""


class StubOfChunks:
    """A stub whose recipe has some rows, whatever is in the store."""

    def __init__(
        self, reader: RecordReader, rows: Sequence[Row], *, threads: int = 1, cache_bytes: int = 0
    ) -> None:
        native_reader = reader.native_reader
        self.cache = native.store.ChunkCache(cache_bytes)
        self.native = native.store.StubBytes(native_reader, native_reader, self.cache, threads)
        entries = [
            (one, length, struct.pack("<I", check) + bytes(28)) for one, length, check in rows
        ]
        self.offsets = [*accumulate((length for _, length, _ in entries), initial=0)]
        if rows:
            content = content_digest([(own, length) for _, length, own in entries])
            self.native.keep_node(NODE, encode_node(0, content, entries), bytes(32))

    def read(
        self, start: int, end: int, *, waits: bool = True
    ) -> bytes | list[native.store.Unreadable]:
        stub = NODE, bytes(16), False, self.offsets[-1]
        return self.native.read(-1, stub, (), start, end, waits=waits)

    def chunks(self, *, waits: bool = True) -> list[bytes | None]:
        """Each chunk; None for each unreadable chunk."""
        found = [self.read(start, end, waits=waits) for start, end in pairwise(self.offsets)]
        return [one if isinstance(one, bytes) else None for one in found]

    def reasons(self, *, waits: bool = True) -> list[str | None]:
        """The reason of each unreadable chunk; None for each readable one."""
        found = [self.read(start, end, waits=waits) for start, end in pairwise(self.offsets)]
        return [None if isinstance(one, bytes) else one[0].why for one in found]


def read_chunks(
    reader: RecordReader, rows: Sequence[Row], *, waits: bool = True, threads: int = 1
) -> list[bytes | None]:
    return StubOfChunks(reader, rows, threads=threads).chunks(waits=waits)
