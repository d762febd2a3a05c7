"""Estimates how many bytes deleted files need in the store.

A file counts with its length until its recipe is read: then holes and repeated parts of the file do
not count. Equal recipes count once. Data that files of the tree need as well is counted, too.
"""

from collections.abc import Callable

from dedupd_core.errors import Damaged
from dedupd_core.format.ids import HOLE
from dedupd_core.format.stub import Flag, StubAttribute
from dedupd_core.store.recipe.recipe_reader import Leaf
from dedupd_core.volume.volume import Volume

NODES_MAX = 10_000
"""Recipe nodes that one run reads, at most a millisecond each. The other files, which are shorter,
count with their length."""


class RecipeSizes:
    """The recipes of deletions, and the bytes of each."""

    def __init__(self, volume: Volume, pause: Callable[[], None]) -> None:
        """``pause`` is called now and then; it may raise."""
        self._volume = volume
        self._pause = pause
        self._stubs: dict[int, StubAttribute] = {}
        self._nodes_left = NODES_MAX
        self.by_recipe: dict[int, int] = {}
        self.total = 0

    def add(self, stub: StubAttribute) -> int:
        """Add the recipe of a stub, if it is new; return its key in :attr:`by_recipe`."""
        key = stub.recipe << 1 | bool(stub.flags & Flag.DIRECT)
        if stub.covered > self.by_recipe.get(key, -1):
            self._set(key, stub.covered)
            self._stubs[key] = stub
        return key

    def refine(self, is_enough: Callable[[int], bool]) -> None:
        """Read recipes, those of the longest files first, until the total is enough. Raises
        OSError, and the errors of ``pause``."""
        longest_first = sorted(self._stubs, key=lambda key: -self.by_recipe[key])
        for key in longest_first:
            if is_enough(self.total) or self._nodes_left <= 0:
                return
            if not self._stubs[key].flags & Flag.DIRECT:
                self._set(key, self._data_bytes(self._stubs[key]))

    def _set(self, key: int, size: int) -> None:
        self.total += size - self.by_recipe.get(key, 0)
        self.by_recipe[key] = size

    def _data_bytes(self, stub: StubAttribute) -> int:
        """Return the bytes of a recipe; 0 if it is unreadable, and so cannot be restored."""
        size, seen = 0, set[int]()
        try:
            for leaf in self._volume.content(stub, "").recipe.leaves():
                self._nodes_left -= 1
                self._pause()
                if leaf.offset >= stub.covered or self._nodes_left <= 0:
                    break
                if isinstance(leaf, Leaf) and leaf.node not in seen:
                    seen.add(leaf.node)
                    size += _needed(leaf, stub.covered - leaf.offset)
        except Damaged:
            return 0
        return min(size, stub.covered) if self._nodes_left > 0 else stub.covered


def _needed(leaf: Leaf, end: int) -> int:
    """Return the bytes of the chunks in the first ``end`` bytes of a leaf, each once."""
    node = leaf.content
    chunks = {
        chunk: length
        for chunk, length, offset in zip(node.ids, node.lengths, node.offsets, strict=True)
        if chunk != HOLE and offset < end
    }
    return sum(chunks.values())
