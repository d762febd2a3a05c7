"""Reads of stubs that native code does not answer: where the bytes come from.

Native code reads stubs by itself (``native/src/mount/requests/reading.rs``), unless anything is out
of the ordinary, or a store in a cluster was not opened yet. A read here takes the first of three
lanes that has all of it:

1. **One chunk** (:meth:`StubReader._from_memory`): most small reads lie in one chunk, which is in
   the cache, or in the page cache and decompressed at once.
2. **Several parts** (:meth:`StubReader._from_memory`): the chunks are in memory, as before, and
   :meth:`SparseStub.read` joins them with the blocks that the stub has of its own.
3. **The disk** (:meth:`StubReader._from_disk`): the same in a thread, which waits for the disk. A
   sequential reader that has waited a few times gets the chunks ahead loaded by threads.

Lanes 1 and 2 never wait. Chunks come from :class:`ChunkCache`, which reads them by
:class:`dedupd_core.store.reader.RecordReader`: many at once in native code, and one by one in
Python where anything is out of the ordinary.
"""

import os

from dedupd_core.stub.stub_file import SparseStub
from dedupd_core.units import MIB
from fuse_stub.files.chunk_cache import ChunkCache
from fuse_stub.files.open_file import Reader
from fuse_stub.files.slow_calls import SlowCalls

WAITS_MIN = 3
"""Loading ahead begins when a sequential reader waits for the third time: the kernel sends two
requests at once, and the first ones may wait for the recipe and the container to be opened."""

AHEAD_BYTES = 2 * MIB
"""Loaded ahead of a sequential reader that waits for the disk: some 25 chunks."""


class StubReader:
    """Reads stubs for all readers of a mount. Used by the thread of the event loop."""

    def __init__(self, cache: ChunkCache, slow_calls: SlowCalls) -> None:
        self._cache = cache
        self._slow_calls = slow_calls

    async def read(self, reader: Reader, start: int, length: int) -> bytes | bytearray:
        """Up to ``length`` bytes at ``start`` of a stub; shorter only at the end.

        The caller shares the lock of the file. Raises Damaged, OSError.
        """
        file = reader.file
        stub = file.stub
        assert stub is not None
        if not reader.touched:
            # Moves the access time as the file system below is mounted to do, and reads nothing.
            os.pread(file.fd, 1, os.fstat(file.fd).st_size)
            reader.touched = True
        reader.follow(start, length)
        data: bytes | bytearray | None = None
        if stub.is_loaded:
            data = self._from_memory(stub, start, length)
        if data is None:
            reader.waits += 1
            data = await self._slow_calls.run(reader.uid, self._from_disk, stub, start, length)
        self._load_ahead(reader)
        return data

    def _from_memory(self, stub: SparseStub, start: int, length: int) -> bytes | bytearray | None:
        """Bytes that cost no wait for the disk; None where they do."""
        cache = self._cache
        span = stub.chunk_of(start, start + length)
        if span is None:
            spans = stub.chunks(start, start + length)
            return stub.read(start, length) if cache.load_at_once(spans) else None
        data = cache.part(span, start, start + length)
        if data is None and cache.load_at_once((span,)):
            data = cache.part(span, start, start + length)
        return data

    def _from_disk(self, stub: SparseStub, start: int, length: int) -> bytes | bytearray:
        self._cache.load(stub.chunks(start, start + length))
        return stub.read(start, length)

    def _load_ahead(self, reader: Reader) -> None:
        """Begin to load the next chunks for a sequential reader that waits for the disk."""
        if reader.run == 0:
            reader.waits = 0
            return
        stub = reader.file.stub
        if (
            reader.waits < WAITS_MIN
            or stub is None
            or not stub.is_loaded
            or reader.ahead - reader.next > AHEAD_BYTES // 2
        ):
            return
        start = max(reader.ahead, reader.next)
        reader.ahead = reader.next + AHEAD_BYTES
        self._cache.read_ahead(stub.chunks(start, reader.ahead))
