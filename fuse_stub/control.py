"""The control socket of a mount's process (docs/control.md)."""

import array
import json
import logging
import os
import socket
import time
from typing import Any

import trio

from dedupd.commit import request_from_json, result_to_json
from dedupd.control import socket_path
from dedupd.errors import Damaged, DedupdError, NoSpace
from fuse_stub.served import Served

log = logging.getLogger("dedupd.mount")

LINE_BYTES_MAX = 16 << 20
"""A request to commit 512 files with the longest paths stays below 4 MiB."""


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
                    connection, _ = await listener.accept()
                    nursery.start_soon(self._converse, connection)
        finally:
            listener.close()
            try:
                os.unlink(self._path)
            except FileNotFoundError:
                pass

    async def _converse(self, connection: trio.socket.SocketType) -> None:
        """Answer one client until it hangs up; commits that it leaves open are taken back."""
        begun: set[int] = set()
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
                reply, fd = await self._answer(line, begun)
                await _send(connection, json.dumps(reply).encode() + b"\n", fd)
        except OSError:
            # The client has gone; what it began is taken back below.
            pass
        finally:
            connection.close()
            with trio.CancelScope(shield=True):
                await self._served.commits.abandon(list(begun))

    async def _answer(self, line: bytes, begun: set[int]) -> tuple[dict[str, Any], int | None]:
        try:
            request = json.loads(line)
            operation = request["op"]
            if operation == "volume":
                return {}, self._served.volume.base_fd
            if operation == "commit_begin":
                return await self._commit_begin(request, begun), None
            if operation == "commit_finish":
                return await self._commit_finish(request, begun), None
            if operation == "restore":
                return await self._restore(request), None
            if operation == "status":
                return self._status(), None
            return {"error": f"unknown operation {operation!r}", "kind": "UsageError"}, None
        except Exception as error:
            log.exception("a request on the control socket failed")
            return {"error": str(error), "kind": type(error).__name__}, None

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
        }


async def _send(connection: trio.socket.SocketType, data: bytes, fd: int | None) -> None:
    view = memoryview(data)
    if fd is not None:
        rights = array.array("i", [fd])
        sent = await connection.sendmsg([view], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        view = view[sent:]
    while view:
        view = view[await connection.send(view) :]
