"""The control socket: HTTP with JSON on a Unix socket, versioned (docs/guide/service.md).

The kernel identifies the user of a request. On the loopback address it does not, so that address is
read-only.
"""

import asyncio
import json
import logging
import os
import re
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client import CONTENT_TYPE_LATEST

from dedupd.service.job_process import JobProcess
from dedupd.service.served_volume import ServedVolume
from dedupd.service.systemd.journal import Event, report
from dedupd.service.web.connections import LOCAL, REQUEST_WAIT_S, Connections
from dedupd.service.web.history_page import RUNS_MAX, HistoryPage
from dedupd.service.web.metrics import metrics_text
from dedupd.service.web.page import PAGE, PAGE_POLICY
from dedupd.service.web.peers import AccessLevel, Peer, peer_of, right_of
from dedupd.service.web.views import (
    finished_view,
    job_view,
    service_view,
    volume_view,
)
from dedupd_core.errors import (
    Busy,
    CatalogUnusable,
    DedupdError,
    NotAVolume,
    ServiceUnreachable,
    UsageError,
)
from dedupd_core.system.paths import show_text

if TYPE_CHECKING:
    from dedupd.service.service import Service

log = logging.getLogger("dedupd.service")

BODY_BYTES_MAX = 64 << 10
"""A path has at most 4 KiB; other values have fewer bytes."""

WAIT_S_MAX = 60.0
"""The longest time that a request may wait for news."""

SAVINGS_MAX = 1000
"""Samples in one answer, each about 300 bytes."""

DENIALS_KEPT_MAX = 1000
DENIAL_PERIOD_S = 60.0
"""The interval in which the denials of one user are logged only once."""

_PORT = re.compile(r":[0-9]+$")

LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})
"""Another host name that leads to the loopback address is an attack through a browser."""

