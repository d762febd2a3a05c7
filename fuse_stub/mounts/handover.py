"""The protocol between the service and a mount process in a systemd unit.

The process has its own file system namespace. So it can neither mount at a place that users see,
nor make its private mount of the file system below. The service does both, and passes descriptors:

1. service: the task, the ``.dedupd`` in the mount of the host, and the private mount
2. process, when it holds the volume: the options of the mount
3. service: the open ``/dev/fuse``, and the mount, which has no place yet
4. process: the mount answers, or an error; then the service puts the mount in its place

Each message is a JSON object. If the service exits before the end, nothing holds the mount open:
the kernel ends the mount, and with it the process.
"""

import json
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from dedupd_core.errors import ServiceUnreachable, error_named
from dedupd_core.system.control_socket import peer_ids, runtime_dir
from fuse_stub.mounts.mount_options import MountOptions, parse_options
from fuse_stub.mounts.mount_process import ServeOptions
from fuse_stub.mounts.private_mount import PrivateMount, given_mount

MESSAGE_BYTES_MAX = 64 << 10

FDS_MAX = 2


def meeting_place(volume: str) -> str:
    """Return the socket on which the service waits for the process of a volume (a uuid)."""
    return os.path.join(runtime_dir(), f"{volume}.start")


class PeerEnded(ServiceUnreachable):
    """The process at the other end has exited without an answer."""


class ServiceConnection:
    """A connection, on either side. Closes the socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    @classmethod
    def to_service(cls, volume: str) -> "ServiceConnection":
        """Connect to the service. Raises OSError if no service waits for this process."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.connect(meeting_place(volume))
        except BaseException:
            connection.close()
            raise
        return cls(connection)

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def pid(self) -> int:
        """The pid of the process at the other end."""
        pid, _, _ = peer_ids(self._socket)
        return pid

    def close(self) -> None:
        self._socket.close()

    def send(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        """Raises Ended."""
        try:
            socket.send_fds(self._socket, [json.dumps(message).encode()], fds)
        except OSError as error:
            raise PeerEnded(f"the other process has ended ({error.strerror})") from error

    def receive(self) -> tuple[dict[str, Any], list[int]]:
        """Return the next message, and its descriptors, which the caller closes.

        Raises Ended, or the reported error.
        """
        try:
            data, fds, _, _ = socket.recv_fds(self._socket, MESSAGE_BYTES_MAX, FDS_MAX)
        except OSError as error:
            raise PeerEnded(f"the other process has ended ({error.strerror})") from error
        for fd in fds:
            os.set_inheritable(fd, False)
        if not data:
            raise PeerEnded("the other process has ended")
        message: dict[str, Any] = json.loads(data)
        if "error" in message:
            for fd in fds:
                os.close(fd)
            raise error_named(message["kind"], message["error"])
        return message, fds


def task_of(path: str, asked: ServeOptions) -> dict[str, Any]:
    """Return the message with the task of the process."""
    return {
        "path": path,
        "mountpoint": asked.mountpoint,
        "cache_bytes": asked.cache_bytes,
        "options": asked.options.text,
    }


class ServiceProxy:
    """The service, as seen by a mount process."""

    def __init__(self, line: ServiceConnection) -> None:
        """Receive the task. Raises the errors of :meth:`ServiceConnection.receive`."""
        self._line = line
        task, (self.base_fd, self._private_fd) = line.receive()
        self.path: str = task["path"]
        self.mountpoint: str = task["mountpoint"]
        self.cache_bytes: int = task["cache_bytes"]
        self.options = parse_options(task["options"])
        self._mount_fd: int | None = None

    def private_mount(
        self, below_fd: int, options: MountOptions
    ) -> AbstractContextManager[PrivateMount]:
        """The private mount that the service has made; closes ``below_fd`` as well."""
        return given_mount(self._private_fd, below_fd, options)

    def new_mount(self, options: Mapping[str, str]) -> int:
        """Return the open ``/dev/fuse`` of a new mount. Raises as ``ServiceConnection.receive``."""
        self._line.send({"mount": options})
        _, (device_fd, self._mount_fd) = self._line.receive()
        return device_fd

    @property
    def view(self) -> str:
        """A path of the mount, until :meth:`let_go`."""
        return f"/proc/self/fd/{self._mount_fd}"

    def let_go(self) -> None:
        """Close the mount, so that it can be unmounted, and the line."""
        self._line.close()
        if self._mount_fd is not None:
            os.close(self._mount_fd)
            self._mount_fd = None
