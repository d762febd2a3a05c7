"""Mounts snapshots of a volume read-only, separately from it. The file system below made them."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from dedupd_core.errors import Busy, UsageError
from dedupd_core.system.files import opened
from dedupd_core.system.paths import named
from dedupd_core.system.processes import cores
from dedupd_core.volume.base_directory import BASE_NAME
from dedupd_core.volume.transition_log import Transitions
from dedupd_core.volume.volume import Volume
from fuse_stub.mounted_volume import MountedVolume
from fuse_stub.mounts.mount_process import ServeOptions
from fuse_stub.process import answer, bound, set_up_process


def serve_snapshot(volume: Volume, asked: ServeOptions) -> None:
    """Show a snapshot of a volume as ``asked`` until it is unmounted or SIGTERM comes.

    The volume and other snapshots may be mounted, too. It answers no job, and writes nothing.
    Raises UsageError if the snapshot is writable, Busy if a process is changing it, OSError.
    """
    set_up_process()
    with _snapshot_lock(volume) as transitions:
        bound(asked, is_read_only=True)
        at, cache_bytes = asked.mountpoint, asked.cache_bytes
        mount = MountedVolume(volume, transitions, at, cache_bytes, cores())
        try:
            answer(mount, asked, volume.base_fd)
        finally:
            mount.close()


@contextmanager
def _snapshot_lock(volume: Volume) -> Iterator[Transitions]:
    """Exclude jobs and mounts that would change the snapshot if it became writable.

    All readers share this lock.
    """
    if not volume.is_read_only:
        raise UsageError(
            f"{volume.root}: is writable, so it could change while it is mounted; mount its file"
            " system with `-o ro` (XFS next to its original: `-o ro,norecovery,nouuid`), or make"
            f" it read-only: `btrfs property set {volume.root} ro true`"
        )
    where = os.path.join(volume.root, BASE_NAME, "mount.lock")
    flags = os.O_RDONLY | os.O_CLOEXEC
    with named(where), opened(os.open("mount.lock", flags, dir_fd=volume.base_fd)) as fd:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(f"{volume.root}: is mounted as a volume; unmount it first") from None
        yield Transitions(fd)
