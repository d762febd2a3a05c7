"""The control socket of a mount's process (docs/control.md)."""

import array
import json
import logging
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import trio

from dedupd.errors import Damaged, DedupdError, NoSpace
from dedupd.format.container import Kind
from dedupd.system.control_socket import socket_path
from dedupd.volume.commit import result_to_json
from dedupd.volume.commit_requests import request_from_json
from fuse_stub.errors import load
from fuse_stub.gc_names import MarkLog
from fuse_stub.mounted_volume import Served

log = logging.getLogger("dedupd.mount")

LINE_BYTES_MAX = 16 << 20
"""A request to commit 512 files with the longest paths stays below 4 MiB."""

ACCEPT_AGAIN_S = 1.0
"""Who connects waits so long for the next attempt to answer him, where one has failed."""


class ControlServer:
    """Answers the programs that are allowed to open the socket."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._path = socket_path(served.volume.parameters.uuid)
        self._started = time.time()

    async def serve(self, task_status: "trio.TaskStatus[None]" = trio.TASK_STATUS_IGNORED) -> None:
        """Listen until cancelled. The volume's mount lock is held, so the name is ours to take."""
        directory = os.path.dirname(self._path)
        os.makedirs(directory, mode=0o700, exist_ok=True)
        if os.stat(directory).st_uid != os.geteuid():
            raise PermissionError(f"{directory} belongs to somebody else")
        os.chmod(directory, 0o700)
        try:
            os.unlink(self._path)
        except FileNotFoundError:
            pass
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
                        # No descriptor is left, say. That must not end the mount.
                        log.error("nobody can be answered on the control socket: %s", error)
                        await trio.sleep(ACCEPT_AGAIN_S)
                        continue
                    nursery.start_soon(self._converse, connection)
        finally:
            listener.close()
            try:
                os.unlink(self._path)
            except FileNotFoundError:
                pass

    async def _converse(self, connection: trio.socket.SocketType) -> None:
        """Answer one client until it hangs up; commits that it leaves open are taken back."""
        talk = _Conversation()
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
                del buffer[: at + 1]
                reply, fds = await self._answer(line, talk)
                try:
                    await _send(connection, json.dumps(reply).encode() + b"\n", fds)
                finally:
                    for fd in talk.sending:
                        os.close(fd)
                    talk.sending.clear()
        except OSError:
            # The client has gone; what it began is taken back below.
            pass
        finally:
            connection.close()
            if talk.marks is not None:
                self._served.marking.end(talk.marks)
            with trio.CancelScope(shield=True):
                await self._served.commits.abandon(list(talk.begun))

    async def _answer(self, line: bytes, talk: "_Conversation") -> tuple[dict[str, Any], list[int]]:
        try:
            request = json.loads(line)
            operation = request["op"]
            if operation == "volume":
                return {}, [self._served.volume.base_fd]
            if operation == "commit_begin":
                return await self._commit_begin(request, talk.begun), []
            if operation == "commit_finish":
                return await self._commit_finish(request, talk.begun), []
            if operation == "restore":
                return await self._restore(request), []
            if operation == "mark_begin":
                return await self._mark_begin(talk), []
            if operation == "mark_drain":
                return self._mark_drain(talk), talk.sending
            if operation == "reopen":
                return self._reopen(request), []
            if operation == "status":
                return self._status(), []
            return {"error": f"unknown operation {operation!r}", "kind": "UsageError"}, []
        except Exception as error:
            log.exception("a request on the control socket failed")
            return {"error": str(error), "kind": type(error).__name__}, []

    async def _mark_begin(self, talk: "_Conversation") -> dict[str, Any]:
        if talk.marks is not None:
            self._served.marking.end(talk.marks)
        talk.marks = await self._served.marking.begin()
        return {}

    def _mark_drain(self, talk: "_Conversation") -> dict[str, Any]:
        """What was noted since the last time; directories as descriptors."""
        log = talk.marks
        if log is None:
            return {"error": "no session of marking is open", "kind": "UsageError"}
        chunks, recipes, damaged = list(log.chunks), list(log.recipes), list(log.damaged)
        log.chunks.clear()
        log.recipes.clear()
        log.damaged.clear()
        talk.sending += log.take_directories()
        return {
            "chunks": chunks,
            "recipes": recipes,
            "damaged": damaged,
            "directories": len(talk.sending),
            "overflowed": log.overflowed,
            "more": log.has_directories,
        }

    def _reopen(self, request: dict[str, Any]) -> dict[str, Any]:
        """Let go of containers that a compaction has replaced."""
        volume = self._served.volume
        readers = {Kind.CHUNKS: volume.chunk_records, Kind.STREAMS: volume.stream_records}
        readers[Kind(request["kind"])].drop(request["containers"])
        self._served.streams.forget_all()
        return {}

    async def _commit_begin(self, request: dict[str, Any], begun: set[int]) -> dict[str, Any]:
        requests = [request_from_json(row) for row in request["files"]]
        results = await self._served.commits.begin(requests)
        begun |= {
            one.identity.inode
            for one, result in zip(requests, results, strict=True)
            if result.outcome.value == "done"
        }
        return {"results": [result_to_json(result) for result in results]}

    async def _commit_finish(self, request: dict[str, Any], begun: set[int]) -> dict[str, Any]:
        inodes = request["inodes"]
        results = await self._served.commits.finish(inodes)
        begun -= set(inodes)
        return {"results": [result_to_json(result) for result in results]}

    async def _restore(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            return {"restored": await self._served.commits.restore(os.fsencode(request["path"]))}
        except NoSpace as error:
            return {"error": str(error), "kind": "NoSpace"}
        except (Damaged, DedupdError) as error:
            return {"error": str(error), "kind": type(error).__name__}
        except OSError as error:
            return {"error": f"{request['path']}: {error.strerror}", "kind": "OSError"}

    def _status(self) -> dict[str, Any]:
        served = self._served
        return {
            "pid": os.getpid(),
            "volume": served.volume.parameters.uuid,
            "root": served.volume.root,
            "mountpoint": served.mountpoint,
            "uptime_s": round(time.time() - self._started, 1),
            "inodes_known": len(served.inodes),
            "files_open": len(served.files),
            "chunk_hits": served.cache.hits,
            "chunk_misses": served.cache.misses,
            "chunk_cache_bytes": served.cache.used_bytes,
            "requests": load.requests,
            "busy_s": load.busy_s,
        }


@dataclass(slots=True)
class _Conversation:
    """What a client has left open here: it ends when the client hangs up.

    ``sending`` are descriptors to be closed once they are sent.
    """

    begun: set[int] = field(default_factory=set)
    marks: MarkLog | None = None
    sending: list[int] = field(default_factory=list)


async def _send(connection: trio.socket.SocketType, data: bytes, fds: Sequence[int]) -> None:
    view = memoryview(data)
    if fds:
        rights = array.array("i", fds)
        sent = await connection.sendmsg([view], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        view = view[sent:]
    while view:
        view = view[await connection.send(view) :]
