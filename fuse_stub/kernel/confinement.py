"""Rights of root that a mount process drops, because it reads data from users.

Capabilities are dropped before threads start: a thread inherits those of the thread that starts it.
System calls are dropped after the volume is mounted, for all threads at once
(``native/src/system/confinement.rs``). A process of another user has no capabilities. It keeps its
system calls: it unmounts by ``fusermount3``, which is set-user-ID and fails in a process without
new privileges.
"""

import logging
import os
from dataclasses import dataclass

from dedupd_core import native

log = logging.getLogger("dedupd.mount")


@dataclass(frozen=True, slots=True)
class _Right:
    """A capability that the process keeps; ``reads``: even for a read-only mount."""

    name: str
    reads: bool = False


_RIGHTS = (
    _Right("CAP_SYS_ADMIN", reads=True),
    _Right("CAP_DAC_READ_SEARCH", reads=True),
    _Right("CAP_SYS_NICE", reads=True),
    _Right("CAP_DAC_OVERRIDE"),
    _Right("CAP_CHOWN"),
    _Right("CAP_FOWNER"),
    _Right("CAP_FSETID"),
    _Right("CAP_SETFCAP"),
    _Right("CAP_MKNOD"),
    _Right("CAP_LINUX_IMMUTABLE"),
    _Right("CAP_SETUID"),
)


def kept_capabilities(*, is_read_only: bool) -> list[str]:
    """Return the capabilities that a mount process of root keeps while it serves."""
    return [one.name for one in _RIGHTS if one.reads or not is_read_only]


def bound_capabilities(*, is_read_only: bool) -> None:
    """Drop all other capabilities, in this thread and in those that it starts.

    Raises OSError.
    """
    if os.geteuid() == 0:
        native.system.bound_capabilities(kept_capabilities(is_read_only=is_read_only))


def deny_calls(mountpoint: str) -> None:
    """Drop the system calls that a mount does not use, in all threads.

    If the kernel cannot filter calls, this only logs a warning: the mount works.
    """
    if os.geteuid() != 0:
        return
    try:
        native.system.deny_calls()
    except OSError as error:
        log.warning(
            "%s: the mount process keeps unneeded system calls, because the kernel cannot filter"
            " them: %s",
            mountpoint,
            error.strerror,
        )
