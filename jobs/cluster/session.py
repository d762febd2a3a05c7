"""A job's session on the store of its volume."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dedupd_core.errors import UsageError
from dedupd_core.format.cluster.address import parse_address
from dedupd_core.rados.cluster.connection import Cluster
from dedupd_core.rados.lease import LeaseState
from dedupd_core.rados.reading.volume_store import VolumeStore
from dedupd_core.rados.recovery import Recovery
from dedupd_core.rados.writer import Writer
from dedupd_core.volume.volume import Volume
from jobs.cluster.stub_versions import StubVersions


def store_of(volume: Volume) -> VolumeStore:
    """The store of a volume whose chunks are in a cluster. Raises UsageError for another one."""
    store = volume.chunk_store
    if not isinstance(store, VolumeStore):
        raise UsageError(f"{volume.root}: its chunks are in no cluster")
    return store


@contextmanager
def writing(volume: Volume, stubs: StubVersions) -> Iterator[tuple[Writer, dict[str, Any]]]:
    """The session, and what it has recovered. Needs the volume's job lock.

    That lock says that no other process of this host writes the volume, so a lease that this host
    has left need not run out. Raises Busy, StoreUnreachable.
    """
    side = store_of(volume)
    host = socket.gethostname()

    def is_dead(state: LeaseState) -> bool:
        return state.host == host

    # What stubs say has to be what a power cut leaves of them.
    volume.disk.sync_file_system(volume.data_fd)
    with Cluster(parse_address(side.binding.address)) as cluster:
        writer, recovery = side.open().writer(
            side.volume, stubs.settle, host=host, is_holder_dead=is_dead, cluster=cluster
        )
        with writer:
            yield writer, _counted(recovery)


def _counted(recovery: Recovery) -> dict[str, Any]:
    names = ("finished", "rolled_back", "retired", "left")
    return {name: getattr(recovery, name) for name in names}
