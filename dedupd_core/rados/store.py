"""One store in a cluster: created once, joined by volumes, written by one session per volume."""

import socket
import uuid as uuidlib
from collections.abc import Callable
from typing import Self

from dedupd_core.errors import Busy, NotAVolume, UsageError
from dedupd_core.format.cluster.address import StoreAddress
from dedupd_core.format.cluster.objects import (
    STORE_OBJECT,
    VOLUMES_OBJECT,
    StoreParameters,
    VolumeEntry,
    lease_object,
)
from dedupd_core.format.volume_parameters import FINGERPRINTS
from dedupd_core.rados.chunks import Chunks
from dedupd_core.rados.cluster import points
from dedupd_core.rados.cluster.changes import AtomicChange, Outcome
from dedupd_core.rados.cluster.connection import OPERATIONS_AT_ONCE, Cluster
from dedupd_core.rados.cluster.native_reads import NativeReads
from dedupd_core.rados.lease import (
    LEASE_S,
    LeaseState,
    give_up_tables,
    take_lease,
    volume_objects,
)
from dedupd_core.rados.recipes import Recipes
from dedupd_core.rados.recovery import Recovery, Settle
from dedupd_core.rados.tables import FileTable, Intents
from dedupd_core.rados.writer import Writer

SHARDS = 64
"""The default number of objects in a volume's table of files: for 12 million files, with at most
200,000 keys each (``osd_deep_scrub_large_omap_object_key_threshold``)."""


class RadosStore:
    """An open store. It owns the cluster's connection; a writer has a separate one."""

    def __init__(self, cluster: Cluster, parameters: StoreParameters) -> None:
        self.cluster, self.parameters = cluster, parameters
        self.chunks = Chunks(cluster, parameters.fingerprint)
        self.recipes = Recipes(cluster)
        self.reads = NativeReads(cluster)

    @classmethod
    def create(cls, address: StoreAddress, fingerprint: str = FINGERPRINTS[0]) -> Self:
        """Create a store in the address's pool. Raises UsageError if one exists already."""
        if fingerprint not in FINGERPRINTS:
            raise UsageError(
                f"fingerprint {fingerprint!r}: choose one of {', '.join(FINGERPRINTS)}"
            )
        parameters = StoreParameters(str(uuidlib.uuid4()), fingerprint)
        cluster = Cluster(address)
        try:
            data = parameters.to_json()
            # The only purpose of the key: a pool without support for keys is refused.
            put = {"format": str(parameters.format)}
            change = AtomicChange(
                points.STORE_MADE, STORE_OBJECT, exclusive=True, data=data, put=put
            )
            if cluster.apply(change) is not Outcome.DONE:
                raise UsageError(f"{address}: a store already exists here")
        except BaseException:
            cluster.close()
            raise
        return cls(cluster, parameters)

    @classmethod
    def open(cls, address: StoreAddress, *, operations_at_once: int = OPERATIONS_AT_ONCE) -> Self:
        """Open a store. Raises StoreUnreachable, UsageError if there is no store."""
        cluster = Cluster(address, operations_at_once=operations_at_once)
        try:
            data = cluster.read(STORE_OBJECT)
            if data is None:
                raise UsageError(
                    f"{address}: no store exists here; create it with `dedupd cluster create"
                    f" {address}`"
                )
            return cls(cluster, StoreParameters.from_json(data, f"{address}: {STORE_OBJECT}"))
        except BaseException:
            cluster.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.reads.close()
        self.cluster.close()

    # --- volumes ------------------------------------------------------------------------------

    def volumes(self) -> dict[str, VolumeEntry]:
        """Return the volumes that have joined, by their uuids in hex."""
        return {
            volume: VolumeEntry.from_json(value.encode(), f"{self.cluster.address}: {volume}")
            for volume, value in self.cluster.keys(VOLUMES_OBJECT).items()
        }

    def entry(self, volume: str) -> VolumeEntry:
        """Return the entry of a volume. Raises NotAVolume if it has not joined."""
        value = self.cluster.value(VOLUMES_OBJECT, volume)
        if value is None:
            raise NotAVolume(
                f"{self.cluster.address}: volume {volume} does not belong to this store"
            )
        return VolumeEntry.from_json(value.encode(), f"{self.cluster.address}: {volume}")

    def join(
        self, volume: str, path: str, *, host: str | None = None, shards: int = SHARDS
    ) -> VolumeEntry:
        """Let a volume keep its files here. If the volume is already a member, its entry stays
        unchanged."""
        entry = VolumeEntry(host or socket.gethostname(), path, shards)
        put = {volume: entry.to_json().decode()}
        exclusive = AtomicChange(points.VOLUME_JOINED, VOLUMES_OBJECT, exclusive=True, put=put)
        if self.cluster.apply(exclusive) is not Outcome.DONE:
            joining = AtomicChange(
                points.VOLUME_JOINED, VOLUMES_OBJECT, equal={volume: None}, put=put
            )
            self.cluster.apply(joining)
        return self.entry(volume)

    def leave(self, volume: str) -> None:
        """Remove a volume that has no file here, and no version to retire.

        Raises Busy otherwise.
        """
        entry = self.entry(volume)
        table = FileTable(self.cluster, volume, entry.shards)
        intents = Intents(self.cluster, volume)
        if any(True for _ in table.files()) or any(True for _ in table.retiring()) or intents.all():
            raise Busy(f"{self.cluster.address}: volume {volume} still has files in the store")
        give_up_tables(self.cluster, volume)
        for oid in (*reversed(volume_objects(volume, entry.shards)), lease_object(volume)):
            self.cluster.apply(AtomicChange(points.TABLE_REMOVED, oid, remove=True))
        self.cluster.apply(AtomicChange(points.VOLUME_LEFT, VOLUMES_OBJECT, drop=(volume,)))

    def table(self, volume: str) -> FileTable:
        """Return the files of a volume, for reading."""
        return FileTable(self.cluster, volume, self.entry(volume).shards)

    # --- sessions -----------------------------------------------------------------------------

    def writer(
        self,
        volume: str,
        settle: Settle | None,
        *,
        host: str | None = None,
        lease_s: float = LEASE_S,
        is_holder_dead: Callable[[LeaseState], bool] | None = None,
        cluster: Cluster | None = None,
    ) -> tuple[Writer, Recovery]:
        """Start a session on a volume, with a recovery. Raises Busy, StoreUnreachable.

        Without ``settle`` the session is that of another host, for :meth:`recover`. ``cluster``: a
        separate connection for the session, if not this store's; it allows one writer at a time.
        """
        cluster = cluster or self.cluster
        entry = self.entry(volume)
        lease = take_lease(
            cluster,
            volume,
            entry.shards,
            host or socket.gethostname(),
            duration_s=lease_s,
            is_holder_dead=is_holder_dead,
        )
        lease.keep()
        try:
            chunks = Chunks(cluster, self.parameters.fingerprint)
            writer = Writer(cluster, chunks, lease, entry.shards)
            return writer, writer.recover(settle)
        except BaseException:
            lease.leave()
            raise

    def recover(self, volume: str) -> Recovery:
        """Take over from a volume's dead host, after its lease has expired. Raises Busy."""
        writer, recovery = self.writer(volume, None)
        writer.close()
        return recovery
