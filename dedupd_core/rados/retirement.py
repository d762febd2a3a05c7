"""The end of file versions: references, recipe, and the note that a version is to be retired.

Each step may be repeated, by the owner or by another host: a reference is a tag that only one
version has, and a version never comes back.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from dedupd_core.errors import DamagedRecipe
from dedupd_core.rados.chunks import Chunks, Unreferenced
from dedupd_core.rados.recipes import Recipes, Remnants

VERSIONS_AT_ONCE = 64
"""Whose recipes are in memory; a chunk that several of them name is changed once."""


@dataclass(frozen=True, slots=True)
class Retirement:
    """Takes versions out of a store."""

    recipes: Recipes
    chunks: Chunks
    counted: Counter[str] = field(default_factory=Counter)
    """For people: what was retired, twice where a session broke off in between."""

    def retire(self, versions: Sequence[str]) -> list[str]:
        """Leave nothing of these versions; returns those whose recipe is damaged, which stay.

        Their references can be found by an audit only.
        """
        damaged: list[str] = []
        for first in range(0, len(versions), VERSIONS_AT_ONCE):
            damaged += self._retire(versions[first : first + VERSIONS_AT_ONCE])
        return damaged

    def _retire(self, versions: Sequence[str]) -> list[str]:
        each = self.chunks.cluster.each
        found = each(self._remnants, versions)
        remnants = [one for one in found if isinstance(one, Remnants)]
        references: dict[bytes, list[str]] = {}
        for one in remnants:
            for fingerprint in one.fingerprints:
                references.setdefault(fingerprint, []).append(one.version)
        released = each(self._release, references.items())
        self.chunks.condemn([one for one in released if one is not None])
        each(self.recipes.remove, remnants)
        self.counted["retired_bytes"] += sum(one.length for one in remnants)
        return [one for one in found if isinstance(one, str)]

    def _remnants(self, version: str) -> Remnants | str:
        try:
            return self.recipes.remnants(version)
        except DamagedRecipe:
            return version

    def _release(self, item: tuple[bytes, list[str]]) -> Unreferenced | None:
        return self.chunks.drop_references(*item)
