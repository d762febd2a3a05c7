"""One request to the service and its answer: JSON in HTTP over a Unix socket."""

import http.client
import json
from typing import Any

from dedupd.errors import ServiceUnreachable
from dedupd.system.control_socket import connected

TIMEOUT_S = 150.0
"""An unmount syncs what was written."""


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("dedupd", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = connected(self._path, TIMEOUT_S)


def exchange(socket_path: str, method: str, resource: str, body: Any = None) -> tuple[int, Any]:
    """The status and the answer of a request. Raises ServiceUnreachable."""
    connection = _Connection(socket_path)
    try:
        raw = None if body is None else json.dumps(body).encode()
        connection.request(method, resource, raw)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise ServiceUnreachable(f"{socket_path}: the service does not answer: {error}") from None
    finally:
        connection.close()
