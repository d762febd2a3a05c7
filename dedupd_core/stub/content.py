"""The bytes of a stub, put together from its own blocks and from the store."""

from collections.abc import Callable, Iterator

from dedupd_core import native
from dedupd_core.byte_ranges import missing_ranges
from dedupd_core.errors import DamagedChunk, DamagedRecipe
from dedupd_core.format.container import Record
from dedupd_core.format.ids import HOLE, show_id
from dedupd_core.format.recipe import RecipeRef, fingerprint_check
from dedupd_core.format.stub import Flag, StubAttribute
from dedupd_core.store.reader import ChunkSource
from dedupd_core.store.recipe.recipe_reader import Recipe, RecipeSource, Span
from dedupd_core.stub.transition import RecipeBytes
from dedupd_core.system.files import read_into

ReadChunk = Callable[[Span], bytes]
"""The raw bytes of a chunk, verified, and to be the ones that the recipe means."""


def read_chunk(records: ChunkSource, span: Span) -> bytes:
    """The raw bytes of a chunk, of the length and the fingerprint that the recipe states.

    Raises DamagedContainer.
    """
    return checked_record(records, span)[1]


def checked_record(records: ChunkSource, span: Span) -> tuple[Record, bytes]:
    """The same, with the record's header."""
    record, raw = records.read(span.chunk)
    _require_meant(span, len(raw), record.fingerprint)
    return record, raw


def proved_record(records: ChunkSource, span: Span, hash_name: str) -> tuple[Record, bytes]:
    """The same; the bytes are hashed, and have the whole fingerprint that the header states."""
    record, raw = checked_record(records, span)
    if record.fingerprint != native.hashing.fingerprint(raw, hash_name):
        raise DamagedChunk(
            f"chunk {show_id(span.chunk)} has bytes that do not match its fingerprint", span.chunk
        )
    return record, raw


def described_record(records: ChunkSource, span: Span) -> Record:
    """The header alone of the record that the recipe means. Raises DamagedContainer."""
    record = records.describe(span.chunk)
    _require_meant(span, record.raw_length, record.fingerprint)
    return record


def _require_meant(span: Span, length_bytes: int, fingerprint: bytes) -> None:
    if length_bytes != span.length or fingerprint_check(fingerprint) != span.fingerprint_check:
        raise DamagedChunk(
            f"chunk {show_id(span.chunk)} has bytes that differ from those in the recipe",
            span.chunk,
        )


class StoreContent(RecipeBytes):
    """The bytes that a recipe stands for."""

    def __init__(self, recipe: Recipe, read_chunk: ReadChunk) -> None:
        self.recipe = recipe
        self._read_chunk = read_chunk
        self._last: tuple[Span, bytes] | None = None

    def data_ranges(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        for span in self.recipe.spans(start, end):
            if span.chunk != HOLE:
                yield max(start, span.offset), min(end, span.offset + span.length)

    def spans(self, start: int, end: int) -> Iterator[Span]:
        """The chunks that a range touches, in order. Raises Damaged."""
        return (span for span in self.recipe.spans(start, end) if span.chunk != HOLE)

    def read(self, start: int, end: int) -> bytes:
        """Bytes [start, end); zeros beyond the recipe. Raises Damaged."""
        parts: list[bytes | memoryview] = []
        have = start
        for span in self.recipe.spans(start, end):
            low, high = max(start, span.offset), min(end, span.offset + span.length)
            if span.chunk == HOLE:
                parts.append(bytes(high - low))
            else:
                raw = memoryview(self._chunk(span))
                parts.append(raw[low - span.offset : high - span.offset])
            have = high
        parts.append(bytes(end - have))
        return b"".join(parts)

    def _chunk(self, span: Span) -> bytes:
        # Several threads may be here: each uses what it has got itself, not what was kept last.
        last = self._last
        if last is None or last[0] != span:
            last = self._last = span, self._read_chunk(span)
        return last[1]


def open_content(
    stub: StubAttribute, recipes: RecipeSource, read_chunk: ReadChunk, where: str
) -> StoreContent:
    """The store's side of a stub. Raises DamagedRecipe, DamagedContainer."""
    recipe = recipes.open(RecipeRef(stub.recipe, stub.digest, Flag.DIRECT in stub.flags), where)
    if recipe.length < stub.covered:
        raise DamagedRecipe(
            f"{where}: the recipe covers {recipe.length} bytes, but the stub expects {stub.covered}"
        )
    return StoreContent(recipe, read_chunk)


def read_stub(
    fd: int,
    local: list[tuple[int, int]],
    covered: int,
    content: StoreContent,
    start: int,
    end: int,
) -> bytearray:
    """Bytes [start, end) of a stub, up to its size at most: local ranges win over the recipe."""
    data = bytearray(end - start)
    for low, high in missing_ranges(local, start, min(end, covered)):
        data[low - start : high - start] = content.read(low, high)
    for low, high in local:
        low, high = max(low, start), min(high, end)
        if low < high:
            read_into(fd, memoryview(data)[low - start : high - start], low)
    return data
