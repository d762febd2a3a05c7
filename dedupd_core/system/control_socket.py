"""Requests to a mount process through its Unix socket.

Each request and reply is one JSON object per line; paths are encoded with ``surrogateescape``. The
socket's directory has mode 0700: a process that can open the socket may do everything. See
docs/design/control.md.
"""

import errno
import json
import os
import socket
import struct
from collections.abc import Callable
from typing import Any

from dedupd_core.errors import ServiceUnreachable

TIMEOUT_S = 120.0
"""A commit waits for a sync of the file system; a longer wait means a hung disk."""

POLL_S = 0.5
"""The interval in which a waiting client calls its safe point."""

FDS_MAX = 64
"""The largest number of descriptors in one reply."""

QUESTION_TIMEOUT_S = 30.0
"""Like ``TIMEOUT_S``, for a question that needs no disk."""

ANSWER_BYTES_MAX = 16 << 20
"""A mount process never sends a longer answer; results of 512 commits need a few hundred KiB."""


def runtime_dir() -> str:
    """Return the directory of sockets: ``/run/dedupd`` for root, else the user's own."""
    if os.geteuid() == 0:
        return "/run/dedupd"
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base:
        return os.path.join(base, "dedupd")
    import tempfile

    return os.path.join(tempfile.gettempdir(), f"dedupd-{os.geteuid()}")


def socket_path(volume: str) -> str:
    """Return the path of the socket of the mount process of ``volume`` (a uuid)."""
    return os.path.join(runtime_dir(), f"{volume}.sock")


def connected(path: str, timeout_s: float) -> socket.socket:
    """Connect to a Unix socket; wait if many clients connect at once.

    Raises OSError.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # A timeout of Python makes the socket non-blocking: then connect would not wait.
        wait = struct.pack("ll", int(timeout_s), 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, wait)
        connection.connect(path)
        _refuse_stranger(connection)
        connection.settimeout(timeout_s)
    except BaseException:
        connection.close()
        raise
    return connection


def peer_ids(connection: socket.socket) -> tuple[int, int, int]:
    """Return the process at the other end, its user and its group."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, gid = struct.unpack("3i", raw)
    return pid, uid, gid


def _refuse_stranger(connection: socket.socket) -> None:
    """Raise PermissionError if the process that listens is neither root's nor this user's."""
    _, uid, _ = peer_ids(connection)
    if uid & 0xFFFF_FFFF not in (0, os.geteuid()):
        raise PermissionError(errno.EACCES, f"user {uid} listens there")


class ControlClient:
    """A connection to a mount process."""

    def __init__(self, path: str, timeout_s: float | None = None) -> None:
        """``timeout_s``: how long to wait for an answer, ``TIMEOUT_S`` by default.

        Raises ServiceUnreachable.
        """
        self._path = path
        self._timeout_s = TIMEOUT_S if timeout_s is None else timeout_s
        try:
            self._socket = connected(path, self._timeout_s)
        except OSError as error:
            why = f"does not respond ({error.strerror})"
            if os.geteuid():
                why += ", or belongs to another user; run the command as root"
            raise ServiceUnreachable(f"{path}: the mount process {why}") from error
        self._buffer = bytearray()

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> "ControlClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """Return the reply to one request. Raises ServiceUnreachable."""
        reply, _ = self._call(operation, arguments)
        return reply

    def call_with(self, operation: str, payload: bytes) -> dict[str, Any]:
        """Like :meth:`call`, with bytes that follow the request."""
        reply, _ = self._call(operation, {"payload_bytes": len(payload)}, payload=payload)
        return reply

    def call_patiently(
        self, operation: str, safe_point: Callable[[], None], **arguments: Any
    ) -> dict[str, Any]:
        """Like :meth:`call`, but wait as long as the mount process lives.

        ``safe_point`` is called during the wait. If it raises an exception, only the wait ends.
        """
        reply, _ = self._call(operation, arguments, safe_point)
        return reply

    def volume_fd(self, safe_point: Callable[[], None] | None = None) -> int:
        """A descriptor of the ``.dedupd`` directory below the mount; ``safe_point`` is as above."""
        _, fds = self._call("volume", {}, safe_point)
        if len(fds) != 1:
            raise ServiceUnreachable(f"{self._path}: no descriptor came with the reply")
        return fds[0]

    def call_for_fds(self, operation: str, **arguments: Any) -> tuple[dict[str, Any], list[int]]:
        """Return the reply to a request, and its descriptors."""
        return self._call(operation, arguments)

    def _call(
        self,
        operation: str,
        arguments: dict[str, Any],
        safe_point: Callable[[], None] | None = None,
        payload: bytes = b"",
    ) -> tuple[dict[str, Any], list[int]]:
        fds: list[int] = []
        line = json.dumps({"op": operation, **arguments}).encode() + b"\n"
        try:
            self._socket.sendall(line + payload)
            self._socket.settimeout(self._timeout_s if safe_point is None else POLL_S)
            searched = 0
            while (end := self._buffer.find(b"\n", searched)) < 0:
                searched = len(self._buffer)
                if searched > ANSWER_BYTES_MAX:
                    raise ServiceUnreachable(f"{self._path}: its answer is too long")
                try:
                    data, new, _, _ = socket.recv_fds(self._socket, 1 << 20, FDS_MAX)
                except TimeoutError:
                    if safe_point is None:
                        raise
                    safe_point()
                    continue
                fds += new
                if not data:
                    raise ServiceUnreachable(f"{self._path}: the connection was closed")
                self._buffer += data
        except OSError as error:
            raise ServiceUnreachable(
                f"{self._path}: the mount process has died, or does not respond"
                f" ({error.strerror or error})"
            ) from error
        reply: dict[str, Any] = json.loads(self._buffer[:end])
        del self._buffer[: end + 1]
        return reply, fds


def fetch_base(volume: str) -> int:
    """Return a descriptor of the ``.dedupd`` directory below a mount. Raises ServiceUnreachable."""
    with ControlClient(socket_path(volume), QUESTION_TIMEOUT_S) as client:
        fd = client.volume_fd()
    os.set_inheritable(fd, False)
    return fd
