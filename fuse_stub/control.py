"""The control socket of a mount process (docs/design/control.md)."""

import array
import json
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import trio

from dedupd_core import native
from dedupd_core.errors import DedupdError
from dedupd_core.format.container import Kind
from dedupd_core.replica.replica import is_replica
from dedupd_core.stub.commit_steps import Result
from dedupd_core.system.control_socket import socket_path
from dedupd_core.volume.commit import result_to_json
from fuse_stub.bulk_commits import BulkCommit, BulkCommits
from fuse_stub.busy.part_lane import OFFER_BYTES_MAX
from fuse_stub.errors import load
from fuse_stub.fill_lane import FileFill
from fuse_stub.gc_names import MarkLog
from fuse_stub.mounted_volume import MountedVolume
from fuse_stub.mounts.mount_options import parse_options
from fuse_stub.mounts.tasks import failures

log = logging.getLogger("dedupd.mount")

T = TypeVar("T")

Request = dict[str, Any]
Reply = dict[str, Any]
"""A reply: one line of JSON (docs/design/control.md)."""

LINE_BYTES_MAX = 16 << 20
"""A request to commit 512 files with the longest paths is shorter than 4 MiB."""

PAYLOAD_BYTES_MAX = 64 << 20
"""The limit for data after a line: 4,096 files with the longest paths need 17 MB."""

ACCEPT_AGAIN_S = 1.0
"""Delay before accept() is retried after a failure."""


