"""Chunks in memory, decompressed, and the threads that get them there ahead of their readers."""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from dedupd.store.reader import RecordReader
from dedupd.store.recipe.recipe_reader import Span
from dedupd.stub.content import read_chunk

INLINE_BYTES_MAX = 1280 << 10
"""Chunks of this much, the largest read, are loaded from the page cache by who wants them: that
takes 0.5 ms/MiB. Handing them to threads, and contending with these for the interpreter, takes
longer than the other core gains: a sequential reader gets 700 MB/s, and 390 with threads."""

TASK_BYTES = 512 << 10
"""What one task of the read-ahead loads: each costs some 50 µs, whatever it loads."""

_Key = tuple[int, int, int]


def _key(span: Span) -> _Key:
    """What a chunk is known by: its id, and what the recipe expects of it."""
    return span.chunk, span.length, span.check


class ChunkCache:
    """An LRU cache of verified chunks up to a number of bytes. Safe to use from several threads.

    A chunk that several readers want at once is read once.
    """

    def __init__(self, records: RecordReader, bytes_max: int, threads: int) -> None:
        self._records = records
        self._bytes_max = bytes_max
        self._threads = threads
        self._bytes = 0
        self._chunks: OrderedDict[_Key, bytes] = OrderedDict()
        self._loading: dict[_Key, threading.Event] = {}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="read-ahead")
        self.hits = 0
        self.misses = 0

    def close(self) -> None:
        """Stop reading ahead."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    @property
    def bytes_max(self) -> int:
        return self._bytes_max

    @property
    def used_bytes(self) -> int:
        return self._bytes

    def find(self, span: Span) -> bytes | None:
        """The chunk, where it is in memory."""
        key = _key(span)
        with self._lock:
            raw = self._chunks.get(key)
            if raw is not None:
                self._chunks.move_to_end(key)
                self.hits += 1
            return raw

    def has(self, spans: Iterable[Span]) -> bool:
        """Whether chunks are all in memory."""
        chunks = self._chunks
        return all(_key(span) in chunks for span in spans)

    def keep(self, chunks: Iterable[tuple[Span, memoryview]]) -> None:
        """Have chunks in memory, of which somebody else has the verified bytes."""
        with self._lock:
            for span, raw in chunks:
                if (key := _key(span)) not in self._chunks:
                    self._keep(key, bytes(raw))

    def read(self, span: Span) -> bytes:
        """The chunk, from memory or from the store. Raises DamagedContainer."""
        raw = self.find(span)
        if raw is not None:
            return raw
        key = _key(span)
        self._load([key])
        raw = self._chunks.get(key)
        if raw is None:
            raw = read_chunk(self._records, span)
            with self._lock:
                self._keep(key, raw)
        return raw

    def load_at_once(self, spans: Iterable[Span]) -> bool:
        """Have chunks in memory without waiting for anything; False where that cannot be."""
        absent = self._absent(spans)
        if not absent:
            return True
        if sum(length for _, length, _ in absent) > INLINE_BYTES_MAX:
            return False
        found = self._records.read_chunks(absent, cached_only=True, threads=self._threads)
        with self._lock:
            for key, raw in zip(absent, found, strict=True):
                if raw is not None:
                    self._keep(key, raw)
        return None not in found

    def load(self, spans: Iterable[Span]) -> None:
        """Have chunks in memory that are read next, as far as there is room.

        An error is for the one who reads.
        """
        self._load(self._absent(spans))

    def read_ahead(self, spans: Iterable[Span]) -> None:
        """Begin to load chunks that will be wanted soon."""
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
        chunks = self._chunks
        return [key for span in spans if (key := _key(span)) not in chunks]

    def _load(self, keys: Sequence[_Key]) -> None:
        """Load what nobody has loaded or is loading; wait for what others are."""
        mine: list[_Key] = []
        loaded = threading.Event()
        others = set()
        with self._lock:
            for key in keys:
                if key in self._loading:
                    others.add(self._loading[key])
                elif key not in self._chunks:
                    mine.append(key)
                    self._loading[key] = loaded
        if mine:
            found: list[bytes | None] = [None] * len(mine)
            try:
                found = self._records.read_chunks(mine, cached_only=False)
            finally:
                with self._lock:
                    for key, raw in zip(mine, found, strict=True):
                        del self._loading[key]
                        if raw is not None:
                            self._keep(key, raw)
                loaded.set()
        for other in others - {loaded}:
            other.wait()

    def _keep(self, key: _Key, raw: bytes) -> None:
        self.misses += 1
        before = self._chunks.pop(key, b"")
        self._chunks[key] = raw
        self._bytes += len(raw) - len(before)
        while self._bytes > self._bytes_max and len(self._chunks) > 1:
            _, dropped = self._chunks.popitem(last=False)
            self._bytes -= len(dropped)
