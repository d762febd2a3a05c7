"""What users see of an inode's attributes."""

import os
import stat
from contextlib import suppress

import pyfuse3

TIMEOUT_S = 3600.0
"""How long the kernel may believe names and attributes. Everything that changes them comes through
the mount, or is told to the kernel (commits and restores), so this could be for ever."""

_TRUSTED = b"trusted."
POSIX_ACL_DEFAULT = b"system.posix_acl_default"
POSIX_ACL_ACCESS = b"system.posix_acl_access"


def shown_blocks(mode: int, size: int, blocks: int) -> int:
    """The blocks that users see. A file that has a length has one at least.

    Where there is none, programs take a file for nothing but a hole, and do not read it: ``tar
    --sparse`` would archive zeros in place of a stub. ext4 tells of files within their inode, which
    have no block either, in the same way.
    """
    return 1 if blocks == 0 and size > 0 and stat.S_ISREG(mode) else blocks


def entry(status: os.stat_result, ino: int, generation: int = 0) -> pyfuse3.EntryAttributes:
    """The kernel's form of ``status``, for the inode it knows as ``ino``."""
    attributes = pyfuse3.EntryAttributes()
    attributes.st_ino = ino
    attributes.generation = generation
    attributes.entry_timeout = TIMEOUT_S
    attributes.attr_timeout = TIMEOUT_S
    attributes.st_mode = status.st_mode
    attributes.st_nlink = status.st_nlink
    attributes.st_uid = status.st_uid
    attributes.st_gid = status.st_gid
    attributes.st_rdev = status.st_rdev
    attributes.st_size = status.st_size
    attributes.st_blksize = status.st_blksize
    attributes.st_blocks = shown_blocks(status.st_mode, status.st_size, status.st_blocks)
    attributes.st_atime_ns = status.st_atime_ns
    attributes.st_mtime_ns = status.st_mtime_ns
    attributes.st_ctime_ns = status.st_ctime_ns
    return attributes


Looked = tuple[
    tuple[int, int, bytes],
    tuple[int, int, int, int, int],
    tuple[int, int, int],
    tuple[int, int, int],
]
"""What :func:`dedupd.native.system.look_up` tells of a name."""


def looked(found: Looked, generation: int) -> pyfuse3.EntryAttributes:
    """The kernel's form of what was looked up."""
    attributes = pyfuse3.EntryAttributes()
    attributes.st_ino = found[0][0]
    attributes.generation = generation
    attributes.entry_timeout = attributes.attr_timeout = TIMEOUT_S
    (
        attributes.st_mode,
        attributes.st_nlink,
        attributes.st_uid,
        attributes.st_gid,
        attributes.st_rdev,
    ) = found[1]
    size, attributes.st_blksize, blocks = found[2]
    attributes.st_size = size
    attributes.st_blocks = shown_blocks(found[1][0], size, blocks)
    attributes.st_atime_ns, attributes.st_mtime_ns, attributes.st_ctime_ns = found[3]
    return attributes


def absent() -> pyfuse3.EntryAttributes:
    """The answer that there is no such name, which the kernel may remember."""
    attributes = pyfuse3.EntryAttributes()
    attributes.st_ino = 0
    attributes.entry_timeout = TIMEOUT_S
    return attributes


def forget_attributes(ino: int) -> None:
    """Have the kernel ask again for an inode's attributes."""
    # Where it does not know the inode (ENOENT), it has nothing to forget.
    with suppress(OSError):
        pyfuse3.invalidate_inode(pyfuse3.InodeT(ino), attr_only=True)


def visible(names: list[bytes], reserved: bytes, uid: int) -> list[bytes]:
    """The extended attributes that a user may know of."""
    return [
        name for name in names if name != reserved and (uid == 0 or not name.startswith(_TRUSTED))
    ]
