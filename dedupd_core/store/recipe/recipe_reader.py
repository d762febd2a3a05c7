"""Recipes in the store: building them from chunks, and finding the chunks of a byte range."""

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from dedupd_core import native
from dedupd_core.errors import Damaged, DamagedRecipe
from dedupd_core.format import recipe
from dedupd_core.format.container import Record
from dedupd_core.format.ids import show_id
from dedupd_core.format.recipe import DIGEST_BYTES, RecipeRef
from dedupd_core.store.reader import RecordReader

NODES_CACHED_MAX = 512
"""About 100 KB each when full of entries, as Python lists."""

HOLE_FINGERPRINT = bytes(native.hashing.HASH_BYTES)


class RecipeRow(NamedTuple):
    """One chunk (or hole) in a file: its id, raw length and fingerprint."""

    chunk: int
    length: int
    fingerprint: bytes


class Span(NamedTuple):
    """A chunk or hole at its place in a file: [offset, offset + length).

    ``fingerprint_check`` is that of the chunk (``recipe.fingerprint_check``), 0 for a hole.
    """

    offset: int
    length: int
    chunk: int
    fingerprint_check: int


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


class Nodes(Protocol):
    """Finds the nodes of a recipe below its root."""

    def child(self, parent: recipe.Node, at: int) -> recipe.Node: ...


class Recipe:
    """One file's recipe, read as far as it is asked for."""

    def __init__(self, nodes: Nodes, root: recipe.Node, root_id: int = 0) -> None:
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
            span = Span(
                base + offsets[at], node.lengths[at], node.ids[at], node.fingerprint_checks[at]
            )
            if node.level == 0:
                yield span
            else:
                child = self._nodes.child(node, at)
                yield from self._spans(child, span.offset, max(start, span.offset), end)
            at += 1

    def leaves(self) -> Iterator[Leaf | Broken]:
        """Every leaf, in order; a part that cannot be read comes as ``Broken`` in its place."""
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
        if self._root.level > 0:
            for at, node_id in enumerate(self._root.ids):
                yield node_id
                yield from Recipe(self._nodes, self._nodes.child(self._root, at)).node_ids()


class RecipeSource(Protocol):
    """Opens the recipes that stubs name: of containers, or of a store in a cluster."""

    def open(self, ref: RecipeRef, where: str) -> Recipe: ...
    def record(self, node_id: int) -> tuple[Record, bytes]: ...


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
                f"{where}: recipe {show_id(ref.recipe)} differs from the recipe in the stub"
            )
        return Recipe(self, node, ref.recipe)

    def record(self, node_id: int) -> tuple[Record, bytes]:
        """The record of a node, and its bytes, which are one. Raises DamagedRecipe,
        DamagedContainer."""
        record, payload = self._records.read(node_id)
        recipe.decode_node(payload, f"recipe {show_id(node_id)}")
        return record, payload

    def _open_direct(self, ref: RecipeRef, where: str) -> Recipe:
        """The recipe of one entry that a chunk's id alone stands for."""
        record = self._chunks.describe(ref.recipe)
        fingerprint, length = record.fingerprint, record.raw_length
        if fingerprint[:DIGEST_BYTES] != ref.digest:
            raise DamagedRecipe(
                f"{where}: chunk {show_id(ref.recipe)} differs from the chunk in the stub"
            )
        content = recipe.content_digest([(fingerprint, length)])
        checks = (recipe.fingerprint_check(fingerprint),)
        return Recipe(self, recipe.Node(0, length, content, (ref.recipe,), (length,), checks, (0,)))

    def part(self, row: RecipeRow, level: int) -> Recipe:
        """The part of a recipe below a node, checked against the node's row. Raises Damaged."""
        where = f"recipe {show_id(row.chunk)}"
        node, _ = self._node(row.chunk, where)
        if (node.level, node.length, node.content) != (level, row.length, row.fingerprint):
            raise DamagedRecipe(f"{where}: differs from the part in the parent recipe")
        return Recipe(self, node)

    def child(self, parent: recipe.Node, at: int) -> recipe.Node:
        """The node below entry ``at`` of an inner node, checked against that entry."""
        where = f"recipe {show_id(parent.ids[at])}"
        node, _ = self._node(parent.ids[at], where)
        if node.level != parent.level - 1 or node.length != parent.lengths[at]:
            raise DamagedRecipe(f"{where}: differs from the part in the parent recipe")
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
