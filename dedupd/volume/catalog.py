"""The catalogue: derived state in LMDB. Losing it costs history and progress, never data."""

import errno
import fcntl
import json
import os
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import lmdb

from dedupd import native
from dedupd.errors import CatalogUnusable
from dedupd.system.disk import Disk
from dedupd.system.files import UNREADABLE, opened, takes_no_changes

MAP_BYTES = 4 << 30
"""Address space, not memory or disk: LMDB grows its file as it needs."""

SPARE_BYTES = 1 << 20
"""Blocks that the catalogue has beyond its pages, so that it can be written on a full disk: enough
for the history of some hundred runs. They are there again once there is space."""

_DAMAGED = (lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.CorruptedError)
"""Errors of LMDB for files that it will never be able to use."""


_FLAGS = struct.Struct("@l")
_GET_FLAGS, _SET_FLAGS = 0x8008_6601, 0x4008_6602
_NO_COPY_ON_WRITE = 0x0080_0000


def catalogue_of(base: str) -> str:
    """The directory of the catalogue of the volume whose ``.dedupd`` is ``base``."""
    return os.path.join(base, "catalog")


class Catalog:
    """Job history, totals and checkpoints of one volume. All errors are CatalogUnusable.

    Open for a moment only: meanwhile no other process or thread can open it.
    """

    def __init__(self, directory: str) -> None:
        """Open it; a damaged catalogue is replaced by an empty one."""
        self._where = directory
        with self._errors(), ExitStack() as on_failure:
            os.makedirs(directory, mode=0o700, exist_ok=True)
            self._fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            on_failure.callback(os.close, self._fd)
            # Not LMDB's own lock: it is a map that LMDB writes to, and where a full disk has no
            # block for a page of it (btrfs takes a new one each time), the process is killed.
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            try:
                self._env = _open(directory)
            except _DAMAGED:
                for name in os.listdir(self._fd):
                    os.unlink(name, dir_fd=self._fd)
                self._env = _open(directory)
            on_failure.pop_all()

    def close(self) -> None:
        self._env.close()
        os.close(self._fd)

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

    def latest(self, prefix: str, count: int, end: str = "") -> list[Any]:
        """The last ``count`` values whose keys begin with ``prefix``, newest first; with ``end``,
        of the keys before that one."""
        found: list[Any] = []
        start = prefix.encode()
        after = end.encode() or start + b"\xff"
        with self._errors(), self._env.begin() as transaction, transaction.cursor() as cursor:
            valid = cursor.prev() if cursor.set_range(after) else cursor.last()
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
    path = os.path.join(directory, "data.mdb")
    with suppress(FileExistsError):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with opened(fd):
            _write_in_place(fd)
    _check(path)
    reads_only = takes_no_changes(path)  # what it has can be read there
    environment = lmdb.open(
        directory, map_size=MAP_BYTES, lock=False, mode=0o600, readonly=reads_only
    )
    if not reads_only:
        pages = environment.info()["last_pgno"] + 1
        _spare(path, pages * environment.stat()["psize"])
    return environment


def _write_in_place(fd: int) -> None:
    """Have an empty file keep its blocks where the file system would take new ones for each write
    (btrfs): a full disk has none."""
    flags = bytearray(_FLAGS.size)
    try:
        fcntl.ioctl(fd, _GET_FLAGS, flags)
        (value,) = _FLAGS.unpack(flags)
        fcntl.ioctl(fd, _SET_FLAGS, _FLAGS.pack(value | _NO_COPY_ON_WRITE))
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL):
            raise


def _spare(path: str, used_bytes: int) -> None:
    """Have some blocks behind the pages in use, as long as the disk has any."""
    with opened(os.open(path, os.O_RDWR | os.O_CLOEXEC)) as fd:
        if os.fstat(fd).st_blocks * 512 >= used_bytes + SPARE_BYTES // 2:
            return
        with suppress(OSError):
            Disk().allocate(fd, 0, used_bytes + SPARE_BYTES)


def _check(path: str) -> None:
    """Refuse what LMDB would end the process for: a page that the disk cannot give, and pages that
    are not what they should be. There are few: the catalogue takes some megabytes, which the page
    cache has."""
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
        raise lmdb.CorruptedError("the disk cannot read it") from error
    if data and not native.system.lmdb_is_sound(data):
        raise lmdb.CorruptedError("its pages are damaged")
