"""Garbage collection by candidates: its cost follows what was deleted, not what is stored."""

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from dedupd_core.errors import Damaged
from dedupd_core.format.cluster.objects import GARBAGE_SHARDS, garbage_object
from dedupd_core.rados.chunks import Chunks
from dedupd_core.rados.cluster import points
from dedupd_core.rados.cluster.changes import Change

GRACE_S = 24 * 3600.0
"""A chunk without references stays so long: it may come again, and a reader may still have an
older recipe. Nothing else depends on it, nor on the clocks of hosts."""


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
