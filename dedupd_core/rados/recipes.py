"""The recipes of a store: one per version of a file, never changed.

They correspond to GRATE's manifest object, made for every file (seed 004, 2.7).
"""

from dataclasses import dataclass
from typing import NamedTuple

from dedupd_core.errors import DamagedRecipe
from dedupd_core.format.cluster.objects import (
    FileRecipe,
    RecipePart,
    decode_part,
    encode_parts,
    join_parts,
    recipe_object,
)
from dedupd_core.rados.cluster import points
from dedupd_core.rados.cluster.changes import AtomicChange
from dedupd_core.rados.cluster.connection import Cluster


class Remnants(NamedTuple):
    """The remaining objects of a version, and the chunks that they name, each once."""

    version: str
    has_head: bool
    later_parts: int
    fingerprints: list[bytes]
    length: int
    """The total length of the chunks, if this is the recipe of a file."""


@dataclass(frozen=True, slots=True)
class Recipes:
    """The recipes of one store."""

    cluster: Cluster

    def write(self, recipe: FileRecipe) -> None:
        """Make a recipe durable. The first part is written last, and marks the recipe as complete.

        A version's name is never used again, so existing objects are of this same recipe.
        """
        first, *others = encode_parts(recipe)
        for part, data in enumerate(others, 1):
            oid = recipe_object(recipe.version, part)
            self.cluster.apply(
                AtomicChange(points.RECIPE_PART_WRITTEN, oid, exclusive=True, data=data)
            )
        oid = recipe_object(recipe.version)
        self.cluster.apply(AtomicChange(points.RECIPE_WRITTEN, oid, exclusive=True, data=first))

    def read(self, version: str) -> FileRecipe | None:
        """Read a recipe; None if there is no such version. Raises DamagedRecipe."""
        head = self._part(version, 0)
        if head is None:
            return None
        parts = [head]
        for number in range(1, head.parts):
            part = self._part(version, number)
            if part is None:
                raise DamagedRecipe(f"recipe {recipe_object(version, number)}: is missing")
            parts.append(part)
        return join_parts(parts)

    def _part(self, version: str, number: int) -> RecipePart | None:
        data = self.cluster.read(recipe_object(version, number))
        return None if data is None else decode_part(data, version, number)

    def remnants(self, version: str) -> Remnants:
        """Return the remains of a version that is being retired. Raises DamagedRecipe.

        Parts are removed from the last to the first, and only when no chunk is referenced; the
        first is written last. So a version without its first part has no reference, and one without
        its last parts needs none.
        """
        head = self._part(version, 0)
        later: list[RecipePart] = []
        while head is None or len(later) + 1 < head.parts:
            part = self._part(version, len(later) + 1)
            if part is None:
                break
            later.append(part)
        parts = [] if head is None else [head, *later]
        named = (entry.fingerprint for part in parts for entry in part.recipe.entries)
        length = sum(
            entry.length
            for part in parts
            for entry in part.recipe.entries
            if not part.recipe.file.is_held
        )
        return Remnants(version, head is not None, len(later), list(dict.fromkeys(named)), length)

    def remove(self, remnants: Remnants) -> None:
        """Remove a version's objects, when nothing refers to it. May be repeated."""
        numbers = [*range(remnants.later_parts, 0, -1), *([0] if remnants.has_head else [])]
        for number in numbers:
            oid = recipe_object(remnants.version, number)
            self.cluster.apply(AtomicChange(points.RECIPE_PART_REMOVED, oid, remove=True))
