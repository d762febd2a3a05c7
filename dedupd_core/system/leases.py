"""Leases: find out whether other processes have a file open.

Native calls take leases of many files at once (``native/src/system/leases.rs``).
"""

import errno
import fcntl
import signal


def has_writers(fd: int) -> bool:
    """Return whether any process has the file of ``fd`` open or mapped for writing.

    ``fd`` is open for reading only. Takes a read lease for an instant. False on file systems
    without leases.
    """
    if not _lease(fd, fcntl.F_RDLCK):
        return True
    _lease(fd, fcntl.F_UNLCK)
    return False


def lease_exclusively(fd: int) -> bool:
    """Take the write lease of ``fd``, open for writing; False if another process has it open.

    Until ``fd`` is closed, other processes wait when they open the file (at most
    ``/proc/sys/fs/lease-break-time`` seconds). True on file systems without leases.
    """
    return _lease(fd, fcntl.F_WRLCK)


def _lease(fd: int, kind: int) -> bool:
    try:
        # When a lease is broken, the kernel sends SIGIO by default, which kills; SIGURG is ignored.
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, kind)
    except OSError as error:
        return error.errno != errno.EAGAIN
    return True
