"""A note of this program on what it has not finished: what a kill leaves is told by it.

A name proves nothing: a user may have chosen it.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

from dedupd_core.system.disk import Disk

_MARKS = b"trusted.dedupd.unfinished", b"user.dedupd.unfinished"
"""The first is root's, and no other user can set it. Nothing gets one as its own attribute."""

_NOT_HERE = (errno.EOPNOTSUPP, errno.EPERM, errno.EACCES, errno.ENODATA)


class Mark(Enum):
    """What is not finished: the value of the attribute."""

    WORKSHOP = b"workshop"
    """A private directory, with what is being made in it."""
    DIRECTORY = b"directory"
    """A directory that is to get its owner and mode."""
    FILE = b"file"
    """A file that is to get its name."""


def is_mark(name: bytes) -> bool:
    """Return whether an attribute says what is unfinished, and so belongs to no node."""
    return name in _MARKS


def mark(disk: Disk, fd: int, what: Mark) -> None:
    """Note that this program has made a file or directory, which is not finished.

    Does nothing where the file system has no such attributes: then nobody removes what a kill
    leaves there. Raises OSError, NoSpace.
    """
    with _if_supported():
        disk.set_attribute(fd, _own(), what.value)


def unmark(disk: Disk, fd: int) -> None:
    """Remove the note. Raises OSError."""
    with _if_supported():
        disk.remove_attribute(fd, _own())


def is_marked(fd: int, what: Mark) -> bool:
    """Whether this program's user has noted that. Raises OSError."""
    value = b""
    with _if_supported():
        value = os.getxattr(fd, _own())
    return value == what.value


def _own() -> bytes:
    return _MARKS[0] if os.geteuid() == 0 else _MARKS[1]


@contextmanager
def _if_supported() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _NOT_HERE:
            raise
