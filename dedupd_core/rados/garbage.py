"""Removes file versions, and the chunks that no version needs.

A retired version leaves nothing: references, recipe, and its entry in the list of versions to
retire are deleted. Each step may be repeated, by the owner or by another host: a tag belongs to
only one version, and a version is never used again. A chunk without references becomes a candidate,
and a collection removes it. The cost depends on the number of deletions, not on the size of the
store.
"""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dedupd_core.errors import Damaged, DamagedRecipe
from dedupd_core.format.cluster.objects import GARBAGE_SHARDS, garbage_object
from dedupd_core.rados.chunks import Chunks, UnreferencedChunk
from dedupd_core.rados.cluster import points
from dedupd_core.rados.cluster.changes import AtomicChange
from dedupd_core.rados.recipes import Recipes, Remnants

VERSIONS_AT_ONCE = 64
"""Versions whose recipes are in memory; a chunk that several of them name is changed once."""


GRACE_S = 24 * 3600.0
"""A chunk without references stays for this time: it may arrive again, and a reader may still have
an older recipe. Nothing else depends on this time, or on the clocks of hosts."""


@dataclass(frozen=True, slots=True)
class Retirement:
    """Removes versions from a store."""

    recipes: Recipes
    chunks: Chunks
    counted: Counter[str] = field(default_factory=Counter)
    """For people: the retired versions, counted twice if a session was interrupted in between."""

    def retire(self, versions: Sequence[str]) -> list[str]:
        """Remove these versions completely; return those with a damaged recipe, which stay.

        Only an audit can find the references of those.
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

    def _release(self, item: tuple[bytes, list[str]]) -> UnreferencedChunk | None:
        return self.chunks.drop_references(*item)


@dataclass
class Collection:
    """One collection of all candidates of the store. Several may run at a time."""

    chunks: Chunks
    grace_s: float = GRACE_S
    candidates: int = 0
    removed: int = 0
    kept: int = 0
    """Candidates that have references again, or that another collection removed."""
    waiting: int = 0
    """Candidates that are too young, or changed during the collection."""

    def run(self, shards: Iterable[int] = range(GARBAGE_SHARDS)) -> None:
        """Collect the candidates of ``shards``: first bytes of fingerprints. Raises Damaged."""
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
        # Only the candidate that was read: a retirement may have added it again since then.
        self.chunks.cluster.apply(
            AtomicChange(points.CANDIDATE_DROPPED, oid, equal={name: value}, drop=(name,))
        )
        return "removed" if removed else "kept"
