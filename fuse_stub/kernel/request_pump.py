"""Waiting for the requests that the native loop hands over, cheaply.

The loop takes all requests from the kernel, by io_uring where the kernel has it switched on, and
hands them to libfuse by a socket that keeps messages apart; libfuse takes it for ``/dev/fuse``.

pyfuse3 goes through trio's scheduler twice for every request: once for a lock, once for the
descriptor. That is most of what a small request costs (profiled: two thirds of the processor time
of an ``open``). A program that makes one call after the other has the next request ready a few
microseconds after the reply, so it pays to look for it, and to wait for an instant, before the
scheduler is asked. Other tasks get a turn after a few requests.
"""

import os
import select

import pyfuse3
import trio

from dedupd import native

REQUESTS_PER_TURN = 16
"""Requests that are answered in a row; then tasks that wait for threads or sockets get a turn."""

LINGER_S = 30e-6
"""How long to wait for the next request of a program that has just got its answer."""

TASKS = 192
"""Requests that can wait for threads or locks at a time, each held by a task: those that the kernel
sends in the background (``handshake.rs``), and as many more as a few busy users have. Each task has a
buffer of 1 MiB, of which a request that is not a write touches one page."""


class Pump:
    """Replaces pyfuse3's own waiting. There is one FUSE session in a process.

    All fields belong to the thread of the event loop and change between two awaits. One of the
    tasks watches the descriptor, the others are parked or serve requests.
    """

    def __init__(self) -> None:
        self._fd = _fuse_descriptor()
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        # select() takes descriptors below 1,024 only; there is no other wait of microseconds.
        self._descriptors = [self._fd] if self._fd < 1024 else []
        self._left = REQUESTS_PER_TURN  # requests until other tasks get a turn
        self._is_watched = False  # whether a task watches the descriptor
        self._parked: list[trio.Event] = []  # tasks that wait to watch it; the last goes first
        self._stopping = False
        self._loop: native.mount.Loop | None = None

    async def run(self) -> None:
        """Serve requests until the file system is unmounted, or :meth:`stop`."""
        # The session's loops look this function up in their module each time.
        pyfuse3._wait_fuse_readable = self._wait  # type: ignore[attr-defined]
        device_fd = os.dup(self._fd)
        try:
            # The native loop takes the requests from the kernel, and hands them over by a socket.
            self._loop, ours = native.mount.relay(device_fd, ring=True)
            os.dup2(ours, self._fd, inheritable=False)
            os.close(ours)
            await pyfuse3.main(min_tasks=TASKS, max_tasks=TASKS)
        finally:
            # libfuse asks the device whether the mount has gone already.
            os.dup2(device_fd, self._fd, inheritable=False)
            os.close(device_fd)

    def stop(self) -> None:
        """End :meth:`run`, once the requests that are being served are answered."""
        self._stopping = True
        pyfuse3.terminate()

    async def _wait(self) -> bool:
        """Wait for a request; False once the pump stops."""
        if self._left > 0 and not self._stopping:
            self._left -= 1
            if self._ready():
                return True
            is_there = self._descriptors and select.select(self._descriptors, (), (), LINGER_S)[0]
            if is_there and self._ready():
                return True
        await self._watch_next()
        try:
            while not self._stopping:
                await trio.lowlevel.wait_readable(self._fd)
                # Another task may have taken it since; then a read would block all of them.
                if self._ready():
                    self._left = REQUESTS_PER_TURN
                    return True
                if self._poll.poll(0):
                    return False  # the mount has gone
            return False
        except trio.ClosedResourceError:
            return False
        finally:
            self._pass_watch_on()

    def _ready(self) -> bool:
        """Whether a request is there. A socket that has ended can be read too, and has none."""
        return any(not event & select.POLLHUP for _, event in self._poll.poll(0))

    async def _watch_next(self) -> None:
        """Wait until no other task watches the descriptor.

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
