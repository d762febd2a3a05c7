"""The connections to the service: limits for their number, their data and their time.

Users who may only read are untrusted. They have a few connections each, with one short request, and
must read the answer in time: this bounds the memory of the service.
"""

import asyncio
import json
import socket
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from dedupd.service.web.peers import AccessLevel

USER_CONNECTIONS_MAX = 16
"""The limit for one untrusted user. A connection has one request and an answer of at most 1 MB."""

STRANGERS_MAX = 128
"""The limit for all untrusted users together."""

ACTING_MAX = 512
"""The limit for root and the group."""

REQUEST_BYTES_MAX = 8 << 10
"""The longest data from an untrusted user: a request without a body. More requests on the same
connection would wait in memory."""

REQUEST_WAIT_S = 10.0
"""The longest time to receive the head of a request."""

ANSWER_WAIT_S = 120.0
"""The longest time to answer an untrusted user; a wait for news takes half of that."""

STALL_WAIT_S = 20.0
"""The longest time in which a client may read nothing of its answer."""

LOCAL = -1
"""The user of all connections to the loopback address, where the real user is unknown."""


class Connections:
    """The connections of all users to one socket. Only the event-loop thread uses this object."""

    def __init__(
        self,
        make: Callable[[], asyncio.Protocol],
        user: Callable[[socket.socket], tuple[int, AccessLevel]],
    ) -> None:
        """``make`` creates the server's side of a connection; ``user`` returns user and right."""
        self._make = make
        self._user = user
        self._of_transport: dict[Any, _Connection] = {}
        self._count: Counter[int] = Counter()
        self._strangers = 0
        self._acting = 0

    def connection(self) -> asyncio.Protocol:
        """Create a connection, for the event loop."""
        return _Connection(self, self._make())

    def of(self, transport: object) -> "_Connection | None":
        return self._of_transport.get(transport)

    def admit(self, transport: asyncio.Transport, connection: "_Connection") -> bool:
        """Count a new connection; return False if there are too many."""
        connection.uid, connection.right = self._user(transport.get_extra_info("socket"))
        if connection.right is AccessLevel.ACT:
            if self._acting >= ACTING_MAX:
                return False
            self._acting += 1
        else:
            is_full = self._strangers >= STRANGERS_MAX
            if is_full or self._count[connection.uid] >= USER_CONNECTIONS_MAX:
                return False
            self._strangers += 1
            self._count[connection.uid] += 1
        self._of_transport[transport] = connection
        return True

    def drop(self, transport: object, connection: "_Connection") -> None:
        """Remove a closed connection from the counts."""
        del self._of_transport[transport]
        if connection.right is AccessLevel.ACT:
            self._acting -= 1
            return
        self._strangers -= 1
        self._count[connection.uid] -= 1
        if not self._count[connection.uid]:
            del self._count[connection.uid]


class _Connection(asyncio.Protocol):
    """A counting layer between a transport and the protocol of the server.

    A connection counts until it is closed and no code works on its answer.
    """

    uid = LOCAL
    right = AccessLevel.NOTHING

    def __init__(self, all_: Connections, server: asyncio.Protocol) -> None:
        self._all: Final = all_
        self._server: Final = server
        self._transport: asyncio.Transport | None = None
        self._is_admitted = False
        self._is_lost = False
        self._is_answering = False
        self._received_bytes = 0
        self._deadline: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._is_admitted = self._all.admit(transport, self)
        if not self._is_admitted:
            transport.write(_REFUSAL)
            transport.close()
            return
        self._end_after(REQUEST_WAIT_S)
        self._server.connection_made(transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._is_lost = True
        for timer in (self._deadline, self._stall):
            if timer is not None:
                timer.cancel()
        if self._is_admitted:
            self._server.connection_lost(error)
            self._drop()

    def data_received(self, data: bytes) -> None:
        if not self._is_admitted:
            return
        self._received_bytes += len(data)
        if self.right is not AccessLevel.ACT and self._received_bytes > REQUEST_BYTES_MAX:
            self._abort()
            return
        self._server.data_received(data)

    def eof_received(self) -> bool | None:
        return self._server.eof_received() if self._is_admitted else None

    def pause_writing(self) -> None:
        self._stall = asyncio.get_running_loop().call_later(STALL_WAIT_S, self._abort)
        self._server.pause_writing()

    def resume_writing(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
        self._server.resume_writing()

    def begin_answer(self) -> None:
        """Start the time limit of the answer, after the head of a request was received."""
        self._is_answering = True
        if self._deadline is not None:
            self._deadline.cancel()
        if self.right is not AccessLevel.ACT:
            self._end_after(ANSWER_WAIT_S)

    def end_answer(self) -> None:
        """Start the time limit for sending the answer; the connection is closed after it."""
        self._is_answering = False
        if self._is_lost:
            self._drop()
        else:
            self._end_after(STALL_WAIT_S)

    def _drop(self) -> None:
        if not self._is_answering:
            self._all.drop(self._transport, self)

    def _end_after(self, wait_s: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = asyncio.get_running_loop().call_later(wait_s, self._abort)

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def _refusal() -> bytes:
    text = json.dumps(
        {
            "error": "too many connections to the service; close some, then try again",
            "kind": "Busy",
            "exit_status": 3,
        }
    )
    head = (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(text)}\r\nConnection: close\r\n\r\n"
    )
    return (head + text).encode()


_REFUSAL = _refusal()
