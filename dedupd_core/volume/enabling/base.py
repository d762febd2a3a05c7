"""The ``.dedupd`` of a volume: its name, which no entry at the top of the tree may have, its owner,
and the lock of ``enable`` and ``disable``."""

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from dedupd_core.errors import Busy, NotAVolume, UsageError
from dedupd_core.stores.ownership import refuse_strangers
from dedupd_core.system import mount_table
from dedupd_core.system.file_system import file_system_of
from dedupd_core.system.files import locked, opened
from dedupd_core.system.paths import show_path
from dedupd_core.volume.base_directory import BASE_NAME, open_base

RESERVED_NAME = BASE_NAME.encode()
"""At the top of the tree: ``disable`` moves the entries there to where ``.dedupd`` is."""

RESERVED = f"dedupd reserves the name {BASE_NAME} at the top of a volume"

EXT4_ROOT_INODE = 2
"""Of each ext4, ext3 and ext2."""


def is_reserved(path: bytes) -> bool:
    """Return whether a path within the tree is, or lies below, the reserved name."""
    return path == RESERVED_NAME or path.startswith(RESERVED_NAME + b"/")


def refuse_reserved(path: bytes) -> None:
    """Raise UsageError if a path within the tree is, or lies below, the reserved name."""
    if is_reserved(path):
        raise UsageError(f"{show_path(path)}: {RESERVED}; choose another name or folder")


def left_in_place(root_fd: int) -> frozenset[bytes]:
    """Entries of a directory that do not move when it becomes a volume.

    ``lost+found`` is the file system's own at the root of ext4 alone. Elsewhere it is a file like
    others, which users can make.
    """
    is_ext_root = os.fstat(root_fd).st_ino == EXT4_ROOT_INODE and file_system_of(root_fd).is_ext
    return frozenset((RESERVED_NAME, b"lost+found") if is_ext_root else (RESERVED_NAME,))


def is_no_directory(error: OSError) -> bool:
    """Return whether :func:`open_base` has found something that is no directory."""
    return error.errno in (errno.ENOTDIR, errno.ELOOP)


@contextmanager
def base_lock(root_fd: int, path: str) -> Iterator[int]:
    """Hold the right to enable and to disable a directory. Yields its ``.dedupd``, open.

    The lock is the ``flock`` of that directory, which other users cannot open. Raises Busy,
    UsageError where another user owns ``.dedupd``, FileNotFoundError where it does not exist or has
    just been removed, and OSError where it is no directory.
    """
    with opened(open_base(root_fd)) as base_fd:
        refuse_strangers(base_fd, os.path.join(path, BASE_NAME))
        busy = f"{path}: another `dedupd enable` or `dedupd disable` is in progress; wait for it"
        with locked(base_fd, busy):
            now = os.stat(RESERVED_NAME, dir_fd=root_fd, follow_symlinks=False)
            if not os.path.samestat(now, os.fstat(base_fd)):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), BASE_NAME)
            yield base_fd


@dataclass(frozen=True, slots=True)
class LockedBase:
    """A directory that is, or was, a volume, and whose lock of enabling and disabling is held."""

    path: str
    root: str
    root_fd: int
    base_fd: int


@contextmanager
def held_to_disable(path: str) -> Iterator[LockedBase]:
    """Hold the right to disable the volume ``path``, and to enable it.

    Raises NotAVolume, UsageError where ``.dedupd`` is another user's, Busy.
    """
    root = os.path.realpath(path)
    if mount_table.find(root) is not None:
        raise Busy(f"{path}: unmount the volume first: `dedupd umount {path}`")
    with ExitStack() as stack:
        try:
            root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.enter_context(opened(root_fd))
            base_fd = stack.enter_context(base_lock(root_fd, path))
        except OSError as error:
            if error.errno != errno.ENOENT and not is_no_directory(error):
                raise
            raise NotAVolume(f"{path}: not a volume") from None
        yield LockedBase(path, root, root_fd, base_fd)
