"""The kernel's newer system calls for mounts, used to replace a dead mount without a gap.

If the dead mount was removed first, users would see the directory below for a moment: empty, and
open to their writes. A mirror program that runs then would delete its copy of all files. The newer
calls avoid this: a file system is mounted detached (fsopen, fsconfig, fsmount), and moved beneath
the dead mount (move_mount, Linux 6.5). It appears when the dead mount is detached. For root only.
"""

import ctypes
import errno
import os
import struct
from collections.abc import Mapping

from dedupd_core.system.files import opened

_OPEN_TREE, _MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT = 428, 429, 430, 431, 432
_MOUNT_SETATTR = 442
"""System calls; the numbers are equal on all architectures of Python 3.11 except Alpha."""

_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_OPEN_TREE_CLONE = 1
_CLOEXEC = 1
"""The flag of both fsopen and fsmount."""
_SET_FLAG, _SET_STRING, _CREATE = 0, 1, 6
_FROM_EMPTY_PATH, BENEATH = 0x4, 0x200
_PUTS_BENEATH = (6, 5)
_DETACH, _NO_FOLLOW = 2, 8
_REMOUNT = 32

ATTRIBUTES = {"nosuid": 0x2, "nodev": 0x4, "noexec": 0x8}
"""Options that belong to the mount and not to its file system."""

READ_ONLY = 0x1
RELATIVE_TIMES, NO_TIMES, ALL_TIMES, ANY_TIMES = 0x0, 0x10, 0x20, 0x70
NO_DIRECTORY_TIMES = 0x80
NO_LINKS = 0x20_0000
"""Further attributes of a mount. One of the first three applies; the fourth is their mask."""

_libc = ctypes.CDLL(None, use_errno=True)


def uncovered(path: str) -> int:
    """Open the directory at ``path`` that a mount covers there; the caller closes the descriptor.

    Raises OSError.
    """
    parent, name = os.path.split(os.path.abspath(path))
    # A copy of the mount that contains the parent, without the mounts on top.
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC
    with opened(_call(_OPEN_TREE, _AT_FDCWD, os.fsencode(parent), flags)) as tree:
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=tree)


def private_mount(fd: int) -> int:
    """Mount the directory ``fd`` at no place: only files opened through this mount are in it.

    It exists until the caller closes it. Raises OSError.
    """
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_EMPTY_PATH
    return _call(_OPEN_TREE, fd, b"", flags)


def set_attributes(mount: int | str, attributes: int, mask: int) -> None:
    """Set the attributes of a mount (its descriptor or mount point) that are in ``mask``. Linux
    5.12. Raises OSError."""
    values = ctypes.create_string_buffer(struct.pack("=4Q", attributes, mask, 0, 0), 32)
    if isinstance(mount, int):
        _call(_MOUNT_SETATTR, mount, b"", _AT_EMPTY_PATH, values, len(values))
    else:
        _call(_MOUNT_SETATTR, _AT_FDCWD, os.fsencode(mount), 0, values, len(values))


def remount(point: str, flags: int) -> None:
    """Set the ``MS_`` flags of mount(2) for the mount at ``point`` and its file system. Raises
    OSError."""
    if _libc.mount(None, os.fsencode(point), None, ctypes.c_ulong(_REMOUNT | flags), None) < 0:
        raise _error(point)


def new_mount(device_fd: int, options: Mapping[str, str]) -> int:
    """Mount a FUSE file system on an open ``/dev/fuse``, without a place yet; the caller closes it.

    ``options``: those of fuse(4), and those in ``ATTRIBUTES``; an empty value means a flag. Raises
    OSError.
    """
    with opened(_call(_FSOPEN, b"fuse", _CLOEXEC)) as context:
        attributes = 0
        for name, value in {**options, "fd": str(device_fd)}.items():
            if name in ATTRIBUTES:
                attributes |= ATTRIBUTES[name]
            elif value:
                _call(_FSCONFIG, context, _SET_STRING, name.encode(), os.fsencode(value), 0)
            else:
                _call(_FSCONFIG, context, _SET_FLAG, name.encode(), None, 0)
        _call(_FSCONFIG, context, _CREATE, None, None, 0)
        return _call(_FSMOUNT, context, _CLOEXEC, attributes)


def replaces_without_gap() -> bool:
    """Return whether the kernel can put a mount beneath another one (Linux 6.5)."""
    major, _, rest = os.uname().release.partition(".")
    minor = rest.partition(".")[0]
    return major.isdecimal() and minor.isdecimal() and (int(major), int(minor)) >= _PUTS_BENEATH


def replace(mount_fd: int, point: str) -> None:
    """Replace the uppermost mount at ``point``. Raises OSError.

    Before Linux 6.5 the directory below is visible for some microseconds.
    """
    target = os.fsencode(point)
    try:
        _call(_MOVE_MOUNT, mount_fd, b"", _AT_FDCWD, target, _FROM_EMPTY_PATH | BENEATH)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        detach(point)
        _call(_MOVE_MOUNT, mount_fd, b"", _AT_FDCWD, target, _FROM_EMPTY_PATH)
    else:
        detach(point)


def attach(mount_fd: int, point: str) -> None:
    """Put a mount in its place, on top of existing mounts. Raises OSError."""
    _call(_MOVE_MOUNT, mount_fd, b"", _AT_FDCWD, os.fsencode(point), _FROM_EMPTY_PATH)


def detach(point: str) -> None:
    """Detach the uppermost mount at ``point``; files that are open in it stay open."""
    if _libc.umount2(os.fsencode(point), _DETACH | _NO_FOLLOW) < 0:
        raise _error(point)


def _call(number: int, *arguments: "int | bytes | ctypes.Array[ctypes.c_char] | None") -> int:
    passed = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result: int = _libc.syscall(ctypes.c_long(number), *passed)
    if result < 0:
        raise _error()
    return result


def _error(*where: str) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code), *where)
