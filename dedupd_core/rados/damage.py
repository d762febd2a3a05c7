"""The damaged chunks of a store. Any host that has their bytes may store them again."""

import time
from dataclasses import dataclass

from dedupd_core.format.cluster.objects import DAMAGE_OBJECT
from dedupd_core.rados.cluster import points
from dedupd_core.rados.cluster.changes import AtomicChange
from dedupd_core.rados.cluster.connection import Cluster


@dataclass(frozen=True, slots=True)
class DamagedChunk:
    """A damaged chunk. ``searched``: the volumes whose files do not have it."""

    fingerprint: bytes
    since: str
    searched: frozenset[str]


@dataclass(frozen=True, slots=True)
class DamageList:
    """The damaged chunks of a store, only as places to check: the flag of a chunk decides."""

    cluster: Cluster

    def add(self, fingerprint: bytes) -> None:
        """Add a chunk before it is marked: otherwise it would wait until its next arrival."""
        put = {fingerprint.hex(): f"{time.time_ns():020d}"}
        self.cluster.apply(AtomicChange(points.DAMAGE_LISTED, DAMAGE_OBJECT, put=put))

    def all(self) -> list[DamagedChunk]:
        since: dict[str, str] = {}
        searched: dict[str, set[str]] = {}
        for key, value in self.cluster.each_key(DAMAGE_OBJECT):
            name, _, volume = key.partition(".")
            if volume:
                searched.setdefault(name, set()).add(volume)
            else:
                since[name] = value
        return [
            DamagedChunk(bytes.fromhex(name), value, frozenset(searched.get(name, ())))
            for name, value in since.items()
        ]

    def note_searched(self, chunk: DamagedChunk, volume: str) -> None:
        """Record that the files of a volume lack the chunk, so that they are not read again."""
        name = chunk.fingerprint.hex()
        self.cluster.apply(
            AtomicChange(
                points.DAMAGE_SEARCHED,
                DAMAGE_OBJECT,
                equal={name: chunk.since},
                put={f"{name}.{volume}": ""},
            )
        )

    def drop(self, chunk: DamagedChunk) -> None:
        """Remove a repaired chunk, unless it was listed again since then."""
        name = chunk.fingerprint.hex()
        markers = [key for key, _ in self.cluster.each_key(DAMAGE_OBJECT, f"{name}.")]
        self.cluster.apply(
            AtomicChange(
                points.DAMAGE_DROPPED,
                DAMAGE_OBJECT,
                equal={name: chunk.since},
                drop=(name, *markers),
            )
        )
