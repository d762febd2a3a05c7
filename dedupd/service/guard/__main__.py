"""``python -m dedupd.service.guard``: the process of a guard, started by the service.

Its arguments are a name for messages, a descriptor in the file system, and descriptors in mounts
that are exempt. It prints a JSON object per line: first ``{"ready": true}`` or ``{"problem": …}``.
Then it prints one line per refused open (``pid``, ``uid``, ``program``, ``path``), and ``{"count":
…}`` each second. It exits when its standard input is closed.
"""

import json
import os
import select
import sys
from contextlib import suppress

from dedupd_core import native
from dedupd_core.system.inherited import open_standard_streams
from dedupd_core.system.processes import lock_of_register, show_as

BEAT_S = 1.0

PATH_BYTES_MAX = 600
"""The length of the printed end of a path: a pipe writes shorter lines atomically."""


def _print(**message: object) -> None:
    """Print a line. If the service does not read, the line is lost: the guard never waits."""
    with suppress(BlockingIOError):
        os.write(sys.stdout.fileno(), json.dumps(message).encode() + b"\n")


def _guard(directory_fd: int, exempt_fds: list[int]) -> None:
    # Before any thread starts, because a thread gets the rights of the thread that starts it.
    native.system.bound_capabilities(["CAP_SYS_ADMIN"])
    guard = native.system.OpenGuard(directory_fd, exempt_fds, lock_of_register())
    for fd in {directory_fd, *exempt_fds}:
        os.close(fd)  # An open descriptor would prevent the unmount of the file system.
    with suppress(OSError):
        native.system.deny_calls()
    _print(ready=True)
    while guard.is_open and not select.select([sys.stdin], [], [], 0)[0]:
        refused, count = guard.take(BEAT_S)
        for pid, uid, program, path in refused:
            names = {"program": os.fsdecode(program), "path": os.fsdecode(path[-PATH_BYTES_MAX:])}
            _print(pid=pid, uid=uid, **names)
        _print(count=count)


if __name__ == "__main__":
    open_standard_streams()
    os.set_blocking(sys.stdout.fileno(), False)
    show_as("dedupd-guard", sys.argv[1])
    try:
        _guard(int(sys.argv[2]), [int(fd) for fd in sys.argv[3:]])
    except OSError as error:
        _print(problem=error.strerror or str(error))
