"""What the service and the process of a mount in a unit of systemd pass to each other.

The process has a file system namespace of its own, so it can neither mount where users see it nor
make its private mount of the file system below. The service does both, and passes descriptors:

1. service: what to serve, the ``.dedupd`` in the mount of the host, and the private mount
2. process, once it holds the volume: the options of the mount
3. service: the open ``/dev/fuse``, and the mount, which is at no place yet
4. process: the mount answers, or the error; then the service puts the mount in its place

Each message is a JSON object. If the service ends before that, the kernel ends the mount, because
nobody has it open, and the process with it.
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
from fuse_stub.mounts.mount_process import Serving
from fuse_stub.mounts.private_mount import PrivateMount, given_mount

MESSAGE_BYTES_MAX = 64 << 10

FDS_MAX = 2


def meeting_place(volume: str) -> str:
    """The socket on which the service waits for the process of a volume (a uuid)."""
    return os.path.join(runtime_dir(), f"{volume}.start")


class Ended(ServiceUnreachable):
    """The process at the other end has ended without an answer."""


class Line:
    """A connection, on either side. Closes the socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    @classmethod
    def to_service(cls, volume: str) -> "Line":
        """Raises OSError if no service waits for the process of ``volume``."""
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
        """The process at the other end."""
        pid, _, _ = peer_ids(self._socket)
        return pid

    def close(self) -> None:
        self._socket.close()

    def send(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        """Raises Ended."""
        try:
            socket.send_fds(self._socket, [json.dumps(message).encode()], fds)
        except OSError as error:
            raise Ended(f"the other process has ended ({error.strerror})") from error

    def receive(self) -> tuple[dict[str, Any], list[int]]:
        """The next message, and its descriptors, which the caller closes.

        Raises Ended, and an error that it reports.
        """
        try:
            data, fds, _, _ = socket.recv_fds(self._socket, MESSAGE_BYTES_MAX, FDS_MAX)
        except OSError as error:
            raise Ended(f"the other process has ended ({error.strerror})") from error
        for fd in fds:
            os.set_inheritable(fd, False)
        if not data:
            raise Ended("the other process has ended")
        message: dict[str, Any] = json.loads(data)
        if "error" in message:
            for fd in fds:
                os.close(fd)
            raise error_named(message["kind"], message["error"])
        return message, fds


def task_of(path: str, asked: Serving) -> dict[str, Any]:
    """The message that says what to serve."""
    return {
        "path": path,
        "mountpoint": asked.mountpoint,
        "cache_bytes": asked.cache_bytes,
        "options": asked.options.text,
    }


class Outside:
    """The service, as the process of a mount sees it."""

    def __init__(self, line: Line) -> None:
        """Takes the task. Raises as :meth:`Line.receive`."""
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
        """Have a mount made; return its open ``/dev/fuse``. Raises as :meth:`Line.receive`."""
        self._line.send({"mount": options})
        _, (device_fd, self._mount_fd) = self._line.receive()
        return device_fd

    @property
    def view(self) -> str:
        """A path of the mount, until :meth:`let_go`."""
        return f"/proc/self/fd/{self._mount_fd}"

    def let_go(self) -> None:
        """Close the mount, which could not be unmounted otherwise, and the line."""
        self._line.close()
        if self._mount_fd is not None:
            os.close(self._mount_fd)
            self._mount_fd = None
