"""The end of file versions, and of the chunks that no version needs any more.

A version that is retired leaves nothing: references, recipe, and the note that it is to be retired.
Each step may be repeated, by the owner or by another host: a reference is a tag that only one
version has, and a version never comes back. A chunk without references becomes a candidate, and a
collection removes it: its cost follows what was deleted, not what is stored.
"""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dedupd_core.errors import Damaged, DamagedRecipe
from dedupd_core.format.cluster.objects import GARBAGE_SHARDS, garbage_object
from dedupd_core.rados.chunks import Chunks, Unreferenced
from dedupd_core.rados.cluster import points
from dedupd_core.rados.cluster.changes import Change
from dedupd_core.rados.recipes import Recipes, Remnants

VERSIONS_AT_ONCE = 64
"""Whose recipes are in memory; a chunk that several of them name is changed once."""


GRACE_S = 24 * 3600.0
"""A chunk without references stays so long: it may come again, and a reader may still have an
older recipe. Nothing else depends on it, nor on the clocks of hosts."""


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


@dataclass
class Collection:
    """One collection, of all candidates of the store. Several may run at a time."""

    chunks: Chunks
    grace_s: float = GRACE_S
    candidates: int = 0
    removed: int = 0
    kept: int = 0
    """Those that have references again, or were removed by another collection."""
    waiting: int = 0
    """Those that are too young, or changed meanwhile."""

    def run(self, shards: Iterable[int] = range(GARBAGE_SHARDS)) -> None:
        """``shards`` are first bytes of fingerprints. Raises Damaged."""
        for found in self.chunks.cluster.each(self._collect_shard, shards):
            self.candidates += sum(found.values())
            self.removed += found["removed"]
            self.kept += found["kept"]
            self.waiting += found["waiting"]

    def _collect_shard(self, shard: int) -> Counter[str]:
        oid = garbage_object(shard)
        return Counter(
            self._collect(oid, name, value) for name, value in self.chunks.cluster.each_key(oid)
        )

    def _is_old(self, value: str) -> bool:
        try:
            since_ns = int(value.partition(".")[0])
        except ValueError as error:
            raise Damaged(f"candidate {value!r}: it has no time") from error
        return time.time_ns() - since_ns >= self.grace_s * 1e9

    def _collect(self, oid: str, name: str, value: str) -> str:
        if not self._is_old(value):
            return "waiting"
        removed = self.chunks.remove_unreferenced(bytes.fromhex(name))
        if removed is None:
            return "waiting"
        # Only the candidate that was read: a retirement may have added it again since.
        self.chunks.cluster.apply(
            Change(points.CANDIDATE_DROPPED, oid, equal={name: value}, drop=(name,))
        )
        return "removed" if removed else "kept"
