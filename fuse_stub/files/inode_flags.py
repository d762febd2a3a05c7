"""Flags of inodes, as ``lsattr`` shows and ``chattr`` sets them: those of the file system below."""

import errno
import fcntl
import os
import struct

from dedupd import native
from dedupd.system.files import opened

IMMUTABLE, APPEND_ONLY = 0x10, 0x20
PROTECTING = IMMUTABLE | APPEND_ONLY
"""With these no file can be opened for writing any more."""

_SETTABLE = PROTECTING | sum(
    (
        0x1,  # removed securely
        0x2,  # to be had back
        0x4,  # compressed
        0x8,  # synced
        0x40,  # not dumped
        0x80,  # without access times
        0x400,  # not compressed
        0x8000,  # without tails
        0x1_0000,  # directories synced
        0x2_0000,  # top of a hierarchy
        0x80_0000,  # without copy on write
        0x2000_0000,  # the project of the directory
    )
)
"""Not among them: upper and lower case the same (the kernel keeps names of the mount apart), and
data in the journal (docs/crash-safety.md says nothing of it)."""

_FLAGS = struct.Struct("<I")


def read_flags(path: bytes, command: int, length: int) -> bytes:
    """The answer to an ioctl, of a ``length``, by which flags are asked for. Raises OSError."""
    with opened(_open(path)) as fd:
        answer = bytearray(max(length, 8))
        fcntl.ioctl(fd, command, answer)
        return bytes(answer[:length])


def set_flags(path: bytes, data: bytes) -> int:
    """Set the flags in ``data``; returns them. Raises OSError."""
    (flags,) = _FLAGS.unpack_from(data)
    with opened(_open(path)) as fd:
        answer = bytearray(8)
        fcntl.ioctl(fd, native.mount.GET_FLAGS, answer)
        (before,) = _FLAGS.unpack_from(answer)
        if (before ^ flags) & ~_SETTABLE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        fcntl.ioctl(fd, native.mount.SET_FLAGS, _FLAGS.pack(flags) + bytes(4))
    return int(flags)


def _open(path: bytes) -> int:
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
