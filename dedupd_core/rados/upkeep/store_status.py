"""The status of a store in a cluster, for people: hosts, leases, savings, garbage, repairs."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from dedupd_core.format.cluster.objects import GARBAGE_SHARDS, VolumeEntry, garbage_object
from dedupd_core.rados.damage import DamageList
from dedupd_core.rados.lease import counters, lease_state
from dedupd_core.rados.store import RadosStore
from dedupd_core.rados.tables import FileTable, Intents
from dedupd_core.rados.upkeep.turn import TURN_JOBS, last_turn
from dedupd_core.units import counted, format_moment, format_size


@dataclass(frozen=True, slots=True)
class VolumeStatus:
    """A volume of the store. ``lease_until_s`` is by the cluster's clock, None if free.

    ``bytes``: stored by its closed sessions. ``retired_bytes``: those replaced or deleted since
    then. ``new_bytes``: the part that was new to the store. ``repaired``: damaged chunks that were
    stored again. ``intents`` and ``retiring``: file versions in progress, or left by an interrupted
    session.
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
    retired_bytes: int

    @property
    def is_left(self) -> bool:
        """True if a session was interrupted."""
        return self.lease_until_s is None and bool(self.intents or self.retiring)

    @property
    def lines(self) -> Iterator[str]:
        """The lines for people."""
        held = "free"
        if self.lease_until_s is not None:
            held = f"held until {datetime.fromtimestamp(self.lease_until_s):%H:%M:%S}"
        yield f"  {self.host}:{self.path}  (volume {self.volume}, lease {held})"
        yield (
            f"    {counted(self.files, 'file')} stored, {format_size(self.bytes)},"
            f" {format_size(self.new_bytes)} of them new; {counted(self.repaired, 'chunk')}"
            " repaired"
        )
        if self.is_left:
            left = counted(self.intents + self.retiring, "file version")
            yield f"    {left} of an interrupted session; the next session rolls them back"


@dataclass(frozen=True, slots=True)
class Sums:
    """The sums of some volumes, as in :class:`VolumeStatus`. ``saved_bytes`` were already in the
    store when they arrived; ``live_bytes`` are of existing files."""

    volumes: int
    leases_held: int
    files: int
    bytes: int
    new_bytes: int
    saved_bytes: int
    live_bytes: int
    repaired: int

    @property
    def text(self) -> str:
        share = self.saved_bytes / self.bytes if self.bytes else 0.0
        return (
            f"{counted(self.volumes, 'volume')} ({self.leases_held:,} being written);"
            f" {format_size(self.saved_bytes)} of {format_size(self.bytes)} already present"
            f" ({share:.0%}), {format_size(self.live_bytes)} live;"
            f" {counted(self.repaired, 'chunk')} repaired"
        )


def summed(volumes: Iterable[VolumeStatus]) -> Sums:
    """Return the sums of these volumes."""
    listed = list(volumes)
    stored = sum(one.bytes for one in listed)
    new = sum(one.new_bytes for one in listed)
    return Sums(
        volumes=len(listed),
        leases_held=sum(one.lease_until_s is not None for one in listed),
        files=sum(one.files for one in listed),
        bytes=stored,
        new_bytes=new,
        saved_bytes=max(0, stored - new),
        live_bytes=max(0, stored - sum(one.retired_bytes for one in listed)),
        repaired=sum(one.repaired for one in listed),
    )


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """All volumes of a store, and its garbage candidates."""

    address: str
    uuid: str
    fingerprint: str
    candidates: int
    damaged: int
    """Damaged chunks that no host has stored again yet."""
    upkeep: dict[str, dict[str, Any]]
    """The last host turns, by job: ``host``, ``begun_s``, ``found``."""
    volumes: list[VolumeStatus]

    @property
    def total(self) -> Sums:
        return summed(self.volumes)

    @property
    def hosts(self) -> dict[str, Sums]:
        """The sums by the name of the host that a volume joined from."""
        names = sorted({one.host for one in self.volumes})
        return {name: summed(one for one in self.volumes if one.host == name) for name in names}

    def to_json(self) -> dict[str, Any]:
        hosts = {name: asdict(sums) for name, sums in self.hosts.items()}
        return {**asdict(self), "hosts": hosts, "total": asdict(self.total)}

    @property
    def lines(self) -> list[str]:
        """The lines for people."""
        found = [
            f"{self.address}: {self.total.text}; {counted(self.candidates, 'garbage candidate')}"
        ]
        for host, sums in self.hosts.items():
            found.append(f"{host}: {sums.text}")
            for one in self.volumes:
                if one.host == host:
                    found += one.lines
        for job, last in self.upkeep.items():
            when = format_moment(last["begun_s"])
            found.append(f"last {job}: {when}, by {last['host']}")
        for one in self.upkeep.get("recover", {}).get("found", {}).get("gone", ()):
            since = format_moment(one["since_s"])
            found.append(f"  {one['host']}:{one['path']} has not been seen since {since}")
        if self.damaged:
            found.append(
                f"{counted(self.damaged, 'chunk')} damaged; to repair them, run `dedupd run scrub`"
                " on each volume"
            )
        return found


def status_of(store: RadosStore) -> StoreStatus:
    """Return the status of a store. The cost depends on running work, not on stored data."""
    volumes = store.volumes()
    return StoreStatus(
        address=str(store.cluster.address),
        uuid=store.parameters.uuid,
        fingerprint=store.parameters.fingerprint,
        candidates=_candidates(store),
        damaged=len(DamageList(store.cluster).all()),
        upkeep={
            job: last.to_json()
            for job in TURN_JOBS
            if (last := last_turn(store.cluster, job)) is not None
        },
        volumes=[_volume(store, volume, entry) for volume, entry in sorted(volumes.items())],
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
        volume=volume,
        host=entry.host,
        path=entry.path,
        lease_until_s=None if lease.holder is None else lease.holder.until_s,
        clients_to_fence=len(lease.unfenced),
        intents=len(Intents(store.cluster, volume).all()),
        retiring=sum(1 for _ in table.retiring()),
        files=sums.get("files", 0),
        bytes=sums.get("bytes", 0),
        new_bytes=sums.get("new_bytes", 0),
        repaired=sums.get("repaired", 0),
        retired_bytes=sums.get("retired_bytes", 0),
    )
