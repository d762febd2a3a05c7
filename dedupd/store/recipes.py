"""Recipes in the store: building them from chunks, and finding the chunks of a byte range."""

import threading
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

from dedupd import native
from dedupd.errors import Damaged, DamagedRecipe
from dedupd.format import container as fmt
from dedupd.format import recipe
from dedupd.format.ids import HOLE, show_id
from dedupd.format.recipe import DIGEST_BYTES, RecipeRef
from dedupd.index.base import ChunkIndex
from dedupd.store.reader import RecordReader
from dedupd.store.writer import ContainerWriter, NewRecords

NODES_CACHED_MAX = 512
"""About 100 KB each when full of entries, as Python lists."""

HOLE_FINGERPRINT = bytes(native.HASH_BYTES)
_LEVEL = 3
_SAVING_MIN = 0.05


class Piece(NamedTuple):
    """One chunk (or hole) in a file: its id, raw length and fingerprint."""

    chunk: int
    length: int
    fingerprint: bytes


class Span(NamedTuple):
    """A chunk or hole at its place in a file: [offset, offset + length).

    ``check`` is that of the chunk's fingerprint (``recipe.check_of``), 0 for a hole.
    """

    offset: int
    length: int
    chunk: int
    check: int


class Leaf(NamedTuple):
    """A leaf of a recipe, ``node`` its id (0 where the recipe has no record), and its place."""

    offset: int
    node: int
    content: recipe.Node


class Broken(NamedTuple):
    """A part of a recipe that cannot be read: [offset, offset + length), below a node."""

    offset: int
    length: int
    node: int
    reason: str


@dataclass(slots=True)
class _Run:
    """Nodes with consecutive ids, all in one container, that are not appended yet."""

    first_id: int
    payloads: list[bytes] = field(default_factory=list)
    fingerprints: list[bytes] = field(default_factory=list)

    @property
    def next_id(self) -> int:
        return self.first_id + len(self.payloads)


class RecipeWriter:
    """Stores recipe nodes; equal nodes are stored once.

    A lost recipe is a lost file, and recipes are small, about a thousandth of what they stand for:
    so each is to be stored twice. :meth:`take_copies` gives what the second copies are to be.
    """

    def __init__(self, writer: ContainerWriter, index: ChunkIndex, fingerprint: str) -> None:
        self._writer = writer
        self._copies: list[tuple[fmt.Record, bytes]] = []
        self._index = index
        self._algorithm = fingerprint
        self._runs: list[_Run] = []
        self._pending: dict[bytes, int] = {}

    def use_index(self, index: ChunkIndex) -> None:
        """Look nodes up in another index from here on. Everything must have been flushed."""
        assert not self._runs
        self._index = index

    def add_node(self, level: int, rows: Sequence[Piece]) -> tuple[Piece, bytes]:
        """A node over ``rows``: as a row of the level above, and its record's fingerprint."""
        content = recipe.content_digest([(row.fingerprint, row.length) for row in rows])
        payload = recipe.encode_node(
            level, content, [(row.chunk, row.length, row.fingerprint) for row in rows]
        )
        fingerprint = native.fingerprint(payload, self._algorithm)
        node = self._pending.get(fingerprint) or self._index.lookup(fingerprint)[0]
        if node == 0:
            node = self._writer.reserve(1, len(payload))
            if not self._runs or node != self._runs[-1].next_id:
                self._runs.append(_Run(node))
            self._runs[-1].payloads.append(payload)
            self._runs[-1].fingerprints.append(fingerprint)
            self._pending[fingerprint] = node
        return Piece(node, sum(row.length for row in rows), content), fingerprint

    def flush(self) -> None:
        """Append what was added since the last flush. Raises NoSpace, and may be tried again."""
        while self._runs:
            self._append(self._runs[0])
            self._runs.pop(0)
        self._pending.clear()

    def _append(self, run: "_Run") -> None:
        lengths = array("I", (len(p) for p in run.payloads))
        starts = array("I", accumulate(lengths[:-1], initial=0))
        encoded = native.encode(
            b"".join(run.payloads),
            starts,
            lengths,
            level=_LEVEL,
            saving_min=_SAVING_MIN,
            header_bytes=fmt.RECORD_HEADER_BYTES,
            align_bytes=fmt.ALIGN_BYTES,
        )
        fingerprints = b"".join(run.fingerprints)
        hints = bytes(lengths.itemsize * len(lengths))
        self._writer.append(run.first_id, NewRecords(fingerprints, lengths, hints), encoded)
        self._index.insert(fingerprints, range(run.first_id, run.next_id))
        self._note_copies(run, encoded)

    def _note_copies(self, run: "_Run", encoded: native.Encoded) -> None:
        view = memoryview(encoded)
        columns = zip(
            run.fingerprints,
            map(len, run.payloads),
            memoryview(encoded.starts).cast("I"),
            memoryview(encoded.stored_lengths).cast("I"),
            encoded.codecs,
            memoryview(encoded.checksums).cast("Q"),
            strict=True,
        )
        for at, (fingerprint, length, start, stored, codec, checksum) in enumerate(columns):
            payload = view[start + fmt.RECORD_HEADER_BYTES :][:stored]
            record = fmt.Record(
                *(0, fmt.RecordKind.COPY, codec, length, stored, 0),
                *(fingerprint, run.first_id + at, checksum),
            )
            self._copies.append((record, bytes(payload)))

    def take_copies(self) -> list[tuple[fmt.Record, bytes]]:
        """The records that were appended since the last call, each to be repeated once it is
        durable: until then a crash may give its id to another one."""
        taken, self._copies = self._copies, []
        return taken


