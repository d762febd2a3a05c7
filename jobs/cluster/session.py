"""A job's session on the store of its volume."""

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dedupd_core import native
from dedupd_core.errors import Busy, Damaged, UsageError
from dedupd_core.format.cluster.address import parse_address
from dedupd_core.format.cluster.objects import FileId
from dedupd_core.rados.cluster.connection import Cluster
from dedupd_core.rados.lease import LeaseState
from dedupd_core.rados.reading.sources import version_in
from dedupd_core.rados.reading.volume_store import VolumeStore
from dedupd_core.rados.recovery import Recovery
from dedupd_core.rados.writer import Writer
from dedupd_core.system.files import opened
from dedupd_core.volume.volume import Volume
from jobs.backup.received import held_version


class StubVersions:
    """Finds the version that the stub of a file names, by inode and generation. Needs root.

    It does not use paths: a file may be renamed at any time, and must never be taken for deleted.
    """

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self._sample = native.system.name_to_handle(volume.data_fd)

    def handle(self, file: FileId) -> bytes:
        """Return the handle of a file, in the form of the file system. Raises Damaged."""
        handle = native.system.handle_of(self._sample, file.inode, file.generation)
        if handle is None:
            raise Damaged(f"{self._volume.root}: the file system cannot find files by their inodes")
        return handle

    def file_of(self, fd: int) -> FileId:
        """Return the id of an open file. Raises Damaged if the id does not find the file again."""
        file = FileId(os.fstat(fd).st_ino, native.system.generation(fd))
        if self.handle(file) != native.system.name_to_handle(fd):
            raise Damaged(f"inode {file.inode}: not found by its number and generation")
        return file

    def settle(self, file: FileId) -> str | None:
        """Return the version that the stub of a file names; None if it is deleted or no stub.

        A removed file that is still open exists. Raises Busy during a commit of the file,
        DamagedStub, OSError.
        """
        volume = self._volume
        if file.is_held:
            return held_version(volume.base_fd, file.generation)
        try:
            fd = native.system.open_by_handle(
                volume.data_fd, self.handle(file), os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW
            )
        except BlockingIOError as error:
            raise Busy(
                f"{volume.root}: inode {file.inode} is in use; run the command again"
            ) from error
        except OSError as error:
            if error.errno in (errno.ESTALE, errno.ENOENT):
                return None
            raise
        with opened(fd):
            stub = volume.space.read(fd, f"{volume.root}: inode {file.inode}")
        return None if stub is None else version_in(stub.recipe, stub.digest)


def store_of(volume: Volume) -> VolumeStore:
    """Return the cluster store of a volume. Raises UsageError for another kind of store."""
    store = volume.chunk_store
    if not isinstance(store, VolumeStore):
        raise UsageError(f"{volume.root}: its store is not in a cluster")
    return store


@contextmanager
def writing(volume: Volume, stubs: StubVersions) -> Iterator[tuple[Writer, dict[str, Any]]]:
    """Open the session; yields its writer and what it has recovered. Needs the volume's job lock.

    With that lock, no other process of this host writes the volume. So the session need not wait
    until a lease of this host expires. Raises Busy, StoreUnreachable.
    """
    side = store_of(volume)
    host = socket.gethostname()

    def is_dead(state: LeaseState) -> bool:
        return state.host == host

    # The stubs must be read in the state that survives a power failure.
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
