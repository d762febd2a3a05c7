"""Checks the ownership of a directory that dedupd works in."""

import os
import stat

from dedupd_core.errors import UsageError


def is_own(base_fd: int) -> bool:
    """Return whether only this user can change the content of a ``.dedupd``, or of a store."""
    status = os.stat(base_fd)
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def is_trusted(base_fd: int) -> bool:
    """Return whether only root and this user can change the content of a ``.dedupd``. Then no other
    user can have forged it."""
    status = os.stat(base_fd)
    is_private = not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return is_private and status.st_uid in (0, os.geteuid())


def refuse_strangers(base_fd: int, where: str) -> None:
    """Raise UsageError if another user could make this user's jobs work on any files: ``data`` and
    ``store`` may be links, or be exchanged."""
    if not is_own(base_fd):
        status = os.stat(base_fd)
        raise UsageError(
            f"{where}: belongs to user {status.st_uid} and has mode"
            f" {stat.S_IMODE(status.st_mode):04o}, but must be accessible only to you; run the"
            " command as the user that enabled the volume, usually root. Change owner and mode"
            " only if you copied the volume here yourself"
        )