class Growth(NamedTuple):
    """How far the recipe of a file has grown: ``length`` bytes, in chunks and finished nodes."""

    length: int
    rows: tuple[Piece, ...]
    levels: tuple[tuple[Piece, ...], ...]

    def to_json(self) -> list[Any]:
        """For the catalogue."""
        return [self.length, *(_rows_to_json(r) for r in (self.rows, *self.levels))]

    @classmethod
    def from_json(cls, value: list[Any]) -> "Growth":
        """Raises ValueError, TypeError where it is not what :meth:`to_json` gave."""
        length, rows, *levels = value
        return cls(int(length), _rows_from_json(rows), tuple(_rows_from_json(r) for r in levels))


def _rows_to_json(rows: Sequence[Piece]) -> list[tuple[int, int, str]]:
    return [(row.chunk, row.length, row.fingerprint.hex()) for row in rows]


def _rows_from_json(rows: list[Any]) -> tuple[Piece, ...]:
    return tuple(Piece(int(c), int(n), bytes.fromhex(f)) for c, n, f in rows)


class RecipeBuilder:
    """The recipe of one file, grown chunk by chunk in bounded memory."""

    def __init__(self, writer: RecipeWriter) -> None:
        self._writer = writer
        self._rows: list[Piece] = []
        self._levels: list[list[Piece]] = []
        self.length = 0

    @classmethod
    def resumed(cls, writer: RecipeWriter, growth: Growth) -> "RecipeBuilder":
        """A builder that goes on where another one was."""
        builder = cls(writer)
        builder.length = growth.length
        builder._rows = list(growth.rows)
        builder._levels = [list(rows) for rows in growth.levels]
        return builder

    @property
    def growth(self) -> Growth:
        """How far the recipe is now."""
        return Growth(self.length, tuple(self._rows), tuple(map(tuple, self._levels)))

    def push(self, chunk: int, length: int, fingerprint: bytes) -> None:
        """Add the next chunk; a ``HOLE`` (fingerprint of zeros) grows the hole before it."""
        rows = self._rows
        self.length += length
        if chunk == HOLE and rows and rows[-1].chunk == HOLE:
            rows[-1] = Piece(HOLE, rows[-1].length + length, HOLE_FINGERPRINT)
            return
        if len(rows) == recipe.FANOUT_MAX:
            self._close(0, rows)
            rows = self._rows = []
        rows.append(Piece(chunk, length, fingerprint if chunk != HOLE else HOLE_FINGERPRINT))

    def _close(self, level: int, rows: list[Piece]) -> None:
        """Turn a full list of rows into a node of the level above."""
        node, _ = self._writer.add_node(level, rows)
        if len(self._levels) == level:
            self._levels.append([])
        above = self._levels[level]
        if len(above) == recipe.FANOUT_MAX:
            self._close(level + 1, above)
            above = self._levels[level] = []
        above.append(node)

    def finish(self) -> RecipeRef:
        """The complete recipe; durable once flushed and synced. The file must not be empty."""
        level, rows = 0, self._rows
        if not self._levels and len(rows) == 1 and rows[0].chunk != HOLE:
            return RecipeRef(rows[0].chunk, rows[0].fingerprint[:DIGEST_BYTES], direct=True)
        while level < len(self._levels):
            self._close(level, rows)
            rows = self._levels[level]
            level += 1
        node, fingerprint = self._writer.add_node(level, rows)
        return RecipeRef(node.chunk, fingerprint[:DIGEST_BYTES])