class ControlServer:
    """The server of the control socket, for programs that may open it."""

    def __init__(self, mount: MountedVolume) -> None:
        self._mount = mount
        self._path = socket_path(mount.volume.parameters.uuid)
        self._started = time.time()

    async def serve(self, task_status: "trio.TaskStatus[None]" = trio.TASK_STATUS_IGNORED) -> None:
        """Listen until cancelled. The mount lock of the process protects the name of the socket."""
        directory = os.path.dirname(self._path)
        os.makedirs(directory, mode=0o700, exist_ok=True)
        if os.stat(directory).st_uid != os.geteuid():
            raise PermissionError(f"{directory} belongs to another user")
        os.chmod(directory, 0o700)
        with suppress(FileNotFoundError):
            os.unlink(self._path)
        listener = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            await listener.bind(self._path)
            listener.listen(64)
            async with trio.open_nursery() as nursery:
                task_status.started()
                while True:
                    try:
                        connection, _ = await listener.accept()
                    except OSError as error:
                        # For example, no descriptor is left. The mount must continue.
                        log.error("the control socket accepts no clients: %s", error)
                        await trio.sleep(ACCEPT_AGAIN_S)
                        continue
                    nursery.start_soon(self._talk, connection)
        finally:
            listener.close()
            with suppress(FileNotFoundError):
                os.unlink(self._path)

    async def _talk(self, connection: trio.socket.SocketType) -> None:
        """Answer one client, whatever it sends; then roll back its unfinished commits."""
        talk = _Conversation(connection)
        try:
            with failures.noted("a conversation on the control socket"):
                await self._converse(talk)
        finally:
            await self._hang_up(talk)

    async def _hang_up(self, talk: "_Conversation") -> None:
        talk.connection.close()
        if talk.marks is not None:
            self._mount.marking_sessions.end(talk.marks)
        with failures.noted("the end of a run"):
            self._end_run(talk, None)
        with trio.CancelScope(shield=True):
            with failures.noted("rolling back commits"):
                await talk.end_bulk(self._mount.bulk_commits)
            with failures.noted("rolling back an expansion"):
                await talk.end_fill()
            for inode in talk.offered:
                with failures.noted("the end of an offer"):
                    self._mount.parts.end(inode)

    async def _converse(self, talk: "_Conversation") -> None:
        """Answer one client until it closes the connection."""
        connection = talk.connection
        try:
            buffer = bytearray()
            while True:
                at = buffer.find(b"\n")
                if at < 0:
                    data = await connection.recv(1 << 20)
                    buffer += data
                    if not data or len(buffer) > LINE_BYTES_MAX:
                        return
                    continue
                line = bytes(buffer[:at])
                end = at + 1 + _payload_bytes(line)
                while len(buffer) < end:
                    data = await connection.recv(1 << 20)
                    if not data:
                        return
                    buffer += data
                talk.payload = bytes(buffer[at + 1 : end])
                del buffer[:end]
                talk.lent.clear()
                reply = await self._answer(line, talk)
                fds = [*talk.lent, *talk.sending]
                try:
                    await _send(connection, json.dumps(reply).encode() + b"\n", fds)
                finally:
                    for fd in talk.sending:
                        os.close(fd)
                    talk.sending.clear()
        except OSError:
            # The client has closed the connection.
            pass

    async def _answer(self, line: bytes, talk: "_Conversation") -> dict[str, Any]:
        try:
            request = json.loads(line)
            name = request["op"]
            operation = OPERATIONS.get(name)
            if operation is None:
                return {"error": f"unknown operation {name!r}", "kind": "UsageError"}
            reply = operation(self, request, talk)
            return reply if isinstance(reply, dict) else await reply
        except (DedupdError, OSError) as error:
            log.exception("a request on the control socket failed")
            return {"error": str(error), "kind": type(error).__name__}
        except Exception as error:
            failures.note("a request on the control socket", error)
            return {"error": str(error), "kind": type(error).__name__}

    def _volume(self, _: Request, talk: "_Conversation") -> Reply:
        talk.lent.append(self._mount.base_for_jobs_fd)
        return {}

    def _own_mounts(self, _: Request, talk: "_Conversation") -> Reply:
        talk.lent += self._mount.own_mount_fds
        return {}

    def _run_begin(self, _: Request, talk: "_Conversation") -> Reply:
        if talk.run_began_s is None:
            talk.run_began_s = self._mount.brake.run_begins()
        return {}

    def _run_end(self, request: Request, talk: "_Conversation") -> Reply:
        self._end_run(talk, int(request["freed_bytes"]))
        return {}

    def _end_run(self, talk: "_Conversation", freed_bytes: int | None) -> None:
        began_s, talk.run_began_s = talk.run_began_s, None
        if began_s is not None:
            self._mount.brake.run_ends(began_s, freed_bytes)

    async def _mark_begin(self, _: Request, talk: "_Conversation") -> Reply:
        if talk.marks is not None:
            self._mount.marking_sessions.end(talk.marks)
        talk.marks = await self._mount.marking_sessions.begin()
        return {}

    def _mark_drain(self, _: Request, talk: "_Conversation") -> Reply:
        """Return the notes since the last drain; directories are passed as descriptors."""
        log = talk.marks
        if log is None:
            return {"error": "no session of marking is open", "kind": "UsageError"}
        notes = log.take()
        talk.sending += notes.directories
        return {
            "chunks": notes.chunks,
            "recipes": notes.recipes,
            "damaged": notes.damaged,
            "directories": len(talk.sending),
            "overflowed": log.overflowed,
            "more": log.has_more,
        }

    def _mark_hold(self, *_: object) -> Reply:
        self._mount.marking_sessions.hold()
        return {}

    def _let_go(self, *_: object) -> Reply:
        self._mount.files.let_go()
        return {}

    def _reopen(self, request: Request, _: "_Conversation") -> Reply:
        """Close containers that a compaction has replaced."""
        self._mount.volume.records(Kind(request["kind"])).drop(request["containers"])
        return {}

    def _remount(self, request: Request, _: "_Conversation") -> Reply:
        """Change the access time options."""
        if self._mount.private is not None:
            self._mount.private.change(parse_options(request["options"]))
        return {}

    def _parts_written(self, *_: object) -> Reply:
        found = self._mount.parts.written()
        return {"files": [{"path": os.fsdecode(path), "size": size} for path, size in found]}

    async def _parts_offer(self, request: Request, talk: "_Conversation") -> Reply:
        path = os.fsencode(request["path"])
        try:
            offer = await self._mount.parts.offer(
                path,
                request["age_s"],
                request.get("bytes_max", OFFER_BYTES_MAX),
                passed_over=request.get("passed_over", False),
            )
        except (DedupdError, OSError) as error:
            return _refusal(error, request["path"])
        if offer is None:
            return {"ranges": []}
        file, parts = offer
        talk.offered.add(file.ino)
        return {"inode": file.ino, "size": parts.size, "ranges": parts.ranges}

    def _parts_end(self, request: Request, talk: "_Conversation") -> Reply:
        inode = request["inode"]
        if inode in talk.offered:
            talk.offered.discard(inode)
            self._mount.parts.end(inode, saves_little=request["saves_little"])
        return {}

    async def _commit_many(self, _: Request, talk: "_Conversation") -> Reply:
        lane = self._mount.bulk_commits
        await talk.end_bulk(lane)
        requests = native.commit.CommitRequests.from_bytes(talk.payload)
        talk.bulk, results = await lane.begin(requests)
        return {"taken": talk.bulk.count, "results": _rows(results)}

    async def _commit_done(self, _: Request, talk: "_Conversation") -> Reply:
        bulk, talk.bulk = talk.bulk, None
        if bulk is None:
            return {"error": "no files are being committed", "kind": "UsageError"}
        return {"results": _rows(await self._mount.bulk_commits.finish(bulk))}

    async def _fill_begin(self, request: Request, talk: "_Conversation") -> Reply:
        await talk.end_fill()
        try:
            path, lane = os.fsencode(request["path"]), self._mount.fill_lane
            talk.fill = await _unless_hung_up(talk.connection, partial(lane.begin, path))
        except (DedupdError, OSError) as error:
            return _refusal(error, request["path"])
        return {"is_plain": talk.fill is None}

    async def _fill(self, _: Request, talk: "_Conversation") -> Reply:
        fill = talk.fill
        if fill is None:
            return {"error": "no file is being expanded", "kind": "UsageError"}
        try:
            is_plain = await _unless_hung_up(talk.connection, fill.go_on)
        except (DedupdError, OSError) as error:
            refusal = _refusal(error, fill.where)
            await talk.end_fill()
            return refusal
        if is_plain:
            talk.fill = None
        return {"is_plain": is_plain, "filled_bytes": fill.filled_bytes}

    def _status(self, *_: object) -> Reply:
        mount, line = self._mount, self._mount.line
        chunk_hits, chunk_misses = mount.cache.uses
        return {
            "pid": os.getpid(),
            "volume": mount.volume.parameters.uuid,
            "root": mount.volume.root,
            "mountpoint": mount.mountpoint,
            "mount_device": mount.device,
            "read_only": mount.is_read_only or _is_replica(mount.volume.base_fd),
            "options": mount.private.options.text if mount.private is not None else "",
            "by_ring": line is not None and line.is_by_ring,
            "ring_failure": None if line is None else line.ring_failure,
            "uptime_s": round(time.time() - self._started, 1),
            "inodes_known": len(mount.inodes),
            "files_open": len(mount.files),
            "chunk_hits": chunk_hits,
            "chunk_misses": chunk_misses,
            "chunk_cache_bytes": mount.cache.bytes,
            "requests": 0 if line is None else sum(line.requests().values()),
            "handed_over": 0 if line is None else sum(line.handed_over().values()),
            "failures": failures.counts,
            "busy_s": load.busy_s + (0.0 if line is None else line.busy_s()),
        }


