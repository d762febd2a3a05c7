"""How a store in a cluster is, for people: hosts, leases, savings, garbage."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from dedupd.format.cluster.objects import GARBAGE_SHARDS, VolumeEntry, garbage_object
from dedupd.rados.file_table import FileTable
from dedupd.rados.intents import Intents
from dedupd.rados.lease import counters, lease_state
from dedupd.rados.store import RadosStore
from dedupd.units import counted, format_size


@dataclass(frozen=True, slots=True)
class VolumeStatus:
    """A volume of the store. ``lease_until_s`` is by the cluster's clock, None where it is free.

    ``bytes`` is what its closed sessions have stored, ``new_bytes`` what the store did not have;
    ``repaired`` chunks were found damaged, and stored again. ``intents`` and ``retiring`` are file
    versions that are under way, or were left by a session that broke off.
    """

    volume: str
    host: str
    path: str
    lease_until_s: float | None
    clients_to_fence: int
    intents: int
    retiring: int
    files: int
    bytes: int
    new_bytes: int
    repaired: int

    @property
    def lines(self) -> Iterator[str]:
        """For people."""
        held = "free"
        if self.lease_until_s is not None:
            held = f"held until {datetime.fromtimestamp(self.lease_until_s):%H:%M:%S}"
        yield f"  {self.host}:{self.path}  (volume {self.volume}, lease {held})"
        yield (
            f"    {counted(self.files, 'file')} stored, {format_size(self.bytes)}, of which"
            f" {format_size(self.new_bytes)} were new; {counted(self.repaired, 'chunk')} repaired"
        )
        if self.lease_until_s is None and (self.intents or self.retiring):
            left = counted(self.intents + self.retiring, "file version")
            yield f"    {left} left by a session that broke off; the next one ends them"


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """All volumes of a store, and its garbage candidates."""

    address: str
    uuid: str
    fingerprint: str
    candidates: int
    volumes: list[VolumeStatus]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def lines(self) -> list[str]:
        """For people."""
        total = sum(one.bytes for one in self.volumes)
        new = sum(one.new_bytes for one in self.volumes)
        saved = f"{format_size(total - new)} of {format_size(total)} were there already"
        return [
            f"{self.address}: {counted(len(self.volumes), 'volume')}; {saved};"
            f" {counted(self.candidates, 'garbage candidate')}",
            *(line for one in self.volumes for line in one.lines),
        ]


def status_of(store: RadosStore) -> StoreStatus:
    """The state of a store now. Its cost follows what is under way, and not what is stored."""
    volumes = store.volumes()
    return StoreStatus(
        str(store.cluster.address),
        store.parameters.uuid,
        store.parameters.fingerprint,
        _candidates(store),
        [_volume(store, volume, entry) for volume, entry in sorted(volumes.items())],
    )


def _candidates(store: RadosStore) -> int:
    def count(shard: int) -> int:
        return sum(1 for _ in store.cluster.each_key(garbage_object(shard)))

    return sum(store.cluster.each(count, range(GARBAGE_SHARDS)))


def _volume(store: RadosStore, volume: str, entry: VolumeEntry) -> VolumeStatus:
    lease = lease_state(store.cluster, volume)
    sums = counters(store.cluster, volume)
    table = FileTable(store.cluster, volume, entry.shards)
    return VolumeStatus(
        volume,
        entry.host,
        entry.path,
        None if lease.holder is None else lease.holder.until_s,
        len(lease.unfenced),
        len(Intents(store.cluster, volume).all()),
        sum(1 for _ in table.retiring()),
        sums.get("files", 0),
        sums.get("bytes", 0),
        sums.get("new_bytes", 0),
        sums.get("repaired", 0),
    )
