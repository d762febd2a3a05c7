"""Finding an inode by its number alone.

NFS clients use a handle of an inode's number and generation, also long after the kernel has
forgotten the inode, or with a new mount process. The kernel then asks for "." in that inode and
compares the generation of the answer. The file system below opens inodes by a handle of its own,
which can be made from the number: ext4 and btrfs take generation 0 for any, XFS reports it.
"""

import errno
import fcntl
import os
import struct

from dedupd import native

_INO32_GEN = 0x01
_XFS_INO64_GEN = 0x81
_BTRFS = 0x4D

_XFS_IOC_BULKSTAT = 0x8040_587F
_BULK_HEAD = struct.Struct("<QIIII40x")
_BULK_BYTES = 192
_BULK_GENERATION = struct.Struct("<I")
_BULK_GENERATION_AT = 64


def generation_of(handle: bytes | None) -> int:
    """The inode's generation: on ext4, XFS and btrfs the last four bytes of its handle."""
    return 0 if handle is None else int.from_bytes(handle[-4:], "little")


def open_number(root_fd: int, ino: int, flags: int) -> int:
    """Open the inode ``ino`` of the file system of ``root_fd``. Raises OSError (ESTALE)."""
    own = native.system.name_to_handle(root_fd)
    kind = int.from_bytes(own[:4], "little")
    if kind == _BTRFS:
        (subvolume,) = struct.unpack_from("<Q", own, 12)
        body = struct.pack("<QQI", ino, subvolume, 0)
    elif kind == _XFS_INO64_GEN:
        body = struct.pack("<QI", ino, _xfs_generation(root_fd, ino))
    elif kind == _INO32_GEN and ino < 1 << 32:
        body = struct.pack("<II", ino, 0)
    else:
        raise _stale()
    fd = native.system.open_by_handle(root_fd, own[:4] + body, flags)
    status = os.fstat(fd)
    if status.st_ino != ino or status.st_nlink == 0:
        os.close(fd)
        raise _stale()
    return fd


def _xfs_generation(fd: int, ino: int) -> int:
    buffer = bytearray(_BULK_HEAD.size + _BULK_BYTES)
    _BULK_HEAD.pack_into(buffer, 0, ino, 0, 1, 0, 0)
    fcntl.ioctl(fd, _XFS_IOC_BULKSTAT, buffer)
    (found,) = struct.unpack_from("<Q", buffer, _BULK_HEAD.size)
    if _BULK_HEAD.unpack_from(buffer)[3] != 1 or found != ino:
        raise _stale()
    (generation,) = _BULK_GENERATION.unpack_from(buffer, _BULK_HEAD.size + _BULK_GENERATION_AT)
    return int(generation)


def _stale() -> OSError:
    return OSError(errno.ESTALE, os.strerror(errno.ESTALE))