OPERATIONS: dict[
    str, Callable[[ControlServer, Request, "_Conversation"], Reply | Awaitable[Reply]]
] = {
    "volume": ControlServer._volume,
    "own_mounts": ControlServer._own_mounts,
    "parts_written": ControlServer._parts_written,
    "parts_offer": ControlServer._parts_offer,
    "parts_end": ControlServer._parts_end,
    "commit_many": ControlServer._commit_many,
    "commit_done": ControlServer._commit_done,
    "fill_begin": ControlServer._fill_begin,
    "fill": ControlServer._fill,
    "mark_begin": ControlServer._mark_begin,
    "mark_drain": ControlServer._mark_drain,
    "mark_hold": ControlServer._mark_hold,
    "run_begin": ControlServer._run_begin,
    "run_end": ControlServer._run_end,
    "reopen": ControlServer._reopen,
    "let_go": ControlServer._let_go,
    "remount": ControlServer._remount,
    "status": ControlServer._status,
}
"""Operations by the name in a request, in the order of docs/design/control.md."""


def _is_replica(base_fd: int) -> bool:
    """Return whether the volume is a replica; False if the disk below fails.

    Unmounting needs the status of a mount, even if its disk is missing.
    """
    try:
        return is_replica(base_fd)
    except OSError:
        return False