RIGHT = "right"
"""The key of a request for the right of its sender."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_STATUSES: tuple[tuple[type[DedupdError], int], ...] = (
    (NotAVolume, 404),
    (UsageError, 400),
    (Busy, 409),
    (ServiceUnreachable, 503),
    (CatalogUnusable, 503),
    (DedupdError, 500),
)


class ControlSocket:
    """The control server; it answers requests while the block runs."""

    def __init__(self, service: "Service") -> None:
        self._service = service
        self._runners: list[web.AppRunner] = []
        self._servers: list[asyncio.Server] = []
        self._denied: dict[int, float] = {}

    async def __aenter__(self) -> "ControlSocket":
        config = self._service.config
        path = config.socket_path
        loop = asyncio.get_running_loop()
        connections = await self._connections(Api(self._service, self._right_of_peer), self._peer)
        listener = _listener(path, config.group_id, open_to_all=config.readers == "everyone")
        listener.setblocking(False)
        server = await loop.create_unix_server(connections.connection, sock=listener, backlog=128)
        self._servers.append(server)
        if config.listen is not None:
            api = Api(self._service, _right_of_browser)
            connections = await self._connections(api, lambda _: (LOCAL, AccessLevel.READ))
            try:
                self._servers.append(
                    await loop.create_server(
                        connections.connection, config.listen.host, config.listen.port
                    )
                )
            except OSError as error:
                # Another program may use the address; this must not affect users' files.
                self._service.listen_problem = (
                    f"listen: {config.listen.host} port {config.listen.port}: the page and the"
                    f" metrics are not available ({os.strerror(error.errno or 0).lower()}); free"
                    " the port or choose another one, then restart the service"
                )
                log.error("%s", self._service.listen_problem)
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers:
            server.close()
        for runner in self._runners:
            await runner.cleanup()
        try:
            os.unlink(self._service.config.socket_path)
        except FileNotFoundError:
            pass

    async def _connections(
        self, api: "Api", user: Callable[[socket.socket], tuple[int, AccessLevel]]
    ) -> Connections:
        runner = web.AppRunner(
            api.application(), access_log=None, logger=_server_log(), shutdown_timeout=1.0
        )
        await runner.setup()
        self._runners.append(runner)
        assert runner.server is not None
        api.connections = Connections(runner.server, user)
        return api.connections

    def _peer(self, connection: socket.socket) -> tuple[int, AccessLevel]:
        peer, config = peer_of(connection), self._service.config
        return peer.uid, right_of(peer, os.geteuid(), config.group_id, config.readers)

    def _right_of_peer(self, request: web.Request) -> AccessLevel:
        if request.transport is None:
            return AccessLevel.NOTHING
        connection = request.transport.get_extra_info("socket")
        _, right = self._peer(connection)
        if right < AccessLevel.ACT and request.method not in ("GET", "HEAD"):
            self._tell_denial(peer_of(connection), request)
        return right

    def _tell_denial(self, peer: Peer, request: web.Request) -> None:
        now_s = time.monotonic()
        if now_s - self._denied.get(peer.uid, -DENIAL_PERIOD_S) < DENIAL_PERIOD_S:
            return
        if len(self._denied) >= DENIALS_KEPT_MAX:
            self._denied.clear()
        self._denied[peer.uid] = now_s
        text = f"user {peer.uid} (process {peer.pid}) may not {request.method} {request.path}"
        report(Event.DENIED, show_text(text), logging.WARNING, uid=peer.uid, pid=peer.pid)


def _server_log() -> logging.Logger:
    """Return the log of aiohttp, without invalid requests and disconnects."""

    def matters(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(error, (HttpProcessingError, ConnectionError))

    logger = logging.getLogger("dedupd.service.http")
    logger.filters = [matters]
    return logger


def _right_of_browser(request: web.Request) -> AccessLevel:
    # Not ``request.host``: without a Host line, that looks up the name of this host.
    host = _PORT.sub("", request.headers.get("Host", ""))
    return AccessLevel.READ if host in LOCAL_HOSTS else AccessLevel.NOTHING


def _listener(path: str, group: int | None, *, open_to_all: bool) -> socket.socket:
    """Create the socket with its owner and mode from the first moment on."""
    try:
        os.unlink(path)  # we hold the lock next to it, so its owner has exited
    except FileNotFoundError:
        pass
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(path)
    finally:
        os.umask(before)
    if group is not None and os.geteuid() == 0:
        os.chown(path, 0, group)
    os.chmod(path, 0o666 if open_to_all else 0o660 if group is not None else 0o600)
    return listener


class Api:
    """The handlers of requests; ``right`` returns the right of the sender."""

    def __init__(self, service: "Service", right: Callable[[web.Request], AccessLevel]) -> None:
        self._service = service
        self._right = right
        self.connections: Connections | None = None

    def application(self) -> web.Application:
        application = web.Application(
            middlewares=[self._guard], client_max_size=BODY_BYTES_MAX, logger=log
        )
        application.add_routes(
            [
                web.get("/", self._get_page),
                web.get("/metrics", self._get_metrics),
                web.get("/v1/service", self._get_service),
                web.post("/v1/reload", self._reload),
                web.get("/v1/volumes", self._get_volumes),
                web.get("/v1/volumes/{uuid}", self._get_volume),
                web.get("/v1/volumes/{uuid}/savings", self._get_savings),
                web.post("/v1/volumes/{uuid}/{action}", self._act_on_volume),
                web.post("/v1/notify", self._notify),
                web.get("/v1/jobs", self._get_jobs),
                web.post("/v1/jobs", self._submit),
                web.get("/v1/jobs/{id}", self._get_job),
                web.delete("/v1/jobs/{id}", self._cancel),
            ]
        )
        return application

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check the right of the sender, return every error as JSON, and close the connection."""
        connection = self.connections.of(request.transport) if self.connections else None
        if connection is not None:
            connection.begin_answer()
        try:
            response = await self._answer(request, handler)
            response.force_close()
            return response
        finally:
            if connection is not None:
                connection.end_answer()

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            needed = AccessLevel.READ if request.method in ("GET", "HEAD") else AccessLevel.ACT
            right = request[RIGHT] = self._right(request)
            if right < needed:
                return _error(
                    403, "only root and members of the configured group may do this", "Denied"
                )
            return await handler(request)
        except web.HTTPException as error:
            if error.status < 400:
                raise
            return _error(error.status, error.text or error.reason, "UsageError")
        except DedupdError as error:
            status = next(status for kind, status in _STATUSES if isinstance(error, kind))
            return _error(status, str(error), type(error).__name__, error.exit_status)
        except ConnectionError:
            return _error(500, "the client has disconnected", "InternalError")  # no client reads it
        except Exception:
            log.exception("%s %s failed", request.method, show_text(request.path))
            return _error(500, "the service has failed; see its log", "InternalError")

    async def _get_page(self, _: web.Request) -> web.Response:
        return web.Response(
            text=PAGE, content_type="text/html", headers={"Content-Security-Policy": PAGE_POLICY}
        )

    async def _get_metrics(self, _: web.Request) -> web.Response:
        text = await metrics_text(self._service)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _get_service(self, request: web.Request) -> web.Response:
        return _json(service_view(self._service, request[RIGHT]))

    async def _reload(self, request: web.Request) -> web.Response:
        await self._service.reload()
        for volume in list(self._service.volumes.values()):
            await volume.keeper.settled.wait()
        return _json(service_view(self._service, request[RIGHT]))

    async def _get_volumes(self, request: web.Request) -> web.Response:
        volumes = self._volumes(request)
        return _json([volume_view(self._service, volume, request[RIGHT]) for volume in volumes])

    async def _get_volume(self, request: web.Request) -> web.Response:
        return _json(volume_view(self._service, self._volume(request), request[RIGHT]))

    async def _get_savings(self, request: web.Request) -> web.Response:
        count = _number(request.query, "last", SAVINGS_MAX, SAVINGS_MAX)
        found = await self._volume(request).remember(lambda history: history.savings(count))
        return _json([{**asdict(one), "saved_bytes": one.saved_bytes} for one in found or []])

    async def _act_on_volume(self, request: web.Request) -> web.Response:
        volume, action = self._volume(request), request.match_info["action"]
        await _body(request, {})
        if action in ("pause", "resume"):
            await self._service.pause(volume, action == "pause")
        elif action == "mount":
            volume.keeper.mount()
            await volume.keeper.settled.wait()
        elif action == "unmount":
            await self._service.unmount(volume)
        else:
            raise UsageError(f"{action!r}: no such action; use pause, resume, mount or unmount")
        return _json(volume_view(self._service, volume, request[RIGHT]))

    async def _get_jobs(self, request: web.Request) -> web.StreamResponse:
        """List running and queued jobs and past runs, of all volumes or one. ``next`` is the value
        of ``before`` for older runs."""
        service, query, right = self._service, request.query, request[RIGHT]
        volumes = self._volumes(request)
        uuids = {volume.uuid for volume in volumes}
        last = _number(query, "last", 20, RUNS_MAX)
        before_ns = _number(query, "before", 0, (1 << 63) - 1) or None
        running = [job_view(j, service, right) for j in service.running.values() if j.uuid in uuids]
        waiting = [job_view(job, service, right) for job in service.waiting if job.uuid in uuids]
        page = HistoryPage(volumes, last, before_ns, right)
        return await page.stream(request, {"running": running, "waiting": waiting})

    async def _submit(self, request: web.Request) -> web.Response:
        body = await _body(request, {"job": str, "path": str, "options": dict})
        for key in ("job", "path"):
            if key not in body:
                raise UsageError(f"{key}: missing")
        if not body["path"].startswith("/") or not _is_a_name(body["path"]):
            raise UsageError(f"path = {body['path']!r}: write an absolute path")
        job = self._service.submit(body["job"], body["path"], body.get("options", {}))
        return _json(job_view(job, self._service, request[RIGHT]), status=202)

    async def _get_job(self, request: web.Request) -> web.Response:
        """Return a job; with ``wait``, after its state has changed or it has finished."""
        job = self._job(request)
        wait_s = min(WAIT_S_MAX, _number(request.query, "wait", 0, 1000))
        if wait_s and job.finished_s is None:
            try:
                async with asyncio.timeout(wait_s):
                    await job.changed.wait()
            except TimeoutError:
                pass
        return _json(finished_view(job, self._service, request[RIGHT]))

    async def _notify(self, request: web.Request) -> web.Response:
        """Send a test notification through each channel."""
        return web.json_response(await self._service.telling.test())

    async def _cancel(self, request: web.Request) -> web.Response:
        job = self._job(request)
        self._service.cancel(job)
        return _json(job_view(job, self._service, request[RIGHT]))

    def _volumes(self, request: web.Request) -> list[ServedVolume]:
        """Return all volumes, or the one volume that contains ``path``."""
        path = request.query.get("path")
        return [*self._service.volumes.values()] if path is None else [self._service.by_path(path)]

    def _volume(self, request: web.Request) -> ServedVolume:
        return self._service.by_uuid(request.match_info["uuid"])

    def _job(self, request: web.Request) -> JobProcess:
        try:
            return self._service.job(request.match_info["id"])
        except UsageError as error:
            raise web.HTTPNotFound(text=str(error)) from None


