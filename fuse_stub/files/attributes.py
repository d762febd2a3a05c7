"""The attributes of an inode as users see them."""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import pyfuse3

from dedupd_core import native

TIMEOUT_S = 3600.0
"""How long the kernel may keep names and attributes. All changes come through the mount, or are
reported to the kernel (commits and restores), so it could keep them for ever."""

_names_timeout_s = TIMEOUT_S

_line: native.mount.Line | None = None
"""There is one FUSE session in a process."""


def shown_blocks(mode: int, size: int, blocks: int) -> int:
    """The number of blocks that users see: at least one where the file has a length.

    Programs take a file without blocks for one hole, and do not read it: ``tar --sparse`` would
    archive zeros in place of a stub. ext4 reports files that lie within their inode in the same
    way.
    """
    return 1 if blocks == 0 and size > 0 and stat.S_ISREG(mode) else blocks


def entry(status: os.stat_result, ino: int, generation: int = 0) -> pyfuse3.EntryAttributes:
    """The kernel's form of ``status``, for the inode it knows as ``ino``."""
    attributes = pyfuse3.EntryAttributes()
    attributes.st_ino = ino
    attributes.generation = generation
    attributes.entry_timeout = _names_timeout_s
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


def ignore_case() -> None:
    """Keep the kernel from caching names: the file system below may ignore their case, and the
    kernel would not forget the other spellings of a name that is removed."""
    global _names_timeout_s
    _names_timeout_s = 0.0


def forget_attributes(ino: int) -> None:
    """Have the kernel ask again for an inode's attributes."""
    if _line is not None:
        # ENOENT: the kernel does not know the inode, and has nothing to forget.
        with suppress(OSError):
            _line.forget_attributes(ino)


@contextmanager
def unseen_step(inos: Sequence[int]) -> Iterator[None]:
    """For a block in which a job changes inodes and nothing that users see of them but the number
    of blocks: they keep their time of change for users as long as the kernel knows them.

    No two such blocks are of the same inode at a time.
    """
    line = _line
    if line is None:
        yield
        return
    line.begin_steps(inos)
    try:
        yield
    finally:
        with suppress(OSError):  # the mount has ended meanwhile
            line.end_steps(inos)


def tell_by(line: native.mount.Line | None) -> None:
    """The line to the kernel for what it is told unasked; None once there is none any more."""
    global _line
    _line = line
