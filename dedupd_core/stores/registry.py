"""Finds the kind of store of a volume, and opens stores by name.

Only this module imports the module of cluster stores, and only for these stores.
"""

import os
from dataclasses import dataclass

from dedupd_core.format.cluster.address import is_address
from dedupd_core.format.store_kinds import KINDS, OWN, SHARED, StoreKind
from dedupd_core.stores.chunk_store import StoreModule, StoreToJoin
from dedupd_core.stores.shared_directory import SharedDirectory
from dedupd_core.system.disk import Disk


def kind_at(base: str) -> StoreKind:
    """Return the kind of the store of the volume whose ``.dedupd`` has this path."""
    for kind in KINDS:
        if kind.file and os.path.lexists(os.path.join(base, kind.file.decode())):
            return kind
    return OWN


def cluster_module() -> StoreModule:
    from dedupd_core.rados.reading import volume_store

    return volume_store


def store_to_join(name: str | None, disk: Disk) -> StoreToJoin:
    """Return the store with this name for a new volume; the caller closes it. ``name``: None for
    the volume's own store, a directory, or an address. Raises UsageError, NotAVolume,
    StoreUnreachable."""
    if name is None:
        return _StoreOfDisk(OWN, None)
    if is_address(name):
        return cluster_module().open_to_join(name)
    return _StoreOfDisk(SHARED, SharedDirectory.named(name, disk))


@dataclass(frozen=True, slots=True)
class _StoreOfDisk:
    """A store on the disks of this host, which enabling itself joins."""

    kind: StoreKind
    shared: SharedDirectory | None
    fingerprint: None = None  # enabling uses that of a shared store

    def take_in(self, base_fd: int, root: str, uuid: str, disk: Disk) -> None:
        """Does nothing: enabling has done so."""

    def close(self) -> None:
        if self.shared is not None:
            self.shared.close()