async def _body(request: web.Request, keys: Mapping[str, type]) -> dict[str, Any]:
    """Return the JSON object of a request, which may have only these keys. Raises UsageError."""
    try:
        async with asyncio.timeout(REQUEST_WAIT_S):
            raw = await request.read()
    except TimeoutError:
        raise UsageError("the body of the request arrived too slowly") from None
    except ConnectionError:
        raise UsageError("the client disconnected before the end of the body") from None
    if not raw:
        return {}
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise UsageError("the body is not a JSON object")
    for name, value in body.items():
        if name not in keys:
            raise UsageError(f"{name!r}: unknown; use {', '.join(keys) or 'none'}")
        if not isinstance(value, keys[name]):
            raise UsageError(f"{name}: not of the type {keys[name].__name__}")
    return body


def _is_a_name(text: str) -> bool:
    """Return whether a file can have this name; other names cannot be arguments of a process."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False  # a surrogate that stands for no byte


def _number(query: Mapping[str, str], name: str, default: int, most: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or not 0 <= int(text[:20]) <= most:
        raise UsageError(f"{name} = {text[:50]!r}: write a whole number from 0 to {most}")
    return int(text[:20])


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(
        text=json.dumps(value, indent=2) + "\n", status=status, content_type="application/json"
    )


def _error(status: int, message: str, kind: str, exit_status: int = 2) -> web.Response:
    return _json({"error": message, "kind": kind, "exit_status": exit_status}, status)
