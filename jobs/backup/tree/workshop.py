"""A private directory in which a node is made, until all its properties are set.

Users may be able to change the directory that will contain the node. Until the node has its owner
and mode, only this program's user can reach it. Then a rename that replaces nothing moves it to its
place (docs/design/privileges.md).
"""

import fcntl
import os
import stat
from contextlib import suppress

from dedupd_core.errors import UsageError
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import opened
from dedupd_core.system.paths import show_path
from dedupd_core.system.tree.takeover import open_own_directory
from dedupd_core.system.tree.unfinished import Mark, is_marked, mark

_PREFIX = b".dedupd-unfinished-"
_NODE = b"node"


def open_unfinished(parent_fd: int, name: bytes) -> int | None:
    """Open the directory of an interrupted run; return None if the directory is another one. Only
    the mark proves that this program has made it; other directories keep their owner."""
    try:
        fd = open_own_directory(parent_fd, name)
    except (OSError, UsageError):
        return None
    if is_marked(fd, Mark.DIRECTORY):
        return fd
    os.close(fd)
    return None


class Workshop:
    """A private directory in ``parent_fd``, in which one node is made at a time.

    A lock distinguishes it from a directory of a killed run, which the next run in ``parent_fd``
    removes. The name alone is no reason to remove a directory: a user may have chosen it.
    """

    name = _NODE
    """The name of the node that is made in it."""

    def __init__(self, disk: Disk, parent_fd: int) -> None:
        """Borrows ``parent_fd``. Raises OSError, NoSpace."""
        self._disk = disk
        self._parent_fd = os.open(
            b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=parent_fd
        )
        try:
            self._remove_abandoned()
            self._name = _PREFIX + os.urandom(8).hex().encode()
            disk.make_dir(self._parent_fd, self._name)
            self.fd = self._opened_new()
        except BaseException:
            os.close(self._parent_fd)
            raise
        _locked(self.fd)
        mark(disk, self.fd, Mark.WORKSHOP)

    def _opened_new(self) -> int:
        """Open the new directory. Raises UsageError if a user has replaced it."""
        fd = open_own_directory(self._parent_fd, self._name)
        if os.listdir(fd):
            os.close(fd)
            raise UsageError(
                f"{show_path(self._name)}: another user has replaced this directory; run the"
                " command again"
            )
        return fd

    def discard(self) -> None:
        """Remove the node that was made, if it has not been moved to its place."""
        _remove_node(self._disk, self.fd)

    def close(self) -> None:
        """Remove the directory."""
        with opened(self._parent_fd), opened(self.fd):
            self._remove(self._name, self.fd)

    def _remove(self, name: bytes, fd: int) -> None:
        """Remove a workshop, unless a user has moved or replaced it."""
        with suppress(OSError):
            _remove_node(self._disk, fd)
            there = os.stat(name, dir_fd=self._parent_fd, follow_symlinks=False)
            if os.path.samestat(there, os.fstat(fd)):
                self._disk.remove_dir(self._parent_fd, name)

    def _remove_abandoned(self) -> None:
        for name in map(os.fsencode, os.listdir(self._parent_fd)):
            if not name.startswith(_PREFIX):
                continue
            with (
                suppress(OSError, UsageError),
                opened(open_own_directory(self._parent_fd, name)) as fd,
            ):
                if is_marked(fd, Mark.WORKSHOP) and _locked(fd):
                    self._remove(name, fd)


def _locked(fd: int) -> bool:
    """Lock a directory; return whether no other run works in it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # or a file system without locks
        return False
    return True


def _remove_node(disk: Disk, fd: int) -> None:
    """Remove a file or an empty directory that was made in a workshop, and nothing else: a user may
    have replaced the workshop by another directory of root."""
    with suppress(OSError):
        if stat.S_ISDIR(os.stat(_NODE, dir_fd=fd, follow_symlinks=False).st_mode):
            disk.remove_dir(fd, _NODE)
        else:
            disk.unlink(fd, _NODE)
