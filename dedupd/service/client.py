"""The client of the service, for commands; and the lock that allows only one service."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlencode

from dedupd.service.config import config_path, default_socket, load_config
from dedupd_core.errors import (
    EXIT_USAGE,
    ConfigurationError,
    DedupdError,
    NotAVolume,
    ServiceUnreachable,
    error_named,
)
from dedupd_core.system.control_socket import TIMEOUT_S, connected
from dedupd_core.system.files import locked
from dedupd_core.system.paths import refuse_part, resolved

SYSTEM_SOCKET = "/run/dedupd.sock"

RUNS_A_PAGE = 50
"""The largest number of runs in one answer of the service."""

ANSWER_BYTES_MAX = 64 << 20
"""The service never sends a longer answer."""

_ANSWER_WAIT_S = 150.0
"""Long, because an unmount syncs all written data."""


def exchange(socket_path: str, method: str, resource: str, body: Any = None) -> tuple[int, Any]:
    """Send a request and return the status and the answer: JSON in HTTP over a Unix socket.

    Raises ServiceUnreachable.
    """
    import http.client  # also imports mail and TLS, which only runs with a service need

    connection = http.client.HTTPConnection("dedupd")
    try:
        connection.sock = connected(socket_path, _ANSWER_WAIT_S)
        connection.request(method, resource, None if body is None else json.dumps(body).encode())
        response = connection.getresponse()
        text = response.read(ANSWER_BYTES_MAX + 1)
        if len(text) > ANSWER_BYTES_MAX:
            raise ValueError("its answer is too long")
        return response.status, json.loads(text)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise ServiceUnreachable(f"{socket_path}: the service does not respond: {error}") from None
    finally:
        connection.close()


class Denied(DedupdError):
    """The service does not allow this user to do that."""

    exit_status = EXIT_USAGE


class ServiceClient:
    """A connection to a running service."""

    def __init__(self, path: str) -> None:
        """Raises ServiceUnreachable if no service listens at ``path``."""
        self.path = path
        try:
            connected(path, TIMEOUT_S).close()
        except OSError as error:
            raise ServiceUnreachable(f"{path}: the service is not running") from error

    @classmethod
    def find(cls) -> "ServiceClient | None":
        """Return the service of this machine; None if none runs, or this user has no access."""
        for path in _places():
            try:
                return cls(path)
            except ServiceUnreachable:
                continue
        return None

    @classmethod
    def serving(cls, path: str) -> "ServiceClient | None":
        """Return the service of this machine if it manages the volume that contains ``path``."""
        client = cls.find()
        if client is None:
            return None
        try:
            client.volume(path)
        except (NotAVolume, Denied):
            return None
        return client

    @classmethod
    def needed(cls) -> "ServiceClient":
        """Return the service of this machine. Raises ServiceUnreachable."""
        client = cls.find()
        if client is None:
            raise ServiceUnreachable(
                "the service is not running; start it with `systemctl start dedupd` or"
                " `dedupd serve`"
            )
        return client

    def get(self, resource: str, /, **query: object) -> Any:
        """Send a GET request. Raises the error that the service answers, and ServiceUnreachable."""
        text = urlencode({name: str(value) for name, value in query.items()}, errors=_ERRORS)
        return self._call("GET", f"{resource}?{text}" if text else resource)

    def jobs(self, last: int, path: str | None = None) -> dict[str, Any]:
        """Return running jobs, queued jobs and the last runs; the service sends runs in pages."""
        query: dict[str, object] = {} if path is None else {"path": resolved(path)}
        found: dict[str, Any] = self.get("/v1/jobs", last=min(last, RUNS_A_PAGE), **query)
        before = found.pop("next")
        while before is not None and len(found["history"]) < last:
            count = min(last - len(found["history"]), RUNS_A_PAGE)
            page = self.get("/v1/jobs", last=count, before=before, **query)
            found["history"] += page["history"]
            before = page["next"]
        found["history"] = found["history"][:last]
        return found

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        return self._call("POST", path, body)

    def delete(self, path: str) -> Any:
        return self._call("DELETE", path)

    def volume(self, path: str) -> dict[str, Any]:
        """Return the volume that contains a path. Raises NotAVolume."""
        found: list[dict[str, Any]] = self.get("/v1/volumes", path=resolved(path))
        return found[0]

    def act(self, path: str, action: str) -> dict[str, Any]:
        """Pause, resume, mount or unmount the volume at a path. Raises UsageError for a path inside
        a volume."""
        volume = self.volume(path)
        refuse_part(path, (volume["path"], volume["mountpoint"]), action)
        if volume["uuid"] is None:
            raise ServiceUnreachable(f"{path}: {volume['mount']['problem'] or 'not mounted yet'}")
        changed: dict[str, Any] = self.post(f"/v1/volumes/{volume['uuid']}/{action}")
        return changed

    def job(self, job_id: str, wait_s: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = self.get(f"/v1/jobs/{quote(job_id, safe='')}", wait=wait_s)
        return found

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        status, answer = exchange(self.path, method, path, body)
        if status >= 400:
            raise _error(answer["kind"], answer["error"])
        return answer


_ERRORS = "surrogateescape"


def _error(kind: str, message: str) -> DedupdError:
    return Denied(message) if kind == "Denied" else error_named(kind, message)


def _places() -> list[str]:
    """List the sockets where a service may listen, the most likely first."""
    try:
        configured = load_config(config_path()).socket
    except ConfigurationError:
        configured = ""  # missing, or not readable for this user
    return list(dict.fromkeys(filter(None, (configured, default_socket(), SYSTEM_SOCKET))))


@contextmanager
def only_service(socket_path: str) -> Iterator[None]:
    """Hold the lock of the service. Raises Busy if another service is running."""
    os.makedirs(os.path.dirname(socket_path), mode=0o755, exist_ok=True)
    fd = os.open(f"{socket_path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with locked(fd, f"{socket_path}: another service is already running"):
            yield
    finally:
        os.close(fd)
