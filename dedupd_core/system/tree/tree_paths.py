"""The paths of open files below a directory, as the kernel knows them.

A path longer than ``PATH_MAX`` is legal: a program reaches it by one directory after the other. The
kernel reports no path of that length, so the names are looked up in the directories above.
"""

import errno
import os
import stat
from contextlib import suppress

from dedupd_core.system.files import opened
from dedupd_core.system.paths import open_beneath, show_path

LEVELS_MAX = 64
"""Directories beyond the part that the kernel reports; 64 names of 255 bytes are 16 KiB."""

ENTRIES_MAX = 4096
"""The names that are read for them in total: some milliseconds, in which a mount may block."""

_REMOVED = b" (deleted)"
"""The kernel appends this to the path of a removed name. A real name may also end like this."""

_WALK = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def path_in_tree(tree_fd: int, fd: int) -> bytes | None:
    """Return the current path of ``fd`` below the directory ``tree_fd``, ``b""`` for that itself.

    None if no path is known: the name was removed, the file is elsewhere, or NFS opened it by its
    number. The same holds for a file below a path longer than ``PATH_MAX``. For a directory, a path
    of such a length is found within ``LEVELS_MAX`` and ``ENTRIES_MAX``. Raises nothing for any
    name.
    """
    path, is_long = _told(tree_fd, fd)
    if path is not None:
        if not path.endswith(_REMOVED) or _leads_to(tree_fd, path, fd):
            return path
        return None
    if is_long:
        with suppress(OSError):
            return _looked_up(tree_fd, fd)
    return None


def name_in_tree(tree_fd: int, fd: int) -> str:
    """Return the same path for messages; if none is known, ``#`` and the number of the inode.

    The path of a removed name ends in ``(deleted)``. No program may open the result.
    """
    path = _told(tree_fd, fd)[0]
    if path is None:
        path = path_in_tree(tree_fd, fd)
    return show_path(path) if path is not None else show_path(numbered(fd))


def numbered(fd: int) -> bytes:
    """Return the name that replaces an unknown path of a file in records."""
    return b"#%d" % os.fstat(fd).st_ino


def lies_elsewhere(tree_fd: int, fd: int) -> bool:
    """Return whether ``fd`` is known to be outside of the directory ``tree_fd``."""
    path, is_long = _told(tree_fd, fd)
    if path is not None:
        return False
    is_directory = stat.S_ISDIR(os.fstat(fd).st_mode)
    if is_long:
        return is_directory and path_in_tree(tree_fd, fd) is None
    return is_directory or _link(fd) != b"/"


def _link(fd: int) -> bytes:
    return os.readlink(b"/proc/self/fd/%d" % fd)


def _told(tree_fd: int, fd: int) -> tuple[bytes | None, bool]:
    """Return the path that the kernel reports, below the directory; and whether it is missing
    because it is too long."""
    try:
        top, path = _link(tree_fd).rstrip(b"/"), _link(fd)
    except OSError as error:
        return None, error.errno == errno.ENAMETOOLONG
    if path.rstrip(b"/") == top:
        # ``/`` also stands for a file that was opened by its number and that has no known name.
        return (b"" if os.path.samestat(os.fstat(tree_fd), os.fstat(fd)) else None), False
    return (path[len(top) + 1 :] if path.startswith(top + b"/") else None), False


def _leads_to(tree_fd: int, path: bytes, fd: int) -> bool:
    try:
        with opened(open_beneath(tree_fd, path, os.O_PATH)) as found:
            return os.path.samestat(os.fstat(found), os.fstat(fd))
    except (OSError, ValueError):
        return False


def _looked_up(tree_fd: int, fd: int) -> bytes | None:
    """Return the path of a directory, found from its own name upwards. Raises OSError."""
    if not stat.S_ISDIR(os.fstat(fd).st_mode):
        return None
    top, entries, names = os.fstat(tree_fd), ENTRIES_MAX, list[bytes]()
    current = os.dup(fd)
    try:
        for _ in range(LEVELS_MAX):
            status = os.fstat(current)
            if names and os.path.samestat(status, top):
                return b"/".join(reversed(names))
            above = _told(tree_fd, current)[0] if names else None
            if above is not None:
                return b"/".join([above, *reversed(names)])
            parent = os.open("..", _WALK, dir_fd=current)
            os.close(current)
            current = parent
            name, entries = _name_of(status.st_ino, parent, entries)
            if name is None:
                return None
            names.append(name)
        return None
    finally:
        os.close(current)


def _name_of(ino: int, directory_fd: int, entries: int) -> tuple[bytes | None, int]:
    """Return a name of an inode in a directory, and how many of ``entries`` remain to be read."""
    with os.scandir(directory_fd) as found:
        for entry in found:
            if entries == 0:
                break
            entries -= 1
            if entry.inode() == ino:
                return os.fsencode(entry.name), entries
    return None, entries
