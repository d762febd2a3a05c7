"""Runs the commands of suites, and ends all their processes when their time is over."""

import ctypes
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_CHILD_SUBREAPER = 36

END_WAIT_S = 60
"""How long a killed process may take, for example to write back what it has written."""

SERVER = "dedupd-mount"
"""The name of a process that serves a mount. It outlives the test that has started it."""


@dataclass(frozen=True)
class Finished:
    """What a command has printed, and how it ended. ``status`` None: its time was over."""

    status: int | None
    output: str
    seconds: float
    stuck: tuple[str, ...] = ()
    """Processes that did not end when they were killed."""


def adopt_orphans() -> None:
    """Become the parent of processes that tests leave, so that they can be found and ended."""
    if _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class Running:
    """A command that runs, for a block; all processes that it leaves are ended after that."""

    def __init__(
        self,
        command: Sequence[str | Path],
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.stuck: tuple[str, ...] = ()
        """After the block: processes that did not end when they were killed."""
        self._process = subprocess.Popen(
            command,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *_: object) -> None:
        self.stuck = tuple(_described(one) for one in _end_all())
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process.wait()

    def read(self, until: float) -> bytes:
        """What it prints next; empty once it has ended. Raises TimeoutError at a time of the
        monotonic clock. Processes that it leaves behind may have its output open for longer."""
        assert self._process.stdout is not None
        while True:
            is_over = self._process.poll() is not None
            if select.select([self._process.stdout], [], [], 0 if is_over else 0.1)[0]:
                return os.read(self._process.stdout.fileno(), 1 << 16)
            if is_over:
                return b""
            if time.monotonic() > until:
                raise TimeoutError

    @property
    def status(self) -> int:
        return self._process.wait()


def run(
    command: Sequence[str | Path],
    limit_s: float,
    *,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Finished:
    """Run a command to its end, at most for a time."""
    began, output = time.monotonic(), b""
    status: int | None = None
    with Running(command, cwd, environment) as running:
        try:
            while part := running.read(began + limit_s):
                output += part
            status = running.status
        except TimeoutError:
            pass
    seconds = time.monotonic() - began
    return Finished(status, output.decode(errors="replace"), seconds, running.stuck)


def _end_all() -> list[psutil.Process]:
    """Kill the descendants of this process that are not of its session, as all those of a command,
    except the processes that serve mounts. Return the processes that have not ended after a time.

    Jobs that run at the same time belong to the session."""
    give_up = time.monotonic() + END_WAIT_S
    while True:
        ended = [
            one
            for child in psutil.Process().children()
            if not _is_of_this_session(child) and not _serves(child)
            for one in (*_descendants(child), child)
            if not _serves(one)
        ]
        if not ended or time.monotonic() > give_up:
            return ended
        for one in ended:
            try:
                one.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(ended, timeout=5)


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        # A search reads all of /proc, and a stressor may leave thousands of dead children.
        is_dead = process.status() == psutil.STATUS_ZOMBIE
        return [] if is_dead else process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _is_of_this_session(process: psutil.Process) -> bool:
    try:
        return os.getsid(process.pid) == os.getsid(0)
    except ProcessLookupError:
        return True


def _serves(process: psutil.Process) -> bool:
    try:
        words = process.cmdline()
    except psutil.Error:
        return False
    return bool(words) and words[0].startswith(SERVER)


def _described(process: psutil.Process) -> str:
    try:
        with process.oneshot():
            return f"{process.pid} {process.name()} ({process.status()})"
    except psutil.NoSuchProcess:
        return str(process.pid)
