"""Marks on files that this program has not finished, to identify leftovers of a killed process.

A name is no proof: a user may have chosen it.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

from dedupd_core.system.disk import Disk

_MARKS = b"trusted.dedupd.unfinished", b"user.dedupd.unfinished"
"""Only root can set the first one. No file gets one of them as its own attribute."""

_NOT_HERE = (errno.EOPNOTSUPP, errno.EPERM, errno.EACCES, errno.ENODATA)


class Mark(Enum):
    """The kinds of unfinished work: the value of the attribute."""

    WORKSHOP = b"workshop"
    """A private directory with unfinished files in it."""
    DIRECTORY = b"directory"
    """A directory without its final owner and mode."""
    FILE = b"file"
    """A file without its final name."""


def is_mark(name: bytes) -> bool:
    """Return whether an attribute is such a mark, and so belongs to no node."""
    return name in _MARKS


def mark(disk: Disk, fd: int, what: Mark) -> None:
    """Mark a new file or directory of this program as unfinished.

    Does nothing if the file system has no such attributes: then leftovers of a killed process stay.
    Raises OSError, NoSpace.
    """
    with _if_supported():
        disk.set_attribute(fd, _own(), what.value)


def unmark(disk: Disk, fd: int) -> None:
    """Remove the mark. Raises OSError."""
    with _if_supported():
        disk.remove_attribute(fd, _own())


def is_marked(fd: int, what: Mark) -> bool:
    """Return whether this program's user has set this mark. Raises OSError."""
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
