"""Real processes that start with standard streams closed."""

import os
import subprocess
import sys
from itertools import combinations
from pathlib import Path

from tests.support.lab import REPOSITORY

STREAMS = (0, 1, 2)

CLOSED = [closed for count in STREAMS for closed in combinations(STREAMS, count + 1)]
"""Every choice of streams."""

_CLOSING = {0: "<&-", 1: ">&-", 2: "2>&-"}


def command_without(streams: tuple[int, ...], module: str, *arguments: str | Path) -> list[str]:
    """A command that runs a module of the program, and has no such streams."""
    closing = " ".join(_CLOSING[fd] for fd in streams)
    run = [sys.executable, "-P", "-m", module, *map(str, arguments)]
    return ["bash", "-c", f'exec "$@" {closing}', "bash", *run]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), **more}


def run_without(
    streams: tuple[int, ...], module: str, *arguments: str | Path
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command_without(streams, module, *arguments),
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def streams_of(pid: int) -> set[str]:
    """The files that a process has as its standard streams."""
    return {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in STREAMS}
