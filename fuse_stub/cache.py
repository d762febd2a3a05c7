"""Chunks in memory, decompressed, and the threads that get them there ahead of their readers."""

import threading
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor

from dedupd.content import ReadChunk
from dedupd.store.recipes import Span

_Key = tuple[int, int, int]


def _key(span: Span) -> _Key:
    """What a chunk is known by: its id, and what the recipe expects of it."""
    return span.chunk, span.length, span.check


class ChunkCache:
    """An LRU cache of verified chunks up to a number of bytes. Safe to use from several threads.

    A chunk that several readers want at once is read once.
    """

    def __init__(self, read_chunk: ReadChunk, bytes_max: int, threads: int) -> None:
        self._read_chunk = read_chunk
        self._bytes_max = bytes_max
        self._bytes = 0
        self._chunks: OrderedDict[_Key, bytes] = OrderedDict()
        self._loading: dict[_Key, Future[bytes]] = {}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="read-ahead")
        self.hits = 0
        self.misses = 0

    def close(self) -> None:
        """Stop reading ahead."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    @property
    def used_bytes(self) -> int:
        return self._bytes

    def __contains__(self, span: Span) -> bool:
        return _key(span) in self._chunks

    def read(self, span: Span) -> bytes:
        """The chunk, from memory or from the store. Raises DamagedContainer."""
        key = _key(span)
        with self._lock:
            raw = self._chunks.get(key)
            if raw is not None:
                self._chunks.move_to_end(key)
                self.hits += 1
                return raw
            self.misses += 1
            loading = self._loading.get(key)
            if loading is None:
                mine: Future[bytes] = Future()
                self._loading[key] = mine
        if loading is not None:
            return loading.result()
        try:
            raw = self._read_chunk(span)
        except BaseException as error:
            with self._lock:
                del self._loading[key]
            mine.set_exception(error)
            raise
        with self._lock:
            del self._loading[key]
            self._keep(key, raw)
        mine.set_result(raw)
        return raw

    def _keep(self, key: _Key, raw: bytes) -> None:
        self._chunks[key] = raw
        self._bytes += len(raw)
        while self._bytes > self._bytes_max and len(self._chunks) > 1:
            _, dropped = self._chunks.popitem(last=False)
            self._bytes -= len(dropped)

    def read_ahead(self, spans: Iterable[Span]) -> None:
        """Begin to load chunks that will be wanted soon."""
        for span in spans:
            if span not in self:
                self._pool.submit(self._load_quietly, span)

    def _load_quietly(self, span: Span) -> None:
        """Load a chunk unless somebody else does; an error is for the one who reads it."""
        key = _key(span)
        if key in self._chunks or key in self._loading:
            return
        try:
            self.read(span)
        except Exception:
            return
