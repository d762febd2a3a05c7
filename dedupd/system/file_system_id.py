"""The identity of a file system: the same for its snapshots and block by block copies."""

import fcntl
import os
import struct

from dedupd import native

_EXT4_MAGIC, _XFS_MAGIC, _BTRFS_MAGIC = 0xEF53, 0x5846_5342, 0x9123_683E

_XFS_GEOMETRY = 0x8100_587E
_XFS_GEOMETRY_BYTES = 256
_XFS_UUID = slice(64, 80)

_BTRFS_INFO = 0x8400_941F
_BTRFS_INFO_BYTES = 1024
_BTRFS_FLAGS_AT = 48
_BTRFS_UUID = slice(16, 32)
_BTRFS_METADATA_UUID = slice(64, 80)
_BTRFS_ASK_METADATA_UUID = 4


def file_system_id(fd: int) -> str:
    """Name and number of the file system of ``fd``, the same with every kernel.

    XFS and btrfs say their uuid, ext4 a number made of it. Of btrfs it is the uuid in its metadata:
    the other one is made up where two copies are mounted at once. Raises OSError.
    """
    kind = native.system.file_system_type(fd)
    if kind == _XFS_MAGIC:
        return f"xfs:{_ioctl(fd, _XFS_GEOMETRY, bytearray(_XFS_GEOMETRY_BYTES))[_XFS_UUID].hex()}"
    if kind == _BTRFS_MAGIC:
        return f"btrfs:{_btrfs_uuid(fd).hex()}"
    name = "ext4" if kind == _EXT4_MAGIC else f"{kind:x}"
    return f"{name}:{os.fstatvfs(fd).f_fsid & 0xFFFF_FFFF_FFFF_FFFF:016x}"


def _btrfs_uuid(fd: int) -> bytes:
    asked = bytearray(_BTRFS_INFO_BYTES)
    struct.pack_into("<Q", asked, _BTRFS_FLAGS_AT, _BTRFS_ASK_METADATA_UUID)
    info = _ioctl(fd, _BTRFS_INFO, asked)
    (flags,) = struct.unpack_from("<Q", info, _BTRFS_FLAGS_AT)
    return info[_BTRFS_METADATA_UUID if flags & _BTRFS_ASK_METADATA_UUID else _BTRFS_UUID]


def _ioctl(fd: int, request: int, buffer: bytearray) -> bytes:
    fcntl.ioctl(fd, request, buffer)
    return bytes(buffer)
