"""The files of a store's secret: two copies, in different directories (docs/design/format.md,
"Seeds")."""

import os
from contextlib import suppress

from dedupd_core.errors import Damaged, NoSpace
from dedupd_core.failpoint import define, reach
from dedupd_core.format.store_secret import KEY_BYTES, StoreSecret
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import opened, read_file

SECRET_FILE = b"secret.json"
DIRECTORIES = (b"store", b"store/copies")

_FIRST = define("seeds.first-copy", "the first copy of a store's secret is durable")


def new_secret() -> StoreSecret:
    """Return a secret that has never been used."""
    return StoreSecret((os.urandom(KEY_BYTES),))


def rotate_secret(base_fd: int, disk: Disk) -> StoreSecret:
    """Give the secret of a store a new key, which makes the seeds from now on, durably.

    Raises NoSpace, OSError.
    """
    secret = (read_secret(base_fd) or new_secret()).rotated(os.urandom(KEY_BYTES))
    keep_secret(base_fd, secret, disk)
    return secret


def read_secret(base_fd: int) -> StoreSecret | None:
    """Read the secret of the store in the directory of a descriptor; None if no copy can be read.

    Raises OSError.
    """
    copies = [_read(base_fd, directory) for directory in DIRECTORIES]
    # A rotation adds a key: the copy with more keys is the newer one.
    return max(filter(None, copies), key=lambda secret: len(secret.keys), default=None)


def keep_secret(base_fd: int, secret: StoreSecret, disk: Disk) -> None:
    """Write both copies of a secret, durably, if they differ. Raises NoSpace, OSError."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
    for directory in DIRECTORIES:
        if _read(base_fd, directory) == secret:
            continue
        with opened(os.open(directory, flags, dir_fd=base_fd)) as fd:
            disk.replace_file(fd, SECRET_FILE, secret.to_json())
        reach(_FIRST)


def made_secret(base_fd: int, disk: Disk) -> StoreSecret:
    """Return the secret of a store, and repair its copies; a store without a secret gets one.

    On a full disk the secret may exist in memory only. That is safe: each container keeps the seed
    that was made from it. Raises OSError.
    """
    secret = read_secret(base_fd) or new_secret()
    with suppress(NoSpace, FileNotFoundError):
        keep_secret(base_fd, secret, disk)
    return secret


def _read(base_fd: int, directory: bytes) -> StoreSecret | None:
    path = directory + b"/" + SECRET_FILE
    try:
        return StoreSecret.from_json(read_file(base_fd, path), path.decode())
    except (FileNotFoundError, Damaged):
        return None