@dataclass(slots=True)
class _Conversation:
    """The commits, marking session and expansion of one client, which end with its connection.

    ``lent``, ``sending``: descriptors that go with the reply; those of ``sending`` are closed after
    that. Used by the client's task alone.
    """

    connection: trio.socket.SocketType
    offered: set[int] = field(default_factory=set)
    marks: MarkLog | None = None
    fill: FileFill | None = None
    bulk: BulkCommit | None = None
    payload: bytes = b""
    run_began_s: float | None = None
    lent: list[int] = field(default_factory=list)
    sending: list[int] = field(default_factory=list)

    async def end_bulk(self, lane: BulkCommits) -> None:
        """Roll back the started bulk commits that are not finished."""
        bulk, self.bulk = self.bulk, None
        if bulk is not None:
            await lane.abandon(bulk)

    async def end_fill(self) -> None:
        """Roll back an unfinished expansion of a file."""
        fill, self.fill = self.fill, None
        if fill is not None:
            await fill.take_back()


def _payload_bytes(line: bytes) -> int:
    """Return the number of bytes after the line of a request."""
    try:
        count = json.loads(line).get("payload_bytes", 0)
    except (ValueError, AttributeError, RecursionError):
        return 0
    return count if isinstance(count, int) and 0 <= count <= PAYLOAD_BYTES_MAX else 0


def _rows(results: dict[int, Result]) -> list[tuple[int, dict[str, Any]]]:
    return [(at, result_to_json(result)) for at, result in results.items()]


def _refusal(error: DedupdError | OSError, path: str) -> dict[str, Any]:
    if isinstance(error, OSError):
        return {"error": f"{path}: {error.strerror}", "kind": "OSError"}
    return {"error": str(error), "kind": type(error).__name__}


async def _unless_hung_up(
    connection: trio.socket.SocketType, work: Callable[[], Awaitable[T]]
) -> T:
    """Return the result of ``work`` for a client; cancel it if the client closes the connection.

    Raises ConnectionResetError in that case, and the DedupdError or OSError of ``work``.
    """
    result: T
    failure: Exception | None = ConnectionResetError("the client has disconnected")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_cancel_at_hang_up, connection, nursery.cancel_scope)
        try:
            result = await work()
            failure = None
        except (DedupdError, OSError) as error:
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return result


async def _cancel_at_hang_up(connection: trio.socket.SocketType, scope: trio.CancelScope) -> None:
    try:
        if await connection.recv(1, socket.MSG_PEEK) == b"":
            scope.cancel()
    except OSError:
        scope.cancel()


async def _send(connection: trio.socket.SocketType, data: bytes, fds: Sequence[int]) -> None:
    view = memoryview(data)
    if fds:
        rights = array.array("i", fds)
        sent = await connection.sendmsg([view], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        view = view[sent:]
    while view:
        view = view[await connection.send(view) :]
