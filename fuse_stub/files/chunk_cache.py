"""Decompressed chunks in memory, and the threads that load them ahead of their readers."""

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from dedupd_core import native
from dedupd_core.store.reader import ChunkSource
from dedupd_core.store.recipe.recipe_reader import Span
from dedupd_core.stub.content import read_chunk

INLINE_BYTES_MAX = 1280 << 10
"""Up to this length (the largest read), chunks that the page cache has are loaded by the calling
thread, at 0.5 ms/MiB. Handing them to other threads takes longer than the other core gains: a
sequential reader gets 390 MB/s then, and 700 without."""

TASK_BYTES = 512 << 10
"""Length of chunks that one task loads ahead: a task costs some 50 µs, however long they are."""

_Key = tuple[int, int, int]


def _key(span: Span) -> _Key:
    """The key of a chunk: its id, and the length and fingerprint check that the recipe expects."""
    return span.chunk, span.length, span.fingerprint_check


class ChunkCache:
    """Verified chunks up to a number of bytes; the longest unused go first. Safe to use from
    several threads. The chunks are in ``native``, which native code uses as well.

    A chunk that several readers here want at once is read once. ``_lock`` is held for memory
    operations only, never for I/O.
    """

    def __init__(self, records: ChunkSource, bytes_max: int, threads: int) -> None:
        self.native = native.store.ChunkCache(bytes_max)
        self._records = records
        self._threads = threads
        self._lock = threading.Lock()
        self._loading: dict[_Key, threading.Event] = {}  # _lock: chunks that a thread is reading
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="read-ahead")

    def close(self) -> None:
        """Stop loading ahead."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    @property
    def used_bytes(self) -> int:
        return self.native.bytes

    @property
    def uses(self) -> tuple[int, int]:
        """How often a chunk was there, and how often it had to be read."""
        return self.native.uses

    def find(self, span: Span) -> bytes | None:
        """The chunk, where it is in memory."""
        return self.part(span, span.offset, span.offset + span.length)

    def part(self, span: Span, start: int, end: int) -> bytes | None:
        """Bytes [start, end) of a file, which lie in a chunk, where that is in memory."""
        return self.native.part(_key(span), start - span.offset, end - span.offset)

    def has(self, spans: Iterable[Span]) -> bool:
        """Whether chunks are all in memory."""
        return all(self.native.has(_key(span)) for span in spans)

    def keep(self, chunks: Iterable[tuple[Span, memoryview]]) -> None:
        """Put chunks into the cache, verified by the caller."""
        for span, raw in chunks:
            if not self.native.has(key := _key(span)):
                self.native.keep(key, raw)

    def read(self, span: Span) -> bytes:
        """The chunk, from memory or from the store. Raises DamagedContainer."""
        raw = self.find(span)
        if raw is not None:
            return raw
        key = _key(span)
        raw = self._load([key]).get(key) or self.find(span)
        if raw is None:
            raw = read_chunk(self._records, span)
            self.native.keep(key, raw)
        return raw

    def load_at_once(self, spans: Iterable[Span]) -> bool:
        """Load chunks without waiting for the disk; False where not all of them are in memory."""
        absent = self._absent(spans)
        if not absent:
            return True
        if sum(length for _, length, _ in absent) > INLINE_BYTES_MAX:
            return False
        found = self._records.read_chunks(absent, cached_only=True, threads=self._threads)
        for key, raw in zip(absent, found, strict=True):
            if raw is not None:
                self.native.keep(key, raw)
        return None not in found

    def load(self, spans: Iterable[Span]) -> None:
        """Load the chunks of the next read, as far as there is room.

        Errors are left to :meth:`read`.
        """
        self._load(self._absent(spans))

    def read_ahead(self, spans: Iterable[Span]) -> None:
        """Begin to load chunks of reads that are expected soon."""
        part: list[_Key] = []
        part_bytes = 0
        for key in self._absent(spans):
            part.append(key)
            part_bytes += key[1]
            if part_bytes >= TASK_BYTES:
                self._pool.submit(self._load, part)
                part, part_bytes = [], 0
        if part:
            self._pool.submit(self._load, part)

    def _absent(self, spans: Iterable[Span]) -> list[_Key]:
        return [key for span in spans if not self.native.has(key := _key(span))]

    def _load(self, keys: Sequence[_Key]) -> dict[_Key, bytes | None]:
        """Load the chunks that no thread has loaded or is loading, and wait for the latter. Those
        that were read here."""
        mine: list[_Key] = []
        loaded = threading.Event()
        others = set()
        with self._lock:
            for key in keys:
                if key in self._loading:
                    others.add(self._loading[key])
                elif not self.native.has(key):
                    mine.append(key)
                    self._loading[key] = loaded
        found: list[bytes | None] = [None] * len(mine)
        if mine:
            try:
                found = self._records.read_chunks(mine, cached_only=False)
            finally:
                with self._lock:
                    for key, raw in zip(mine, found, strict=True):
                        del self._loading[key]
                        if raw is not None:
                            self.native.keep(key, raw)
                loaded.set()
        for other in others - {loaded}:
            other.wait()
        return dict(zip(mine, found, strict=True))