class Recipe:
    """One file's recipe, read as far as it is asked for."""

    def __init__(self, nodes: "RecipeReader", root: recipe.Node, root_id: int = 0) -> None:
        self._nodes = nodes
        self._root = root
        self._root_id = root_id
        self.length = root.length

    @property
    def content(self) -> bytes:
        """16-byte digest of the content, equal for equal content however it is stored."""
        return self._root.content

    def spans(self, start: int, end: int) -> Iterator[Span]:
        """The chunks and holes that [start, end) touches, in order. Raises DamagedRecipe."""
        yield from self._spans(self._root, 0, start, min(end, self.length))

    def _spans(self, node: recipe.Node, base: int, start: int, end: int) -> Iterator[Span]:
        if start >= end:
            return
        offsets = node.offsets
        at = bisect_right(offsets, start - base) - 1
        while at < len(node.ids) and base + offsets[at] < end:
            span = Span(base + offsets[at], node.lengths[at], node.ids[at], node.checks[at])
            if node.level == 0:
                yield span
            else:
                child = self._nodes.child(node, at)
                yield from self._spans(child, span.offset, max(start, span.offset), end)
            at += 1

    def leaves(self) -> Iterator[Leaf | Broken]:
        """Every leaf, in order; what cannot be read stops nothing, and is told instead."""
        yield from self._leaves(self._root, self._root_id, 0)

    def _leaves(self, node: recipe.Node, node_id: int, base: int) -> Iterator[Leaf | Broken]:
        if node.level == 0:
            yield Leaf(base, node_id, node)
            return
        for at, child_id in enumerate(node.ids):
            offset = base + node.offsets[at]
            try:
                child = self._nodes.child(node, at)
            except Damaged as error:
                yield Broken(offset, node.lengths[at], child_id, str(error))
                continue
            yield from self._leaves(child, child_id, offset)

    def span_of(self, start: int, end: int) -> Span | None:
        """The one chunk or hole that all of [start, end), which the recipe covers, lies in.

        None where it lies in several. Raises DamagedRecipe.
        """
        node, base = self._root, 0
        while True:
            at = bisect_right(node.offsets, start - base) - 1
            base += node.offsets[at]
            length = node.lengths[at]
            if end > base + length:
                return None
            if node.level == 0:
                return Span(base, length, node.ids[at], node.checks[at])
            node = self._nodes.child(node, at)

    def inner_ids(self) -> Iterator[int]:
        """Ids of the nodes between root and leaves that can be read; most recipes have none."""
        pending = [self._root] if self._root.level > 1 else []
        while pending:
            node = pending.pop()
            for at, node_id in enumerate(node.ids):
                yield node_id
                if node.level > 2:
                    try:
                        pending.append(self._nodes.child(node, at))
                    except Damaged:
                        continue

    def node_ids(self) -> Iterator[int]:
        """Ids of all nodes below the root."""
        yield from self._node_ids(self._root)

    def _node_ids(self, node: recipe.Node) -> Iterator[int]:
        if node.level > 0:
            for at, node_id in enumerate(node.ids):
                yield node_id
                yield from self._node_ids(self._nodes.child(node, at))


class RecipeReader:
    """Reads recipes from the stream containers, with a cache of nodes. Thread-safe."""

    def __init__(self, records: RecordReader, chunks: RecordReader) -> None:
        self._records = records
        self._chunks = chunks
        self._cache: OrderedDict[int, tuple[recipe.Node, bytes]] = OrderedDict()
        self._lock = threading.Lock()

    def open(self, ref: RecipeRef, where: str) -> Recipe:
        """The recipe that a stub names. Raises DamagedRecipe, DamagedContainer."""
        if ref.direct:
            return self._open_direct(ref, where)
        node, fingerprint = self._node(ref.recipe, where)
        if fingerprint[:DIGEST_BYTES] != ref.digest:
            raise DamagedRecipe(
                f"{where}: recipe {show_id(ref.recipe)} is not the one that the stub names"
            )
        return Recipe(self, node, ref.recipe)

    def _open_direct(self, ref: RecipeRef, where: str) -> Recipe:
        """The recipe of one entry that a chunk's id alone stands for."""
        record = self._chunks.describe(ref.recipe)
        fingerprint, length = record.fingerprint, record.raw_length
        if fingerprint[:DIGEST_BYTES] != ref.digest:
            raise DamagedRecipe(
                f"{where}: chunk {show_id(ref.recipe)} is not the one that the stub names"
            )
        content = recipe.content_digest([(fingerprint, length)])
        checks = (recipe.check_of(fingerprint),)
        return Recipe(self, recipe.Node(0, length, content, (ref.recipe,), (length,), checks, (0,)))

    def part(self, row: Piece, level: int) -> Recipe:
        """The part of a recipe below a node, which is what its row says. Raises Damaged."""
        where = f"recipe {show_id(row.chunk)}"
        node, _ = self._node(row.chunk, where)
        if (node.level, node.length, node.content) != (level, row.length, row.fingerprint):
            raise DamagedRecipe(f"{where}: not the part that the recipe above it names")
        return Recipe(self, node)

    def child(self, parent: recipe.Node, at: int) -> recipe.Node:
        """The node below entry ``at`` of an inner node, checked against what the entry says."""
        where = f"recipe {show_id(parent.ids[at])}"
        node, _ = self._node(parent.ids[at], where)
        if node.level != parent.level - 1 or node.length != parent.lengths[at]:
            raise DamagedRecipe(f"{where}: not the part that the recipe above it names")
        return node

    def _node(self, node_id: int, where: str) -> tuple[recipe.Node, bytes]:
        with self._lock:
            known = self._cache.get(node_id)
            if known is not None:
                self._cache.move_to_end(node_id)
                return known
        record, payload = self._records.read(node_id)
        known = recipe.decode_node(payload, where), record.fingerprint
        with self._lock:
            self._cache[node_id] = known
            if len(self._cache) > NODES_CACHED_MAX:
                self._cache.popitem(last=False)
        return known
