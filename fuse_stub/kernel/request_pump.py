"""Receives requests from the kernel, and dispatches each to the code that answers it.

The native line (``native/src/mount/session/line.rs``) answers all requests that need only the table
of inodes. It hands requests with a file's data to the mount's operations, and all others to
libfuse, through a socket that replaces libfuse's ``/dev/fuse``.

A program that makes one call after the other has the next request ready a few microseconds after
the reply. So the pump checks for it, and waits for an instant, before it calls trio's scheduler,
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
"""Requests that are answered in a row before tasks that wait for threads or sockets get a turn."""

NATIVE_PER_TURN = 32
"""Requests that native code answers in a row, some 10 microseconds each."""

LINGER_NS = 30_000
"""The longest wait for the next request of a program that has just got its answer."""

TASKS = 192
"""The requests that can wait for threads or locks at a time, each in its own task. These are the
kernel's background requests (``handshake.rs``), and as many again for a few busy users. Each task
has a buffer of 1 MiB; a small request uses one page of it."""


STAND_INS_MAX = 8
"""The most overflow readers. An answer takes some 10 microseconds of a processor."""

NOTIFICATION_WAIT_S = 5.0
"""The longest wait of a stopping mount for a notification, which itself waits for requests."""
NOTIFICATION_POLL_S = 0.005

ALWAYS_BESIDE = False
"""Make overflow readers take requests even if that is not needed: for tests."""


BY_RING = True
"""Use io_uring for requests if the kernel offers it."""

ABSENT = 0
"""Flags of the kernel's offer (``FUSE_INIT``) to ignore: for tests."""


def overflow_readers(cores: int) -> int:
    """Return the number of overflow readers. On one processor they would only use the time of the
    event-loop thread."""
    return min(cores, STAND_INS_MAX) if cores > 1 else 0


class Pump:
    """Replaces pyfuse3's own waiting. There is one FUSE session per process.

    All fields belong to the event-loop thread and change between two awaits. One task watches the
    kernel's end; the others are parked or serve requests.
    """

    def __init__(
        self,
        inodes: native.mount.Inodes,
        serve: Callable[[native.mount.Line, native.mount.Request], Awaitable[None]],
        use: Callable[[native.mount.Line | None], None],
        mountpoint: str,
    ) -> None:
        """The session must be started, and must not be served yet.

        ``serve`` answers requests with a file's data. ``use`` is called with the line when it
        exists, and with None before it is closed.
        """
        self._inodes = inodes
        self._ring_at = mountpoint if BY_RING else None
        self._serve = serve
        self._use = use
        self._wake_fd = -1
        self._left = REQUESTS_PER_TURN  # requests until other tasks get a turn
        self._is_watched = False  # whether a task watches the kernel's end
        self._parked: list[trio.Event] = []  # tasks that wait to watch it; the last is next
        self._stopping = False

    async def run(self) -> None:
        """Serve requests until the file system is unmounted, or :meth:`stop`. Raises OSError."""
        fd = _fuse_descriptor()
        turn = native.mount.Turn(self._inodes)
        self._line, libfuse_fd = native.mount.Line.between(
            fd, self._inodes, turn, overflow_readers(cores()), ALWAYS_BESIDE, self._ring_at, ABSENT
        )
        # The native object has the methods that the loop calls.
        instrument = cast(trio.abc.Instrument, turn)
        trio.lowlevel.add_instrument(instrument)
        device_fd = os.dup(fd)
        self._wake_fd = self._line.wake_fd
        os.dup2(libfuse_fd, fd, inheritable=False)
        os.close(libfuse_fd)
        self._use(self._line)
        # The session's loops read this function from their module each time.
        pyfuse3._wait_fuse_readable = self._wait  # type: ignore[attr-defined]
        try:
            await pyfuse3.main(min_tasks=TASKS, max_tasks=TASKS)
            self._line.pass_answers_on()
        finally:
            self._use(None)
            self._wake_fd = -1
            self._line.close()
            trio.lowlevel.remove_instrument(instrument)
            # libfuse asks the device whether the mount is already unmounted.
            os.dup2(device_fd, fd, inheritable=False)
            os.close(device_fd)

    async def finish_notifications(self) -> None:
        """Stop notifications of refused writes, and wait for the current one. Requests are still
        answered. A process that stops before that cannot exit."""
        with trio.move_on_after(NOTIFICATION_WAIT_S), suppress(OSError):  # it may be unmounted
            while self._wake_fd >= 0 and self._line.finish_notifications():
                await trio.sleep(NOTIFICATION_POLL_S)

    def stop(self) -> None:
        """Stop :meth:`run` after the current requests are answered."""
        self._stopping = True
        pyfuse3.terminate()
        if self._wake_fd >= 0:
            trio.lowlevel.notify_closing(self._wake_fd)

    async def _wait(self) -> bool:
        """Answer requests until one comes for libfuse. Returns False when the pump stops."""
        while True:
            # Send the answer of the request that this task has given to libfuse.
            self._line.pass_answers_on()
            found = await self._next()
            if found is None or isinstance(found, bool):
                return bool(found)
            try:
                await self._serve(self._line, found)
            except Exception as error:
                failures.note("a request", error)
                with suppress(OSError):  # it is already answered, or the mount was unmounted
                    self._line.refuse(found.unique, errno.EIO)

    async def _next(self) -> native.mount.Request | bool | None:
        """Return the next request; True if libfuse has one at its end; None or False at the end."""
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
                # Another task may have taken the request in between: then there is none.
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

        The task that was parked last is the next one. Each task has a buffer of 1 MiB, and a few
        buffers in the processor's caches are faster than all of them in turn.
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
    """Return the session's descriptor, which pyfuse3 does not expose."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}") == "/dev/fuse":
                return int(name)
        except FileNotFoundError:
            continue  # the descriptor of the listing itself
    raise RuntimeError("there is no FUSE session")
