"""State that a process inherits from its caller, and that must not affect users or volumes.

Standard streams may be closed. Limits, the priority and blocked signals of a shell are not suitable
for a file server.
"""

import errno
import os
import resource
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass

from dedupd_core.errors import UsageError
from dedupd_core.units import format_size

_STREAMS = (0, 1, 2)

_closed: set[int] = set()
"""The standard streams that the caller has closed."""


def open_standard_streams() -> None:
    """Open ``/dev/null`` as each standard stream that the caller has closed.

    Call this before a process opens anything. Otherwise a container or a user's file gets the
    number of a standard stream, and a printed message overwrites it. Raises OSError.
    """
    for fd in _STREAMS:
        try:
            os.fstat(fd)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            _closed.add(fd)
            # The lower numbers are open, so the kernel uses this one.
            null = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(null, True)
            assert null == fd
    # Python has no object for a stream that was closed when it started.
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(fd, mode, errors="backslashreplace", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


def require_standard_stream(fd: int, purpose: str) -> None:
    """Raise UsageError if the caller has closed a standard stream that carries data.

    ``purpose``: the data, for the message.
    """
    if fd in _closed:
        name = {0: "input", 1: "output", 2: "error"}[fd]
        raise UsageError(
            f"standard {name}: is closed, but is needed for {purpose}; open or redirect it"
        )


@dataclass(frozen=True, slots=True)
class _Limit:
    number: int
    name: str
    option: str
    """The option of the shell's command ``ulimit``."""
    unit: str

    def shown(self, value: int) -> str:
        return f"{value} s" if self.unit == "s" else format_size(value)


_LIMITS = (
    _Limit(resource.RLIMIT_FSIZE, "the size of files", "-f", "bytes"),
    _Limit(resource.RLIMIT_CPU, "processor time", "-t", "s"),
    _Limit(resource.RLIMIT_AS, "virtual memory", "-v", "bytes"),
    _Limit(resource.RLIMIT_DATA, "memory for data", "-d", "bytes"),
)
"""Limits that a job or a mount process must not have. They would limit the files that users write,
or end the process itself in the middle of its work."""


def lift_limits() -> None:
    """Remove the caller's resource limits from this process.

    Raises UsageError if one is a hard limit, and this process may not raise it.
    """
    for limit in _LIMITS:
        soft, hard = resource.getrlimit(limit.number)
        if soft == resource.RLIM_INFINITY:
            continue
        try:
            resource.setrlimit(limit.number, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        except (ValueError, OSError):
            raise UsageError(
                f"{limit.name}: the calling shell limits it to {limit.shown(hard)}, which would"
                " affect users or kill this process; start dedupd from a session in which `ulimit"
                f" -H {limit.option}` prints `unlimited`"
            ) from None


def take_normal_priority() -> None:
    """Give this process a normal priority if the caller's is lower, and unblock all signals.

    A lower priority stays if this process has no right to raise it. A higher one stays as well: an
    administrator has set it on purpose.
    """
    import psutil

    with suppress(OSError):
        if os.getpriority(os.PRIO_PROCESS, 0) > 0:
            os.setpriority(os.PRIO_PROCESS, 0, 0)
    with suppress(OSError, psutil.Error):  # a kernel without I/O classes
        if psutil.Process().ionice().ioclass != psutil.IOPRIO_CLASS_RT:
            psutil.Process().ionice(psutil.IOPRIO_CLASS_NONE, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
