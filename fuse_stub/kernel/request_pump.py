"""Taking requests from the kernel, and giving each to those that answer it.

The native line (``native/src/mount/session/line.rs``) answers by itself what needs no more than
the table of inodes. It hands over requests that carry a file's data, which the mount's operations
answer, and lets libfuse have all others, by a socket that takes the place of its ``/dev/fuse``.

A program that makes one call after the other has the next request ready a few microseconds after
the reply, so it pays to look for it, and to wait for an instant, before trio's scheduler is asked,
which takes most of the time of a small request. Other tasks get a turn after a few requests.
"""

import errno
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import cast

import pyfuse3
import trio

from dedupd_core import native
from dedupd_core.system.processes import cores
from fuse_stub.mounts.tasks import failures

REQUESTS_PER_TURN = 16
"""Requests that are answered in a row; then tasks that wait for threads or sockets get a turn."""

NATIVE_PER_TURN = 32
"""Requests that native code answers in a row, some 10 microseconds each."""

LINGER_NS = 30_000
"""How long to wait for the next request of a program that has just got its answer."""

TASKS = 192
"""Requests that can wait for threads or locks at a time, each held by a task: those that the kernel
sends in the background (``handshake.rs``), and as many more as a few busy users have. Each task has
a buffer of 1 MiB, of which a small request touches one page."""


STAND_INS_MAX = 8
"""Threads that answer beside that of the loop. What they answer takes some 10 microseconds of a
processor."""

NOTIFICATION_WAIT_S = 5.0
"""How long a mount that stops waits for a notification, which itself waits for requests."""
NOTIFICATION_POLL_S = 0.005

ALWAYS_BESIDE = False
"""Whether they take requests also while there is no need: for tests."""


BY_RING = True
"""Whether requests come by io_uring where the kernel offers it."""

ABSENT = 0
"""Flags of the kernel's offer (``FUSE_INIT``) that count as not offered: for tests."""


def stand_ins(cores: int) -> int:
    """How many threads take requests beside that of the loop, where it does not keep up. On one
    processor they would only take its time."""
    return min(cores, STAND_INS_MAX) if cores > 1 else 0


class Pump:
    """Replaces pyfuse3's own waiting. There is one FUSE session in a process.

    All fields belong to the thread of the event loop and change between two awaits. One of the
    tasks watches the kernel's end, the others are parked or serve requests.
    """

    def __init__(
        self,
        inodes: native.mount.Inodes,
        serve: Callable[[native.mount.Line, native.mount.Request], Awaitable[None]],
        use: Callable[[native.mount.Line | None], None],
        mountpoint: str,
    ) -> None:
        """The session has been begun, and has not been served yet.

        ``serve`` answers the requests that carry a file's data. ``use`` is called with the line
        once it is there, and with None before it goes.
        """
        self._inodes = inodes
        self._ring_at = mountpoint if BY_RING else None
        self._serve = serve
        self._use = use
        self._wake_fd = -1
        self._left = REQUESTS_PER_TURN  # requests until other tasks get a turn
        self._is_watched = False  # whether a task watches the kernel's end
        self._parked: list[trio.Event] = []  # tasks that wait to watch it; the last goes first
        self._stopping = False

    async def run(self) -> None:
        """Serve requests until the file system is unmounted, or :meth:`stop`. Raises OSError."""
        fd = _fuse_descriptor()
        turn = native.mount.Turn(self._inodes)
        self._line, libfuse_fd = native.mount.Line.between(
            fd, self._inodes, turn, stand_ins(cores()), ALWAYS_BESIDE, self._ring_at, ABSENT
        )
        # It has what the loop calls, and is native.
        instrument = cast(trio.abc.Instrument, turn)
        trio.lowlevel.add_instrument(instrument)
        device_fd = os.dup(fd)
        self._wake_fd = self._line.wake_fd
        os.dup2(libfuse_fd, fd, inheritable=False)
        os.close(libfuse_fd)
        self._use(self._line)
        # The session's loops look this function up in their module each time.
        pyfuse3._wait_fuse_readable = self._wait  # type: ignore[attr-defined]
        try:
            await pyfuse3.main(min_tasks=TASKS, max_tasks=TASKS)
            self._line.pass_answers_on()
        finally:
            self._use(None)
            self._wake_fd = -1
            self._line.close()
            trio.lowlevel.remove_instrument(instrument)
            # libfuse asks the device whether the mount has gone already.
            os.dup2(device_fd, fd, inheritable=False)
            os.close(device_fd)

    async def finish_notifications(self) -> None:
        """Send the kernel no further notifications of refused writes, and wait for the current one
        while requests are answered. A process that stops before that cannot end."""
        with trio.move_on_after(NOTIFICATION_WAIT_S), suppress(OSError):  # the mount has gone
            while self._wake_fd >= 0 and self._line.finish_notifications():
                await trio.sleep(NOTIFICATION_POLL_S)

    def stop(self) -> None:
        """End :meth:`run`, once the requests that are being served are answered."""
        self._stopping = True
        pyfuse3.terminate()
        if self._wake_fd >= 0:
            trio.lowlevel.notify_closing(self._wake_fd)

    async def _wait(self) -> bool:
        """Answer requests until one comes for libfuse. False once the pump stops."""
        while True:
            # The answer of the request that this task has brought to libfuse.
            self._line.pass_answers_on()
            found = await self._next()
            if found is None or isinstance(found, bool):
                return bool(found)
            try:
                await self._serve(self._line, found)
            except Exception as error:
                failures.note("a request", error)
                with suppress(OSError):  # it has its answer, or the mount has gone
                    self._line.refuse(found.unique, errno.EIO)

    async def _next(self) -> native.mount.Request | bool | None:
        """The next request, True for one that libfuse has at its end; None or False at the end."""
        if self._left > 0 and not self._stopping:
            self._left -= 1
            found = self._line.next(NATIVE_PER_TURN, LINGER_NS)
            if found is not None:
                return found
        await self._watch_next()
        try:
            while not self._stopping:
                await trio.lowlevel.wait_readable(self._wake_fd)
                self._left = REQUESTS_PER_TURN
                # Another task may have taken the request since: then there is none.
                found = self._line.next(NATIVE_PER_TURN, LINGER_NS)
                if found is not None:
                    return found
            return None
        except trio.ClosedResourceError:
            return None
        finally:
            self._pass_watch_on()

    async def _watch_next(self) -> None:
        """Wait until no other task watches the kernel's end.

        The task that was parked last is the next one: each task has a buffer of 1 MiB, and a few
        that are in the processor's caches serve faster than all in turn.
        """
        if not self._is_watched:
            self._is_watched = True
            return
        turn = trio.Event()
        self._parked.append(turn)
        try:
            await turn.wait()
        except BaseException:
            if turn.is_set():
                self._pass_watch_on()
            else:
                self._parked.remove(turn)
            raise

    def _pass_watch_on(self) -> None:
        if self._parked:
            self._parked.pop().set()
        else:
            self._is_watched = False


def _fuse_descriptor() -> int:
    """The session's descriptor, which pyfuse3 does not give out."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}") == "/dev/fuse":
                return int(name)
        except FileNotFoundError:
            continue  # the descriptor of the listing itself
    raise RuntimeError("there is no FUSE session")
