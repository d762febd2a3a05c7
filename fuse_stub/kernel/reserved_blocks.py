"""Protects blocks that the file system below reserves for root from the other users of the mount.

Threads of the mount process run as root, so ext4 gives them these blocks for any write. Therefore
the process makes users' changes as a user without a right to the blocks, but with all its
capabilities. Native code does the same (``native/src/mount/reserved_blocks.rs``).
"""

import errno
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, TypeVar

from dedupd_core import native
from dedupd_core.errors import NoSpace, OverQuota
from dedupd_core.system.file_system import file_system_of

log = logging.getLogger("dedupd.mount")

T = TypeVar("T")

_ROOT = 0

_OTHERS = (65_533, 65_532)
"""Users that no distribution assigns, with numbers that fit into old quota files. A new file of a
user belongs to them for the time between two system calls."""


class Caller(Protocol):
    """The requester of a change: a request, or its context."""

    @property
    def uid(self) -> int: ...
    @property
    def pid(self) -> int: ...


class ReservedBlocks:
    """The reserved blocks of the file system of a mount. Used by any thread."""

    def __init__(self, inodes: native.mount.Inodes) -> None:
        self._inodes = inodes
        self._user = _ROOT
        self._other: int | None = None

    def keep(self, data_fd: int, mountpoint: str, *, keeps_rights: bool) -> None:
        """Protect the reserved blocks from users, if the file system of ``data_fd`` has any.

        ``keeps_rights``: whether this process keeps its capabilities as another user. It has left
        the group (:func:`leave_group`).
        """
        found = file_system_of(data_fd)
        # XFS and btrfs reserve space only for themselves. Only root has a right to reserved blocks.
        if not found.is_ext or os.geteuid() != _ROOT:
            return
        user, group = (_number(found.options, name) for name in ("resuid", "resgid"))
        other = next(uid for uid in _OTHERS if uid != user)
        if (
            keeps_rights
            and not _is_member(group)
            and self._inodes.keep_reserved_blocks(user, group, other)
        ):
            self._user, self._other = user, other
            return
        log.warning(
            "%s: users can use the blocks that %s reserves for root: the process lacks"
            " CAP_SETUID, CAP_SETGID or CAP_SETPCAP",
            mountpoint,
            found.kind,
        )

    def change(self, caller: Caller, function: Callable[..., T], *args: object) -> T:
        """Call a function that has no effect if space is missing. It gets the reserved blocks only
        if the caller may use them. Raises the errors of the function."""
        if self._other is None:
            return function(*args)
        try:
            return _as_user(self._other, function, *args)
        except (NoSpace, OSError) as error:
            if not _is_full(error) or not self._are_for(caller):
                raise
        return _as_user(self._user, function, *args)

    def _are_for(self, caller: Caller) -> bool:
        mapped = None
        if isinstance(caller, native.mount.Request) and caller.is_mapping:
            mapped = caller.node
        return self._inodes.may_have_reserved(caller.uid, caller.pid, mapped)


def _as_user(uid: int, function: Callable[..., T], *args: object) -> T:
    native.system.become_file_user(uid)
    try:
        return function(*args)
    finally:
        native.system.become_file_user(_ROOT)


def _is_full(error: NoSpace | OSError) -> bool:
    if isinstance(error, OSError):
        return error.errno == errno.ENOSPC
    return not isinstance(error, OverQuota)


def _number(options: frozenset[str], name: str) -> int:
    """Return the value of an option; 0, the id of root, if the option is missing."""
    values = [one.partition("=")[2] for one in options if one.startswith(f"{name}=")]
    return int(values[0]) if values and values[0].isdecimal() else _ROOT


def leave_group(data_fd: int) -> None:
    """Leave the group that may use the reserved blocks of a file system, if permitted."""
    group = _number(file_system_of(data_fd).options, "resgid")
    others = [one for one in os.getgroups() if one != group]
    if group != _ROOT and len(others) < len(os.getgroups()):
        with suppress(PermissionError):
            os.setgroups(others)


def _is_member(group: int) -> bool:
    """Return whether this process is in a group; membership in root's group does not count."""
    return group != _ROOT and group in (os.getegid(), *os.getgroups())
