"""The catalogue: derived state in LMDB. Losing it costs history and progress, never data."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import lmdb

from dedupd.errors import CatalogUnusable
from dedupd.system.files import is_readable, opened

MAP_BYTES = 4 << 30
"""Address space, not memory or disk: LMDB grows its file as it needs."""

LOCK_BYTES = 8192
"""The size of LMDB's lock file: a header, and a cache line for each of 64 readers."""

_DAMAGED = (lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.CorruptedError)
"""Errors of LMDB for files that it will never be able to use."""


def catalogue_of(base: str) -> str:
    """The directory of the catalogue of the volume whose ``.dedupd`` is ``base``."""
    return os.path.join(base, "catalog")


class Catalog:
    """Job history, totals and checkpoints of one volume. All errors are CatalogUnusable."""

    def __init__(self, directory: str) -> None:
        """Open it; a damaged catalogue is replaced by an empty one."""
        self._where = directory
        with self._errors():
            os.makedirs(directory, mode=0o700, exist_ok=True)
            try:
                self._env = _open(directory)
            except _DAMAGED:
                import shutil

                shutil.rmtree(directory)
                os.makedirs(directory, mode=0o700)
                self._env = _open(directory)

    def close(self) -> None:
        self._env.close()

    def __enter__(self) -> "Catalog":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def put(self, key: str, value: Any) -> None:
        """Store a JSON value, durably."""
        with self._errors(), self._env.begin(write=True) as transaction:
            transaction.put(key.encode(), json.dumps(value).encode())

    def get(self, key: str) -> Any:
        """The value of a key, or None."""
        with self._errors(), self._env.begin() as transaction:
            raw = transaction.get(key.encode())
        return None if raw is None else _decoded(raw)

    def delete(self, key: str) -> None:
        with self._errors(), self._env.begin(write=True) as transaction:
            transaction.delete(key.encode())

    def delete_all(self, prefix: str) -> None:
        """Delete every key that begins with ``prefix``."""
        start = prefix.encode()
        with (
            self._errors(),
            self._env.begin(write=True) as transaction,
            transaction.cursor() as cursor,
        ):
            valid = cursor.set_range(start)
            while valid and cursor.key().startswith(start):
                valid = cursor.delete()

    def latest(self, prefix: str, count: int) -> list[Any]:
        """The last ``count`` values whose keys begin with ``prefix``, newest first."""
        found: list[Any] = []
        start = prefix.encode()
        with self._errors(), self._env.begin() as transaction, transaction.cursor() as cursor:
            valid = cursor.prev() if cursor.set_range(start + b"\xff") else cursor.last()
            while valid and len(found) < count and cursor.key().startswith(start):
                value = _decoded(cursor.value())
                if value is not None:
                    found.append(value)
                valid = cursor.prev()
        return found

    def keep_latest(self, prefix: str, count: int) -> None:
        """Delete all but the last ``count`` keys that begin with ``prefix``."""
        start = prefix.encode()
        with (
            self._errors(),
            self._env.begin(write=True) as transaction,
            transaction.cursor() as cursor,
        ):
            valid = cursor.prev() if cursor.set_range(start + b"\xff") else cursor.last()
            while valid and count > 0 and cursor.key().startswith(start):
                count -= 1
                valid = cursor.prev()
            while valid and cursor.key().startswith(start):
                cursor.delete()  # leaves the cursor at the key after it
                valid = cursor.prev()

    def is_empty(self) -> bool:
        """Whether there is nothing in it, as in a new one."""
        with self._errors(), self._env.begin() as transaction:
            return not transaction.stat()["entries"]

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (lmdb.Error, OSError) as error:
            raise CatalogUnusable(
                f"{self._where}: the catalogue cannot be used now ({error}); it may be deleted"
                " while no job runs, and costs no data"
            ) from error


def _decoded(raw: bytes) -> Any:
    """The value, or None where its bytes are damaged: LMDB keeps no checksums."""
    try:
        return json.loads(raw)
    except ValueError:
        return None


def _open(directory: str) -> lmdb.Environment:
    _allocate(os.path.join(directory, "lock.mdb"))
    _check_readable(os.path.join(directory, "data.mdb"))
    environment = lmdb.open(directory, map_size=MAP_BYTES, max_readers=64, mode=0o600)
    needed = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    if os.path.getsize(os.path.join(directory, "data.mdb")) < needed:
        # Pages that are missing at its end would kill the process that touches them.
        environment.close()
        raise lmdb.CorruptedError("cut short")
    return environment


def _check_readable(path: str) -> None:
    """A page that the disk cannot give would kill the process that touches it. There are few: the
    catalogue takes some megabytes, which the page cache has."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    with opened(fd):
        if not is_readable(fd, 0, os.fstat(fd).st_size):
            raise lmdb.CorruptedError("the disk cannot read it")


def _allocate(path: str) -> None:
    """Make a file of readers whose blocks are there: LMDB maps it into memory and writes to it,
    and a block that a full disk cannot give would kill the process."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, LOCK_BYTES)
    finally:
        os.close(fd)
