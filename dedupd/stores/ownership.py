"""Whose a directory is that dedupd works in."""

import os
import stat

from dedupd.errors import UsageError


def is_own(base_fd: int) -> bool:
    """Whether this user alone can change the content of a ``.dedupd``, or of a store."""
    status = os.stat(base_fd)
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def refuse_strangers(base_fd: int, where: str) -> None:
    """Raises UsageError where another user could have a job work, with the rights of the user that
    runs it, on any files: ``data`` and ``store`` may be links, or be exchanged."""
    if not is_own(base_fd):
        status = os.stat(base_fd)
        raise UsageError(
            f"{where}: belongs to user {status.st_uid} and has mode"
            f" {stat.S_IMODE(status.st_mode):04o}, and must be yours alone; run this as the user"
            " that enabled the volume, usually root, or put owner and mode (0700) right"
        )
