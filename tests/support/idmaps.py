"""Idmapped mounts: a directory, seen with other owners."""

import ctypes
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dedupd_core.system.files import opened

_LIBC = ctypes.CDLL(None, use_errno=True)

OPEN_TREE, MOVE_MOUNT, MOUNT_SETATTR = 428, 429, 442
"""Numbers of system calls, the same on all architectures but alpha."""

_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_F_EMPTY_PATH = 4
_AT_FDCWD, _AT_EMPTY_PATH = -100, 0x1000
_MOUNT_ATTR_IDMAP = 0x0010_0000


class _MountAttributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns_fd")]


def system_call(number: int, *arguments: object) -> int:
    """Make a system call by its number. Raises OSError."""
    result = int(_LIBC.syscall(number, *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


@contextmanager
def _user_namespace(below: int, seen: int, count: int) -> Iterator[int]:
    """A descriptor of a user namespace that maps users and groups so."""
    holder = subprocess.Popen(["unshare", "--user", "sleep", "infinity"], start_new_session=True)
    try:
        path = Path(f"/proc/{holder.pid}")
        own = os.readlink("/proc/self/ns/user")
        while os.readlink(path / "ns/user") == own:
            assert holder.poll() is None, "there are no user namespaces"
        for name in ("uid_map", "gid_map"):
            (path / name).write_text(f"{below} {seen} {count}")
        with opened(os.open(path / "ns/user", os.O_RDONLY | os.O_CLOEXEC)) as fd:
            yield fd
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()


@contextmanager
def idmapped(source: Path, target: Path, below: int, seen: int, count: int) -> Iterator[Path]:
    """Show a directory at ``target``: ``count`` users and groups from ``below`` on, as they are in
    the file system, are those from ``seen`` on there. Raises OSError (EINVAL where the file system
    does not allow it)."""
    with _user_namespace(below, seen, count) as userns_fd:
        fd = system_call(OPEN_TREE, _AT_FDCWD, os.fsencode(source), _OPEN_TREE_CLONE | os.O_CLOEXEC)
        with opened(fd):
            attributes = _MountAttributes(set=_MOUNT_ATTR_IDMAP, userns_fd=userns_fd)
            size = ctypes.c_size_t(ctypes.sizeof(attributes))
            system_call(MOUNT_SETATTR, fd, b"", _AT_EMPTY_PATH, ctypes.byref(attributes), size)
            at = (_AT_FDCWD, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH)
            system_call(MOVE_MOUNT, fd, b"", *at)
    try:
        yield target
    finally:
        subprocess.run(["umount", "--lazy", target], check=True)
