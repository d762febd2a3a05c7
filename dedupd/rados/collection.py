"""Garbage collection by candidates: its cost follows what was deleted, not what is stored."""

import time
from dataclasses import dataclass

from dedupd.errors import Damaged
from dedupd.format.rados_objects import GARBAGE_SHARDS, garbage_object
from dedupd.rados.chunks import Chunks
from dedupd.rados.cluster import points
from dedupd.rados.cluster.connection import Change

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
    """Those that have references again."""
    waiting: int = 0
    """Those that are too young, or changed meanwhile."""

    def run(self) -> None:
        for shard in range(GARBAGE_SHARDS):
            self.run_shard(shard)

    def run_shard(self, shard: int) -> None:
        """The candidates whose fingerprints begin with this byte."""
        cluster, oid = self.chunks.cluster, garbage_object(shard)
        page = cluster.page(oid)
        while page is not None and page.items:
            old = [item for item in page.items.items() if self._is_old(item[1])]
            self.candidates += len(page.items)
            self.waiting += len(page.items) - len(old)
            for removed in cluster.each(lambda item: self._collect(oid, *item), old):
                self.removed += removed is True
                self.kept += removed is False
                self.waiting += removed is None
            page = cluster.page(oid, after=max(page.items))

    def _is_old(self, value: str) -> bool:
        try:
            since_ns = int(value.partition(".")[0])
        except ValueError as error:
            raise Damaged(f"candidate {value!r}: it has no time") from error
        return time.time_ns() - since_ns >= self.grace_s * 1e9

    def _collect(self, oid: str, name: str, value: str) -> bool | None:
        removed = self.chunks.remove_unreferenced(bytes.fromhex(name))
        if removed is not None:
            # Only the candidate that was read: a retirement may have added it again since.
            self.chunks.cluster.apply(
                Change(points.CANDIDATE_DROPPED, oid, equal={name: value}, drop=(name,))
            )
        return removed
