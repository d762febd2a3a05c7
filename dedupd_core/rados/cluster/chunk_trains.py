"""Transfers many chunks at a time, in native code with its own connection.

Waking a reader for each chunk costs as much as the chunk itself. So ordinary, intact chunks are
read in trains; :mod:`dedupd_core.rados.chunks` reads the others one by one, and reports the errors.
"""

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dedupd_core import native
from dedupd_core.errors import UsageError
from dedupd_core.format.cluster.objects import chunk_object
from dedupd_core.rados.cluster.connection import Cluster

READS_AT_ONCE = 64
"""Reads of a train in flight. Answers are processed in order, so some of these have already
arrived: with 16, OSDs on the same cores are busy for only two thirds of the time."""


class WantedChunk(NamedTuple):
    """A chunk to read, and its length."""

    fingerprint: bytes
    length: int


Keep = Callable[[bytes, bytes], None]
"""Gets the fingerprint of a chunk, and the frame that it was read from."""


class ChunkTrains:
    """Reads chunks from a store. Connects at the first read. Safe to use from several threads."""

    def __init__(self, cluster: Cluster, algorithm: str) -> None:
        self._cluster, self._algorithm = cluster, algorithm
        self._lock = threading.Lock()
        self._reader: native.rados.ChunkReader | None = None  # _lock

    def close(self) -> None:
        """Wait until all operations in flight have finished."""
        with self._lock:
            reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def read(self, wanted: Sequence[WantedChunk], keep: Keep | None = None) -> list[bytes | None]:
        """Return the verified raw bytes of chunks; None for a missing or damaged chunk.

        Good frames are passed to ``keep``. Raises StoreUnreachable if any answer is late,
        UsageError, WriterFenced.
        """
        chunks, frames, errno = self.reader.read(
            [chunk_object(one.fingerprint) for one in wanted],
            b"".join([one.fingerprint for one in wanted]),
            [one.length for one in wanted],
            at_once=READS_AT_ONCE,
            with_frames=keep is not None,
        )
        if keep is not None:
            for one, frame in zip(wanted, frames, strict=True):
                if frame is not None:
                    keep(one.fingerprint, frame)
        if errno:
            raise self._cluster.error("reading chunks", OSError(errno, "no answer"))
        return chunks

    @property
    def reader(self) -> native.rados.ChunkReader:
        """The connection. Raises like :meth:`read`."""
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
                        algorithm=self._algorithm,
                    )
                except OSError as error:
                    raise self._cluster.error("connecting to read", error) from error
                except ImportError as error:
                    raise UsageError(f"{address}: Ceph's library is missing ({error})") from error
            return self._reader
