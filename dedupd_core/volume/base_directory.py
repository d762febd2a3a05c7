"""The ``.dedupd`` of a directory: whether it makes that a volume, or a user has forged it."""

import os
from collections.abc import Callable
from contextlib import suppress

from dedupd_core.stores.ownership import is_trusted
from dedupd_core.system.files import is_there, opened

BASE_NAME = ".dedupd"
VOLUME_FILE = b"volume.json"

ENABLING = b"enabling"
DISABLING = b"disabling"


def open_base(root_fd: int) -> int:
    """A descriptor of the ``.dedupd`` of a directory, which is no link. Raises OSError."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(BASE_NAME, flags, dir_fd=root_fd)


def has_own_base(directory: str) -> bool:
    """Return whether a directory has a ``.dedupd`` of root or of this user."""
    return _has_base(directory, is_trusted)


def is_volume(directory: str) -> bool:
    """Return whether a directory is a volume of root or of this user that is not mounted.

    Any user can make ``.dedupd/volume.json`` in a directory of their own. Such a forgery is none,
    and neither is a link. A volume that is being enabled or disabled is one.
    """
    return _has_base(directory, lambda base_fd: is_trusted(base_fd) and _says_volume(base_fd))


def looks_like_volume(directory: str) -> bool:
    """Return whether a directory would be a volume if it belonged to root or this user."""
    return _has_base(directory, _says_volume)


def _says_volume(base_fd: int) -> bool:
    return any(is_there(base_fd, name) for name in (VOLUME_FILE, ENABLING, DISABLING))


def _has_base(directory: str, accepts: Callable[[int], bool]) -> bool:
    with suppress(OSError):
        root_fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        with opened(root_fd), opened(open_base(root_fd)) as base_fd:
            return accepts(base_fd)
    return False
