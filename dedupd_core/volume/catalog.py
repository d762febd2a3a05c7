"""The catalogue: derived state in LMDB. Losing it costs history and progress, never data."""

import errno
import fcntl
import json
import mmap
import os
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import cycle
from typing import Any, Self

import lmdb

from dedupd_core import native
from dedupd_core.config.room import INODES_RESERVED
from dedupd_core.errors import CatalogUnusable
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import UNREADABLE, free_inodes, opened, read_at, why_full
from dedupd_core.system.paths import shown_place

MAP_BYTES = 4 << 30
"""Address space, not memory or disk: LMDB grows its file as it needs."""

SPARE_BYTES = 1 << 20
"""Blocks that the catalogue has beyond its pages, so that it can be written on a full disk: enough
for the history of some hundred runs. They are there again once there is space."""

_DATA = "data.mdb"
_HEADER_BYTES = 2 * mmap.PAGESIZE
"""LMDB has two header pages, and writes them in turn."""
_SNAPSHOT_S = 10.0
"""For a copy while others write: each of their transactions takes a sync, a copy a millisecond."""
_SNAPSHOT_PAUSES_S = (0.0, 0.0003, 0.0011, 0.0027)
"""Between attempts, in turn: so that these do not keep step with a writer."""

_DAMAGED = (lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.CorruptedError)
"""Errors of LMDB for files that it will never be able to use."""


_FLAGS = struct.Struct("@l")
_GET_FLAGS, _SET_FLAGS = 0x8008_6601, 0x4008_6602
_NO_COPY_ON_WRITE = 0x0080_0000


def catalogue_of(base: str) -> str:
    """The directory of the catalogue of the volume whose ``.dedupd`` is ``base``."""
    return os.path.join(base, "catalog")


class Catalogue:
    """What a catalogue keeps, to be read: job history, totals and checkpoints of one volume. All
    errors are CatalogUnusable.

    It is read from a copy in memory. No lock is needed and nothing is written below, so that a
    command can show the history of a file system that is frozen, full or read-only. A catalogue
    that is missing or damaged reads as an empty one.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._env: lmdb.Environment | None = None
        with self._errors(), suppress(*_DAMAGED):
            data = _snapshot(os.path.join(directory, _DATA))
            self._env = _in_memory(data) if data else None

    def close(self) -> None:
        if self._env is not None:
            self._env.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def get(self, key: str) -> Any:
        """The value of a key, or None."""
        if self._env is None:
            return None
        with self._errors(), self._env.begin() as transaction:
            raw = transaction.get(key.encode())
        return None if raw is None else _decoded(raw)

    def latest(self, prefix: str, count: int, end: str = "") -> list[Any]:
        """The last ``count`` values whose keys begin with ``prefix``, newest first; with ``end``,
        of the keys before that one."""
        found: list[Any] = []
        start = prefix.encode()
        after = end.encode() or start + b"\xff"
        if self._env is None:
            return found
        with self._errors(), self._env.begin() as transaction, transaction.cursor() as cursor:
            valid = cursor.prev() if cursor.set_range(after) else cursor.last()
            while valid and len(found) < count and cursor.key().startswith(start):
                value = _decoded(cursor.value())
                if value is not None:
                    found.append(value)
                valid = cursor.prev()
        return found

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (lmdb.Error, OSError) as error:
            raise CatalogUnusable(
                f"{shown_place(self._directory)}: the catalogue cannot be used now"
                f" ({self._reason(error)}); you can delete it while no job runs, without loss of"
                " data"
            ) from error

    def _reason(self, error: OSError | lmdb.Error) -> str:
        """An error without the path that it names: that may lead through a descriptor."""
        if not isinstance(error, OSError):
            return str(error).rpartition(": ")[2]
        if error.errno == errno.ENOSPC:
            return why_full(os.path.dirname(self._directory))
        return error.strerror or str(error)


class Catalog(Catalogue):
    """A catalogue to be written to. Open for a moment only: other processes and threads wait."""

    _env: lmdb.Environment

    def __init__(self, directory: str) -> None:
        """Open it; a missing or damaged catalogue is replaced by an empty one."""
        self._directory = directory
        with self._errors(), ExitStack() as on_failure:
            _leave_inodes(directory)
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
        super().close()
        os.close(self._fd)

    def put(self, key: str, value: Any) -> None:
        """Store a JSON value, durably."""
        with self._errors(), self._env.begin(write=True) as transaction:
            transaction.put(key.encode(), json.dumps(value).encode())

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


def _decoded(raw: bytes) -> Any:
    """The value, or None where its bytes are damaged: LMDB keeps no checksums."""
    try:
        return json.loads(raw)
    except ValueError:
        return None


def _leave_inodes(directory: str) -> None:
    """Raise CatalogUnusable if there is no catalogue yet, and its inodes are reserved for users."""
    left = None
    if not os.path.exists(os.path.join(directory, _DATA)):
        left = free_inodes(os.path.dirname(directory))
    if left is not None and left < INODES_RESERVED:
        raise CatalogUnusable(
            f"{shown_place(directory)}: the catalogue cannot be created: {left} inodes are free,"
            f" and {INODES_RESERVED} are reserved for users; delete files"
        )


def _open(directory: str) -> lmdb.Environment:
    path = os.path.join(directory, _DATA)
    with suppress(FileExistsError):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with opened(fd):
            _write_in_place(fd)
    with opened(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as fd:
        _require_sound(_content(fd))
    environment = lmdb.open(directory, map_size=MAP_BYTES, lock=False, mode=0o600)
    pages = environment.info()["last_pgno"] + 1
    _spare(path, pages * environment.stat()["psize"])
    return environment


def _snapshot(path: str) -> bytes:
    """The bytes of a catalogue as one transaction left them; empty where there is none yet.

    A transaction writes pages that the one before it does not use, and then one of the two headers.
    So the copy is whole if no header changed while it was made. Raises OSError, lmdb.Error.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    with opened(fd):
        end_s = time.monotonic() + _SNAPSHOT_S
        for pause_s in cycle(_SNAPSHOT_PAUSES_S):
            data = _content(fd)
            is_whole = os.pread(fd, _HEADER_BYTES, 0) == data[:_HEADER_BYTES]
            if is_whole or time.monotonic() > end_s:
                break
            time.sleep(pause_s)
    _require_sound(data)
    return data


def _in_memory(data: bytes) -> lmdb.Environment:
    """A catalogue that consists of these bytes."""
    with opened(os.memfd_create("catalogue")) as fd:
        os.truncate(fd, len(data))
        with mmap.mmap(fd, len(data)) as memory:
            memory[:] = data
        return lmdb.open(f"/proc/self/fd/{fd}", subdir=False, lock=False, readonly=True)


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


def _content(fd: int) -> bytes:
    try:
        return read_at(fd, os.fstat(fd).st_size, 0)
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
        raise lmdb.CorruptedError("the disk cannot read it") from error


def _require_sound(data: bytes) -> None:
    """Refuse what LMDB would end the process for: a page that the disk cannot give, and pages that
    are not what they should be. There are few: the catalogue takes some megabytes, which the page
    cache has."""
    if data and not native.system.lmdb_is_sound(data):
        raise lmdb.CorruptedError("its pages are damaged")
