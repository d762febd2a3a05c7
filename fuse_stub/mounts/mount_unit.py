"""Runs the process of a mount in a systemd unit, with a separate file system namespace.

The service does what the process cannot do there, in the namespace of the host
(:mod:`fuse_stub.mounts.handover`).
"""

import logging
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from dedupd_core.errors import Busy, UsageError
from dedupd_core.system.control_socket import runtime_dir
from dedupd_core.system.files import opened
from dedupd_core.volume.detached_mount import detached_mount
from dedupd_core.volume.volume import Volume
from fuse_stub.mounts import over_mount
from fuse_stub.mounts.handover import PeerEnded, ServiceConnection, meeting_place, task_of
from fuse_stub.mounts.mount_points import device_of, is_dead_mount, read_ahead_more
from fuse_stub.mounts.mount_process import ServeOptions
from fuse_stub.mounts.private_mount import private_mount, show

UNIT = "dedupd-mount@{}.service"

START_S_MAX = 60.0
"""The time for an old process of the unit to exit, and a new one to start."""

CALL_S_MAX = 3.0
"""The wait for a call before systemd is asked again: its unit may have been about to stop."""

log = logging.getLogger("dedupd.service")


class NoUnit(Exception):
    """systemd cannot start the unit; the message has the reason."""


def served_in_unit(volume: str, path: str, base_fd: int, asked: ServeOptions) -> int:
    """Serve a volume (a uuid) by a process in its unit; return its pid when it is mounted.

    ``base_fd`` is the open ``.dedupd`` of the volume; the caller still has to close it. Raises
    NoUnit, the errors of the process, Busy, UsageError, OSError.
    """
    try:
        return _served(volume, path, base_fd, asked)
    except PeerEnded as error:
        unit = UNIT.format(volume)
        raise NoUnit(f"{unit} has stopped; run `journalctl -u {unit}` to find the cause") from error


def _served(volume: str, path: str, base_fd: int, asked: ServeOptions) -> int:
    with ExitStack() as stack:
        below_fd = os.dup(base_fd)
        private = stack.enter_context(private_mount(below_fd, asked.options))
        if private.mount_fd is None:
            raise NoUnit("the kernel does not support a private mount of the file system below")
        line = stack.enter_context(_called(volume, path, base_fd))
        line.send(task_of(path, asked), [base_fd, private.mount_fd])
        request, _ = line.receive()
        with opened(os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)) as device_fd:
            mount_fd = over_mount.new_mount(device_fd, request["mount"])
            stack.callback(os.close, mount_fd)
            show(mount_fd, asked.options, base_fd)
            line.send({}, [device_fd, mount_fd])
        line.receive()
        read_ahead_more(device_of(f"/proc/self/fd/{mount_fd}"))
        _put(mount_fd, asked.mountpoint)
        return line.pid


def _put(mount_fd: int, point: str) -> None:
    """Put a mount in its place, and replace a dead one. Raises UsageError."""
    try:
        if is_dead_mount(point):
            over_mount.replace(mount_fd, point)
        else:
            over_mount.attach(mount_fd, point)
    except OSError as error:
        raise UsageError(
            f"{point}: cannot be mounted ({error.strerror}); check that it is a directory"
        ) from error


@contextmanager
def _called(volume: str, path: str, base_fd: int) -> Iterator[ServiceConnection]:
    """Start the unit, and wait until its process connects."""
    where = meeting_place(volume)
    os.makedirs(runtime_dir(), mode=0o700, exist_ok=True)
    with suppress(FileNotFoundError):
        os.unlink(where)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(where)
        try:
            listener.listen(1)
            listener.settimeout(CALL_S_MAX)
            line = ServiceConnection(_call_of(listener, volume, path, base_fd))
        finally:
            os.unlink(where)
    try:
        yield line
    finally:
        line.close()


def _call_of(listener: socket.socket, volume: str, path: str, base_fd: int) -> socket.socket:
    end = time.monotonic() + START_S_MAX
    unit = UNIT.format(volume)
    while True:
        _systemctl("start", unit)
        with suppress(TimeoutError):
            connection, _ = listener.accept()
            connection.settimeout(None)
            return connection
        _systemctl("is-active", unit)
        # It starts slowly, or an old process still runs: for users of a detached mount, or to sync.
        with Volume.at(path, os.dup(base_fd)) as opened_volume:
            detached = detached_mount(opened_volume)
        if detached is not None and (detached.users or time.monotonic() > end):
            raise Busy(detached.message)
        if time.monotonic() > end:
            raise NoUnit(f"{unit} is running, but does not respond; see `systemctl status {unit}`")


def _systemctl(action: str, unit: str) -> None:
    """Call systemctl. Raises NoUnit if it fails."""
    try:
        done = subprocess.run(
            ["systemctl", "--quiet", "--no-ask-password", action, "--", unit],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=START_S_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoUnit(str(error)) from error
    if done.returncode:
        text = done.stderr.decode("utf-8", "replace").strip().splitlines()
        status = f"`systemctl {action} {unit}` exited with status {done.returncode}"
        raise NoUnit(text[0] if text else status)
