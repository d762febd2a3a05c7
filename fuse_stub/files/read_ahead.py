"""Sequential readers: the next request is decompressed while the reader takes the last one.

A read-ahead is the chunks of one request, decompressed into one piece of memory that the kernel
then copies from: nothing has to be joined first. The chunks are kept in the cache as long as the
cache has room for all that the reader has read so far; beyond that they would only push out chunks
of others, and the kernel has them anyway.
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
"""The kernel's requests are at least this long when it reads ahead; a shorter one, less than a
chunk, gets no read-ahead."""

READERS_MAX = 8
"""Readers that have a read-ahead, each up to a request (1 MiB) and two chunks."""

IDLE_S = 1.0
"""An idle read-ahead may be dropped for another reader after this long."""


@dataclass(frozen=True, slots=True)
class ReadAhead:
    """Chunks that lie one after the other in a file, and hold its bytes [start, end)."""

    start: int
    end: int
    attribute: StubAttribute
    spans: list[Span]
    content: native.store.Window
    begun_s: float

    def is_for(self, stub: SparseStub, start: int, end: int) -> bool:
        """Whether these are the file's bytes [start, end): it may have changed meanwhile."""
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


class SequentialReads:
    """The read-aheads of all readers. Used by one thread."""

    def __init__(self, records: RecordReader, cache: ChunkCache, threads: int) -> None:
        self._records = records
        self._cache = cache
        self._helpers = threads - 1
        self._begun: OrderedDict[object, ReadAhead] = OrderedDict()

    def read(
        self, reader: object, stub: SparseStub, start: int, end: int, *, keep: bool
    ) -> memoryview | None:
        """Bytes [start, end) of a stub that has them; a read-ahead of as many more is begun.

        ``keep``: the chunks go to the cache too. None where anything is out of the ordinary, where
        the disk would have to be waited for, or where the cache has all chunks. Raises Damaged
        where the recipe is damaged.
        """
        here = self._begun.pop(reader, None)
        if here is None or not here.is_for(stub, start, end):
            here = self._begin(stub, start, end, None)
        if here is None or not here.content.finish():
            return None
        if self._has_room():
            more = min(2 * end - start, stub.attribute.covered)
            with suppress(Damaged):  # the read of those bytes will report it
                following = self._begin(stub, end, more, here)
                if following is not None:
                    self._begun[reader] = following
        if keep:
            self._cache.keep(here.chunks())
        return here.part(start, end)

    def forget(self, reader: object) -> None:
        """Drop the read-ahead of a reader."""
        self._begun.pop(reader, None)

    def forget_all(self) -> None:
        """Drop all read-aheads, and with them their containers."""
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
        self, stub: SparseStub, start: int, end: int, before: ReadAhead | None
    ) -> ReadAhead | None:
        """Begin to decompress the chunks of [start, end); the last chunk of ``before`` is used
        again where it is the first one.

        None where not all of it is the store's, or where the cache has it.
        """
        spans = stub.chunks_alone(start, end)
        if spans is None or self._cache.has(spans):
            return None
        has_first = before is not None and before.spans[-1] == spans[0]
        head = before.chunk(spans[0]) if before is not None and has_first else b""
        wanted = [(span.chunk, span.length, span.fingerprint_check) for span in spans[has_first:]]
        content = self._records.begin_window(wanted, head, self._helpers)
        if content is None:
            return None
        return ReadAhead(start, end, stub.attribute, spans, content, time.monotonic())
