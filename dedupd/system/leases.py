"""Leases: whether other processes have a file open."""

import errno
import fcntl
import signal


def has_writers(fd: int) -> bool:
    """Whether anybody has the file of ``fd``, open for reading only, open or mapped for writing.

    Asked by taking a read lease for an instant. Where leases cannot be had, False.
    """
    if not _lease(fd, fcntl.F_RDLCK):
        return True
    _lease(fd, fcntl.F_UNLCK)
    return False


def lease_exclusively(fd: int) -> bool:
    """Take the write lease of ``fd``, open for writing; False where anybody else has it open.

    Until ``fd`` is closed, whoever opens the file waits (up to ``/proc/sys/fs/lease-break-time``
    seconds). Where leases cannot be had, True.
    """
    return _lease(fd, fcntl.F_WRLCK)


def _lease(fd: int, kind: int) -> bool:
    try:
        # Who breaks a lease makes the kernel send SIGIO, which kills; SIGURG is ignored.
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, kind)
    except OSError as error:
        return error.errno != errno.EAGAIN
    return True
