"""Starts and stops the process of a mount, for a volume or a snapshot."""

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from dedupd_core.errors import Busy, NotAVolume, ServiceUnreachable, UsageError, error_named
from dedupd_core.system import mount_table
from dedupd_core.system.control_socket import QUESTION_TIMEOUT_S, ControlClient, socket_path
from dedupd_core.system.files import opened
from dedupd_core.system.processes import server_environment
from dedupd_core.units import MIB
from dedupd_core.volume.base_directory import BASE_NAME
from dedupd_core.volume.volume import Volume
from fuse_stub.mounts import over_mount
from fuse_stub.mounts.mount_options import NO_OPTIONS, MountOptions
from fuse_stub.mounts.mount_points import clear_dead_mount, detach, is_dead, is_dead_mount
from fuse_stub.mounts.private_mount import PrivateMount

CACHE_BYTES = 64 * MIB

EXIT_WAIT_MS = 60_000
"""The longest time for an unmount to sync written data."""


class Mounter(Protocol):
    """Mounts for a process that cannot mount at a place that users see."""

    def private_mount(
        self, below_fd: int, options: MountOptions
    ) -> AbstractContextManager[PrivateMount]: ...
    def new_mount(self, options: Mapping[str, str]) -> int: ...
    @property
    def view(self) -> str: ...
    def let_go(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The parameters for serving a mount. ``ready`` is called when the mount answers.

    ``bounded`` is called when the process has dropped its rights. A new thread inherits the rights
    of the process at that time. ``outside`` mounts for the process if it cannot do so itself.
    """

    mountpoint: str
    cache_bytes: int = CACHE_BYTES
    options: MountOptions = NO_OPTIONS
    ready: Callable[[], None] | None = None
    bounded: Callable[[], None] | None = None
    outside: Mounter | None = None

    @property
    def view(self) -> str:
        """A path of the mount for its own process, until ``ready`` is called."""
        return self.mountpoint if self.outside is None else self.outside.view


def mount_in_background(
    path: str,
    mountpoint: str,
    *,
    cache_bytes: int = CACHE_BYTES,
    options: MountOptions = NO_OPTIONS,
) -> int:
    """Mount the volume at ``path`` in a new process; return its pid when it answers.

    It replaces the dead mount of a killed process. Raises the errors of that process: NotAVolume,
    Busy, Damaged and others, as in :func:`fuse_stub.process.serve`.
    """
    with open_volume(path) as volume:
        asked = ServeOptions(mountpoint, cache_bytes, options)
        return served_in_background(volume.root, volume.base_fd, asked)


def served_in_background(
    path: str, base_fd: int, asked: ServeOptions, *, is_snapshot: bool = False
) -> int:
    """Serve a volume whose ``.dedupd`` is open in a new process; return its pid when it answers.
    ``base_fd`` stays the caller's."""
    read_fd, write_fd = os.pipe()
    command = [
        *(sys.executable, "-P", "-m", "fuse_stub", path, str(base_fd)),
        *(asked.mountpoint, str(asked.cache_bytes), asked.options.text, str(write_fd)),
        *(["snapshot"] if is_snapshot else []),
    ]
    with os.fdopen(read_fd, "rb") as answer:
        try:
            process = subprocess.Popen(
                command,
                pass_fds=[write_fd, base_fd],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                cwd="/",
                env=server_environment(),
            )
        finally:
            os.close(write_fd)
        text = answer.read()
    assert process.stderr is not None
    with process.stderr as stderr:
        if not text:
            reason = stderr.read().decode("utf-8", "replace").strip().splitlines()
            process.wait()
            raise ServiceUnreachable(
                f"{asked.mountpoint}: the mount process died:"
                f" {reason[-1] if reason else f'status {process.returncode}'}"
            )
    reply = json.loads(text)
    if "error" in reply:
        process.wait()
        raise error_named(reply["kind"], reply["error"])
    # From here on this process does not wait for the child.
    process.returncode = 0
    return process.pid


def mount_snapshot_in_background(
    path: str,
    mountpoint: str,
    *,
    cache_bytes: int = CACHE_BYTES,
    options: MountOptions = NO_OPTIONS,
) -> int:
    """Like :func:`mount_in_background`, for a snapshot: see
    :func:`fuse_stub.snapshot.serve_snapshot`."""
    with open_snapshot(path) as volume:
        asked = ServeOptions(mountpoint, cache_bytes, options)
        return served_in_background(volume.root, volume.base_fd, asked, is_snapshot=True)


def open_snapshot(path: str) -> Volume:
    """Open the snapshot of a volume at ``path``. Raises the errors of ``Volume.open``."""
    around = mount_table.find(os.path.realpath(path))
    if around is not None:
        raise UsageError(
            f"{path}: is inside a volume that is mounted at {around.point}; use the directory of"
            " the volume in a snapshot of its file system"
        )
    return Volume.open(path)


def open_volume(path: str) -> Volume:
    """Open the volume at ``path``, even below its dead mount, or an automount of systemd.

    Root opens the directory below the dead mount, which stays; for other users it is unmounted.
    Raises OSError and the errors of ``Volume.open``.
    """
    is_dead_one = is_dead_mount(path)
    if is_dead_one and os.geteuid() != 0:
        clear_dead_mount(path)
        return Volume.open(path)
    if not is_dead_one and not mount_table.is_automount(os.path.realpath(path)):
        return Volume.open(path)
    root = os.path.abspath(path)
    with opened(over_mount.uncovered(root)) as below:
        try:
            base_fd = os.open(BASE_NAME, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=below)
        except FileNotFoundError:
            if not is_dead_one:
                raise NotAVolume(f"{path}: no volume is below the automount") from None
            raise NotAVolume(
                f"{path}: is the dead mount of a volume elsewhere; to restore it, run `dedupd"
                f" mount` with the volume's own path; to remove it, run `dedupd umount {path}`"
            ) from None
    return Volume.at(root, base_fd)


def unmount(mountpoint: str) -> None:
    """Unmount a volume, or a snapshot, and wait until all data is synced.

    Raises Busy, UsageError.
    """
    if mountpoint in mount_table.snapshot_points():
        detach(mountpoint, lazily=is_dead(mountpoint))
        return
    found = [mount for mount in mount_table.volumes() if mount.point == mountpoint]
    if not found:
        raise UsageError(f"{mountpoint}: no volume is mounted here")
    if is_dead(mountpoint):
        clear_dead_mount(mountpoint)
        return
    pid_fd = _process_of(found[-1].volume)
    detach(mountpoint, lazily=False)
    clear_dead_mount(mountpoint)
    if pid_fd is not None and not exits(pid_fd, EXIT_WAIT_MS):
        raise Busy(f"{mountpoint}: unmounted, but its data is still being synced")


def exits(pid_fd: int, wait_ms: int) -> bool:
    """Return whether a process exits within a time; closes ``pid_fd``."""
    poll = select.poll()
    poll.register(pid_fd, select.POLLIN)
    try:
        return bool(poll.poll(wait_ms))
    finally:
        os.close(pid_fd)


def _process_of(volume: str) -> int | None:
    try:
        with ControlClient(socket_path(volume), QUESTION_TIMEOUT_S) as client:
            return os.pidfd_open(client.call("status")["pid"])
    except (ServiceUnreachable, ProcessLookupError):
        return None
