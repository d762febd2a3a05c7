"""Readers in sequence: what they ask for next is decompressed while they take what they have got.

A window is the chunks of one request, decompressed into one piece of memory, which the kernel then
copies from: nothing has to be put together first. Chunks are kept where the cache has room for all
that was read so far; a reader of more would only push out what others need, and the kernel has it.
"""

import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from dedupd import native
from dedupd.errors import Damaged
from dedupd.format.stub import StubAttribute
from dedupd.store.reader import RecordReader
from dedupd.store.recipe.recipe_reader import Span
from dedupd.stub.stub_file import SparseStub
from dedupd.units import KIB
from fuse_stub.files.chunk_cache import ChunkCache

REQUEST_BYTES_MIN = 128 * KIB
"""What the kernel asks for at least when it reads ahead; less than a chunk makes no window."""

READERS_MAX = 8
"""Readers for whom something is decompressed ahead, up to a request (1 MiB) and two chunks each."""

IDLE_S = 1.0
"""Who hasn't come for it after so long may lose his place to another one."""


@dataclass(frozen=True, slots=True)
class Window:
    """Chunks that lie one after the other in a file: those of [start, end)."""

    start: int
    end: int
    attribute: StubAttribute
    spans: list[Span]
    content: native.store.Window
    begun_s: float

    def is_for(self, stub: SparseStub, start: int, end: int) -> bool:
        """Whether it is what the file has there now: it may have changed since this was begun."""
        return (
            (self.start, self.end) == (start, end)
            and self.attribute is stub.attribute
            and not stub.may_be_local
        )

    def part(self, start: int, end: int) -> memoryview:
        """Bytes [start, end) of the file."""
        base = self.spans[0].offset
        return memoryview(self.content)[start - base : end - base]

    def chunk(self, span: Span) -> memoryview:
        """The bytes of one of the chunks."""
        return self.part(span.offset, span.offset + span.length)

    def chunks(self) -> Iterator[tuple[Span, memoryview]]:
        return ((span, self.chunk(span)) for span in self.spans)


class Streams:
    """The windows of all readers in sequence. Used by one thread."""

    def __init__(self, records: RecordReader, cache: ChunkCache, threads: int) -> None:
        self._records = records
        self._cache = cache
        self._helpers = threads - 1
        self._begun: OrderedDict[object, Window] = OrderedDict()

    def read(
        self, reader: object, stub: SparseStub, start: int, end: int, *, keep: bool
    ) -> memoryview | None:
        """Bytes [start, end) of a stub, which has them, and begin with as many behind them.

        ``keep``: the chunks go to the cache too. None where anything is out of the ordinary, or
        the disk would have to be waited for, or the cache has it all. Raises Damaged, where the
        recipe is.
        """
        window = self._begun.pop(reader, None)
        if window is None or not window.is_for(stub, start, end):
            window = self._begin(stub, start, end, None)
        if window is None or not window.content.finish():
            return None
        if self._has_room():
            more = min(2 * end - start, stub.attribute.covered)
            with suppress(Damaged):  # that is for who asks for it
                ahead = self._begin(stub, end, more, window)
                if ahead is not None:
                    self._begun[reader] = ahead
        if keep:
            self._cache.keep(window.chunks())
        return window.part(start, end)

    def forget(self, reader: object) -> None:
        """Stop what was begun for a reader."""
        self._begun.pop(reader, None)

    def forget_all(self) -> None:
        """Stop what was begun for all, and let go of the containers."""
        self._begun.clear()

    def _has_room(self) -> bool:
        if len(self._begun) < READERS_MAX:
            return True
        oldest = next(iter(self._begun))
        if time.monotonic() - self._begun[oldest].begun_s < IDLE_S:
            return False
        del self._begun[oldest]
        return True

    def _begin(
        self, stub: SparseStub, start: int, end: int, before: Window | None
    ) -> Window | None:
        """Begin to decompress the chunks of [start, end), the first one perhaps ``before``'s last.

        None where not all of it is the store's, or it is in the cache.
        """
        spans = stub.chunks_alone(start, end)
        if spans is None or self._cache.has(spans):
            return None
        has_first = before is not None and before.spans[-1] == spans[0]
        head = before.chunk(spans[0]) if before is not None and has_first else b""
        wanted = [(span.chunk, span.length, span.check) for span in spans[has_first:]]
        content = self._records.begin_window(wanted, head, self._helpers)
        if content is None:
            return None
        return Window(start, end, stub.attribute, spans, content, time.monotonic())
