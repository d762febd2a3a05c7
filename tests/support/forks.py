"""Processes of the program that are forked from one that has imported all of it.

Each runs what a process of production runs, with descriptors, environment and directory of its own.
It only need not start Python and import hundreds of modules first, which for most commands takes
longer than what they do. Tests of how processes start, of their names and of their memory start
real ones (:func:`tests.support.lab.run_program`, :class:`tests.support.mounts.Started`).
"""

import multiprocessing
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from multiprocessing import reduction
from pathlib import Path
from typing import Any

from dedupd_core import failpoint

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM_S_MAX = 240

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.support.warm"])

_TESTS_PID = os.getpid()


def can_fork() -> bool:
    """Whether a fork is what a process would be that this one starts. A child of the tests has
    other rights or limits than they have, and those of a fork are theirs."""
    return os.getpid() == _TESTS_PID


class Descriptor:
    """One that goes along to a fork."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> tuple[Callable[[Any], "Descriptor"], tuple[Any]]:
        return _received, (reduction.DupFd(self.fd),)


def _received(sent: Any) -> Descriptor:
    return Descriptor(sent.detach())


def take_over(environment: dict[str, str], directory: str) -> None:
    """Be a process that was started there, with this environment."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    failpoint.arm(os.environ.get(failpoint.VARIABLE, ""))


def run_forked(
    arguments: Sequence[str], environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run the command ``dedupd``, and wait until it has ended, and all that have its pipes."""
    with ExitStack() as stack:
        pipes = []
        for _ in ("standard output", "standard error"):
            read_fd, write_fd = os.pipe()
            stack.callback(os.close, read_fd)
            pipes.append((read_fd, write_fd))
        process = CONTEXT.Process(
            target=_command,
            args=(list(arguments), environment, *(Descriptor(fd) for _, fd in pipes)),
        )
        try:
            process.start()
        finally:
            for _, write_fd in pipes:
                os.close(write_fd)
        try:
            output, errors = _read_to_the_end([read_fd for read_fd, _ in pipes])
        except TimeoutError:
            process.kill()
            raise
        process.join()
    assert process.exitcode is not None
    return subprocess.CompletedProcess(list(arguments), process.exitcode, output, errors)


def _read_to_the_end(pipes: list[int]) -> list[str]:
    """All that comes from pipes until they are closed."""
    parts: dict[int, list[bytes]] = {pipe: [] for pipe in pipes}
    end = time.monotonic() + PROGRAM_S_MAX
    with selectors.DefaultSelector() as selector:
        for pipe in pipes:
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(end - time.monotonic())
            if not ready:
                raise TimeoutError(f"a command did not end in {PROGRAM_S_MAX} s")
            for key, _ in ready:
                part = os.read(key.fd, 1 << 16)
                parts[key.fd].append(part)
                if not part:
                    selector.unregister(key.fd)
    return [b"".join(parts[pipe]).decode(errors="surrogateescape") for pipe in pipes]


def _command(
    arguments: list[str], environment: dict[str, str], output: Descriptor, errors: Descriptor
) -> None:
    """What the process of a command does: the command itself."""
    from dedupd.cli.main import main

    take_over(environment, str(REPOSITORY))
    null = os.open(os.devnull, os.O_RDONLY)
    for fd, own in ((null, 0), (output.fd, 1), (errors.fd, 2)):
        os.dup2(fd, own)
        os.close(fd)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", closefd=False)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = os.fdopen(  # type: ignore[misc]
        2, "w", buffering=1, errors="backslashreplace", closefd=False
    )
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["dedupd", *arguments]
    main(prog_name="dedupd")
