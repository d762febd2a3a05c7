"""The bytes of a stub, put together from its own blocks and from the store."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import NamedTuple, TypeVar

from dedupd_core import native
from dedupd_core.errors import Damaged, DamagedChunk, DamagedRecipe, DedupdError
from dedupd_core.format.container import Record
from dedupd_core.format.ids import HOLE, show_id
from dedupd_core.format.recipe import RecipeRef, fingerprint_check
from dedupd_core.format.stub import Flag, StubAttribute
from dedupd_core.native.store import BrokenPart, Unreadable
from dedupd_core.store.reader import ChunkSource
from dedupd_core.store.recipe.recipe_reader import Leaf, RecipeSource, Span, UnreadablePart
from dedupd_core.units import GIB

SPANS_BYTES = 4 * GIB
"""The number of bytes of a file whose chunks are in memory at the same time."""

REPAIRS_MAX = 3
"""Of one part for one read: a node may go from its cache before it is used."""

T = TypeVar("T")

_Chunk = tuple[int, int, int]
"""Id, length and fingerprint check of a chunk, as a recipe names it."""


class Source(NamedTuple):
    """Where native code gets bytes of the store from for one call."""

    stub_bytes: native.store.StubBytes
    waits: bool
    """Whether it may wait for the disk."""
    repaired: list[tuple[_Chunk, bytes]]
    """Chunks that cannot be read in their places."""


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


class Contents:
    """Reads what stubs are made of. Safe to use from several threads.

    Native code does. It names each part that it cannot read, with the reason. That part is repaired
    here: it is read by what knows second copies, merged records and containers without a table,
    and native code is given it, and reads again.
    """

    def __init__(
        self,
        stub_bytes: native.store.StubBytes,
        cache: native.store.ChunkCache,
        chunks: ChunkSource,
        recipes: RecipeSource,
    ) -> None:
        self.native, self.cache = stub_bytes, cache
        self.chunks, self.recipes = chunks, recipes

    def of(self, stub: StubAttribute, where: str) -> "StoreContent":
        """Return the content of a stub in the store. This reads nothing yet."""
        return StoreContent(self, stub, where)


class _Repairs:
    """What was repaired for one read of a stub. Each part a few times at most: so a read ends."""

    def __init__(
        self,
        contents: Contents,
        stub: StubAttribute,
        where: str,
        require: Callable[[Unreadable], None],
    ) -> None:
        """``require`` repairs an entire recipe."""
        self._contents, self._stub, self._where = contents, stub, where
        self._require = require
        self._made: Counter[tuple[str, str, _Chunk]] = Counter()
        self._chunks: dict[_Chunk, bytes] = {}

    @property
    def chunks(self) -> list[tuple[_Chunk, bytes]]:
        return [*self._chunks.items()]

    def make(self, reasons: Sequence[Unreadable]) -> None:
        """Repair the unreadable parts, so that native code can read them. Raises Damaged,
        StoreUnreachable, OSError."""
        for one in reasons:
            named = one.id, one.length, one.check
            key = one.part, one.why, named
            self._made[key] += 1
            if self._made[key] > REPAIRS_MAX:
                raise self._error(one)
            self._make(one, named)

    def _make(self, unreadable: Unreadable, named: _Chunk) -> None:
        contents, record_id = self._contents, unreadable.id
        match unreadable.part:
            case "chunk":
                _, length, check = named
                span = Span(0, length, record_id, check)
                self._chunks[named] = read_chunk(contents.chunks, span)
            case "direct":
                record = contents.chunks.describe(record_id)
                contents.native.keep_direct(record_id, record.raw_length, record.fingerprint)
            case "node":
                record, payload = contents.recipes.record(record_id)
                if not contents.native.keep_node(record_id, payload, record.fingerprint):
                    raise DamagedRecipe(f"recipe {show_id(record_id)}: not a valid recipe")
            case _:
                self._require(unreadable)

    def _error(self, one: Unreadable) -> Exception:
        """For a part that native code does not read although it was repaired."""
        what = "chunk" if one.part == "direct" else "recipe"
        if one.part == "chunk" or one.why != "not meant":
            name = f"record {show_id(one.id)}" if one.id else "its recipe"
            return DamagedChunk(f"{self._where}: {name} cannot be read: {one.why}", one.id)
        if one.id in (0, self._stub.recipe):
            name = show_id(self._stub.recipe)
            return DamagedRecipe(
                f"{self._where}: {what} {name} differs from the {what} in the stub"
            )
        return DamagedRecipe(
            f"{what} {show_id(one.id)}: differs from the part in the parent recipe"
        )


class Recipe:
    """The recipe of a stub, read as far as it is asked for.

    ``length`` bytes, of a content with the digest ``content``: equal for equal content however it
    is stored. ``level``: of the root.
    """

    def __init__(self, contents: Contents, stub: StubAttribute, where: str) -> None:
        """``where``: the stub, in messages. Raises DamagedRecipe, DamagedContainer."""
        self._contents, self._stub, self._where = contents, stub, where
        self._native = contents.native
        self._ref = RecipeRef(stub.recipe, stub.digest, Flag.DIRECT in stub.flags)
        # As long as this exists, so does what its chunks are called.
        self._held = self._native.hold((*self._ref, 0))
        self.length, self.level, self.content = self._given(
            lambda: self._native.described((*self._ref, 0))
        )
        if isinstance(self._held, list):
            self._held = self._native.hold((*self._ref, 0))

    def spans(self, start: int, end: int) -> Iterator[Span]:
        """The chunks and holes that [start, end) touches, in order. Raises DamagedRecipe."""
        end = min(end, self.length)
        for low in range(start, end, SPANS_BYTES):
            high = min(low + SPANS_BYTES, end)
            read = partial(self._native.spans, (*self._ref, self.length), low, high)
            for fields in self._given(read):
                span = Span._make(fields)
                if span.offset >= low or low == start:
                    yield span

    def leaves(self) -> Iterator[Leaf | UnreadablePart]:
        """Yield every leaf, in order, or an ``UnreadablePart`` in its place."""
        at = 0
        while at < self.length:
            part = self._leaf(at)
            yield part
            at = part.offset + (part.content.length if isinstance(part, Leaf) else part.length)

    def inner_ids(self) -> Iterator[int]:
        """Ids of the nodes between root and leaves; most recipes have none."""
        for part in self.leaves() if self.level > 1 else ():
            yield from part.above

    def _leaf(self, at: int) -> Leaf | UnreadablePart:
        repairs = self._repairs()
        while isinstance(part := self._native.leaf((*self._ref, self.length), at), BrokenPart):
            try:
                repairs.make([part.unreadable])
            except Damaged as error:
                node = part.unreadable.id
                return UnreadablePart(part.offset, part.length, node, str(error), part.above)
        return Leaf(part.offset, part.node, part, part.above)

    def _given(self, read: Callable[[], T | Unreadable]) -> T:
        repairs = self._repairs()
        while isinstance(found := read(), Unreadable):
            repairs.make([found])
        return found

    def _repairs(self) -> _Repairs:
        return _Repairs(self._contents, self._stub, self._where, self._require)

    def _require(self, _: Unreadable) -> None:
        self._contents.recipes.require(self._ref, self._where)


class StoreContent:
    """The bytes that a recipe stands for, of the stub at ``where``."""

    def __init__(self, contents: Contents, stub: StubAttribute, where: str) -> None:
        self._contents, self._stub, self.where = contents, stub, where
        self._held: native.store.Held | None = None

    @cached_property
    def recipe(self) -> Recipe:
        """Raises DamagedRecipe, DamagedContainer."""
        recipe, stub = Recipe(self._contents, self._stub, self.where), self._stub
        if recipe.length < stub.covered:
            raise DamagedRecipe(
                f"{self.where}: the recipe covers {recipe.length} bytes, but the stub expects"
                f" {stub.covered}"
            )
        return recipe

    def data_ranges(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        for span in self.recipe.spans(start, end):
            if span.chunk != HOLE:
                yield max(start, span.offset), min(end, span.offset + span.length)

    def spans(self, start: int, end: int) -> Iterator[Span]:
        """The chunks that a range touches, in order. Raises Damaged."""
        return (span for span in self.recipe.spans(start, end) if span.chunk != HOLE)

    def read(self, start: int, end: int) -> bytes:
        """Bytes [start, end); zeros beyond what the stub covers. Raises Damaged, OSError."""
        return self.read_file(-1, (), self._stub.covered, start, end)

    def read_file(
        self,
        fd: int,
        own: Sequence[tuple[int, int]],
        covered: int,
        start: int,
        end: int,
        reasons: Sequence[Unreadable] = (),
    ) -> bytes:
        """Bytes [start, end) of the file ``fd``, up to its size at most: those of blocks of its
        ``own``, and else those of the recipe below ``covered``, and zeros.

        ``reasons``: what could not be read of it a moment ago. Raises Damaged, OSError.
        """
        stub = self._named(covered)

        def read(source: Source) -> bytes | list[Unreadable]:
            stub_bytes, waits, repaired = source
            return stub_bytes.read(fd, stub, own, start, end, waits=waits, repaired=repaired)

        return self.repairing(read, reasons)

    def repairing(
        self, ask: Callable[["Source"], T | list[Unreadable]], reasons: Sequence[Unreadable] = ()
    ) -> T:
        """Ask native code until it can read every byte of this content that it needs.

        ``reasons``: what it could not read a moment ago. Raises Damaged, OSError.
        """
        repairs = _Repairs(self._contents, self._stub, self.where, self._require)
        with suppress(DedupdError, OSError):  # it may no longer be needed
            repairs.make(reasons)
        while isinstance(found := ask(Source(self._contents.native, True, repairs.chunks)), list):
            repairs.make(found)
        return found

    @property
    def at_hand(self) -> "Source":
        """What memory has."""
        return Source(self._contents.native, False, [])

    def hold(self) -> bool:
        """Keep a recipe that is too long for the caches in memory as long as this exists; False if
        it cannot be read."""
        held = self._contents.native.hold(self._named(self._stub.covered))
        if isinstance(held, list):
            return False
        self._held = held
        return True

    def _named(self, covered: int) -> tuple[int, bytes, bool, int]:
        stub = self._stub
        return stub.recipe, stub.digest, Flag.DIRECT in stub.flags, covered

    def require_recipe(self) -> None:
        """Raises DamagedRecipe, DamagedContainer where the recipe has no sound root."""
        self.__dict__.pop("recipe", None)
        _ = self.recipe

    def _require(self, unreadable: Unreadable) -> None:
        if unreadable.why != "too long" or not self.hold():
            self.require_recipe()
