"""The connection that native code uses to read from a store in a cluster."""

import threading

from dedupd_core import native
from dedupd_core.errors import UsageError
from dedupd_core.rados.cluster.connection import Cluster


class NativeReads:
    """Connects at the first use. Safe to use from several threads."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._reader: native.rados.ChunkReader | None = None  # _lock

    def close(self) -> None:
        """Close the connection. Running reads finish first."""
        with self._lock:
            reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    @property
    def reader(self) -> native.rados.ChunkReader:
        """The connection. Raises StoreUnreachable, UsageError."""
        address = self._cluster.address
        with self._lock:
            if self._reader is None:
                try:
                    self._reader = native.rados.ChunkReader(
                        conf=address.conf,
                        user=f"client.{address.user}",
                        keyring=address.keyring,
                        pool=address.pool,
                        namespace=address.name,
                        timeout_s=address.timeout_s,
                    )
                except OSError as error:
                    raise self._cluster.error("connecting to read", error) from error
                except ImportError as error:
                    raise UsageError(f"{address}: Ceph's library is missing ({error})") from error
            return self._reader
