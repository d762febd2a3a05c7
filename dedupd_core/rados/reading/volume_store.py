"""The cluster store of a volume, from the view of the volume: opened at the first use."""

import os
import threading
from contextlib import suppress
from uuid import UUID

from dedupd_core import native
from dedupd_core.errors import StoreUnreachable
from dedupd_core.format.cluster.address import StoreBinding, parse_address
from dedupd_core.format.store_kinds import BINDING_FILE, CLUSTER
from dedupd_core.format.volume_parameters import Parameters
from dedupd_core.rados.reading.disk_cache import DiskCache
from dedupd_core.rados.reading.sources import ClusterChunks, ClusterRecipes
from dedupd_core.rados.store import RadosStore
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import read_file
from dedupd_core.units import GIB

CACHE_DIR = b"cluster-cache"
CACHE_BYTES = 1 * GIB
"""The default per volume, for recently read chunks."""


def bind(
    base_fd: int, root: str, volume_uuid: str, store: RadosStore, cache_bytes: int, disk: Disk
) -> None:
    """Let a volume without stubs keep its chunks in a store. Durable when this returns.

    ``base_fd`` is its open ``.dedupd``. The volume's fingerprints are those of the store.
    """
    store.join(UUID(volume_uuid).hex, root)
    binding = StoreBinding(str(store.cluster.address), store.parameters.uuid, cache_bytes)
    disk.replace_file(base_fd, BINDING_FILE, binding.to_json())


def binding_at(base_fd: int, where: str) -> StoreBinding:
    """Return the binding in the ``.dedupd`` open as ``base_fd``; ``where``: its path. Raises
    Damaged, FileNotFoundError."""
    return StoreBinding.from_json(
        read_file(base_fd, BINDING_FILE), f"{where}/{BINDING_FILE.decode()}"
    )


def open_of_volume(base_fd: int, where: str, parameters: Parameters, disk: Disk) -> "VolumeStore":
    """Open the store of a volume; see ``StoreModule`` in dedupd_core/stores/chunk_store.py."""
    return VolumeStore(binding_at(base_fd, where), base_fd, parameters, disk)


def open_to_join(address: str) -> "ClusterToJoin":
    return ClusterToJoin(RadosStore.open(parse_address(address)))


class ClusterToJoin:
    """A store for a new volume."""

    kind, shared = CLUSTER, None

    def __init__(self, store: RadosStore) -> None:
        self._store = store
        self.fingerprint = store.parameters.fingerprint

    def take_in(self, base_fd: int, root: str, uuid: str, disk: Disk) -> None:
        bind(base_fd, root, uuid, self._store, CACHE_BYTES, disk)

    def close(self) -> None:
        self._store.close()


class VolumeStore:
    """A volume's side of its store. Safe to use from several threads.

    Before the first read, it sends no request to the cluster, and loads no module of Ceph.
    """

    kind = CLUSTER

    def __init__(
        self, binding: StoreBinding, base_fd: int, parameters: Parameters, disk: Disk
    ) -> None:
        self.binding, self.volume = binding, UUID(parameters.uuid).hex
        self._lock = threading.Lock()
        self._store: RadosStore | None = None
        self._cache = self._cache_in(base_fd, disk)
        self.chunk_records = ClusterChunks(self.open, self._cache, algorithm=parameters.fingerprint)
        self.recipes = ClusterRecipes(self.open, self.chunk_records)

    def _cache_in(self, base_fd: int, disk: Disk) -> DiskCache | None:
        if not self.binding.cache_bytes:
            return None
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            with suppress(FileExistsError):
                disk.make_dir(base_fd, CACHE_DIR)
            dir_fd = os.open(CACHE_DIR, flags, dir_fd=base_fd)
        except OSError:
            return None  # a read-only volume is read without the cache
        return DiskCache(dir_fd, self.binding.cache_bytes, disk)

    @property
    def where(self) -> str:
        return self.binding.address

    def lasting_fingerprint(self, chunk: int) -> bytes:
        return self.chunk_records.fingerprint(chunk)

    def stub_bytes(self, cache: native.store.ChunkCache, threads: int) -> native.store.StubBytes:
        """``threads`` has no effect: the cluster's own library has them."""
        return native.store.StubBytes.of_cluster(self.chunk_records.content, cache)

    def open(self) -> RadosStore:
        """Return the store, connected. Raises StoreUnreachable, UsageError."""
        with self._lock:
            if self._store is None:
                store = RadosStore.open(parse_address(self.binding.address))
                if store.parameters.uuid != self.binding.store:
                    store.close()
                    raise StoreUnreachable(
                        f"{self.binding.address}: not the store of this volume; check whether the"
                        " pool was created again"
                    )
                self._store = store
            return self._store

    def cached(self, fingerprint: bytes) -> bytes | None:
        """Return the frame of a chunk from this host's disk, if present; not verified."""
        return None if self._cache is None else self._cache.get(fingerprint)

    def close(self) -> None:
        self.chunk_records.close()
        if self._cache is not None:
            self._cache.close()
        if self._store is not None:
            self._store.close()
