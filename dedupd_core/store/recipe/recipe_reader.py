"""The parts of recipes in Python, and the repair of their nodes.

Native code reads recipes (``Recipe`` in ``dedupd_core/stub/content.py``). It names each part that
it cannot read, and that part is read here.
"""

from typing import NamedTuple, Protocol

from dedupd_core import native
from dedupd_core.format.container import Record
from dedupd_core.format.recipe import RecipeRef
from dedupd_core.native.store import RecipeLeaf
from dedupd_core.store.reader import RecordReader

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
    """A leaf of a recipe, ``node`` its id (0 where the recipe has no record), and its place.

    ``above``: the nodes between it and the root that begin where it does.
    """

    offset: int
    node: int
    content: RecipeLeaf
    above: list[int]


class UnreadablePart(NamedTuple):
    """A part of a recipe that cannot be read: [offset, offset + length), below a node.

    ``above``: the nodes below the root that begin where it does, and are not leaves.
    """

    offset: int
    length: int
    node: int
    reason: str
    above: list[int]


class RecipeSource(Protocol):
    """Repairs the recipes that stubs name: of containers, or of a store in a cluster."""

    def require(self, ref: RecipeRef, where: str) -> None:
        """Make a recipe readable that native code has not found, or raise the reason: Damaged,
        StoreUnreachable."""

    def record(self, node_id: int) -> tuple[Record, bytes]:
        """The record of a node, and its bytes. Raises DamagedRecipe, DamagedContainer."""


class RecipeReader:
    """Reads the nodes of recipes from the stream containers. Thread-safe."""

    def __init__(self, records: RecordReader) -> None:
        self._records = records

    def require(self, ref: RecipeRef, where: str) -> None:
        """Each part that is wrong is a record."""

    def record(self, node_id: int) -> tuple[Record, bytes]:
        return self._records.read(node_id)
