"""What was read of a store in a cluster, kept on this host's own disk: bounded, disposable, never
trusted.

A file has one chunk's frame, under its fingerprint, or one recipe, under its version. Nothing is
synced: what a crash leaves torn fails its checksum when it is read, and is fetched again.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from dedupd.config.reserve import Reserve
from dedupd.errors import Damaged, NoSpace
from dedupd.system.disk import Disk
from dedupd.system.files import opened, read_at

T = TypeVar("T")

_NEW_SUFFIX = b".new"
GIVEN_BACK = 8
"""The part of the cache that goes each time when the file system below is nearly full."""


class DiskCache:
    """A directory of frames up to a number of bytes. Safe to use from several threads.

    The least recently used go first. ``dir_fd`` is this object's from here on.
    """

    def __init__(self, dir_fd: int, bytes_max: int, disk: Disk) -> None:
        self._dir_fd, self._bytes_max, self._disk = dir_fd, bytes_max, disk
        self.reserve = Reserve()
        self._lock = threading.Lock()
        self._sizes: OrderedDict[bytes, int] = OrderedDict()  # _lock
        self._bytes = 0  # _lock
        self._load()

    def close(self) -> None:
        os.close(self._dir_fd)

    @property
    def used_bytes(self) -> int:
        return self._bytes

    def _load(self) -> None:
        """What an earlier process has left, the oldest first."""
        found = []
        with os.scandir(self._dir_fd) as entries:
            for entry in entries:
                name = os.fsencode(entry.name)
                if name.endswith(_NEW_SUFFIX):
                    self._unlink(name)
                else:
                    status = entry.stat(follow_symlinks=False)
                    found.append((status.st_mtime_ns, name, status.st_size))
        for _, name, size in sorted(found):
            self._sizes[name] = size
            self._bytes += size
        self._make_room(0)

    def get(self, fingerprint: bytes) -> bytes | None:
        """The frame of a chunk, as the file has it: the caller verifies it, or drops it."""
        name = fingerprint.hex().encode()
        with self._lock:
            if name not in self._sizes:
                return None
            self._sizes.move_to_end(name)
        try:
            with opened(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._dir_fd)) as fd:
                return read_at(fd, os.fstat(fd).st_size, 0)
        except OSError:
            self.drop(fingerprint)
            return None

    def verified(self, fingerprint: bytes, decode: Callable[[bytes], T]) -> T | None:
        """What ``decode`` makes of it; None, once it is dropped, where that raises Damaged."""
        frame = self.get(fingerprint)
        if frame is None:
            return None
        try:
            return decode(frame)
        except Damaged:
            self.drop(fingerprint)
            return None

    def put(self, fingerprint: bytes, frame: bytes) -> None:
        """Keep a frame that was verified; where the disk is full it is not kept."""
        name = fingerprint.hex().encode()
        with self._lock:
            if name in self._sizes or len(frame) > self._bytes_max:
                return
            if not self._leaves_reserve(len(frame)):
                # Users need the space: it goes back bit by bit, as long as there is too little.
                self._make_room(self._bytes_max - self._bytes + self._bytes // GIVEN_BACK)
                return
            self._make_room(len(frame))
            self._sizes[name] = len(frame)
            self._bytes += len(frame)
        try:
            self._write(name, frame)
        except (NoSpace, OSError):
            self.drop(fingerprint)

    def _leaves_reserve(self, need_bytes: int) -> bool:
        space = os.statvfs(self._dir_fd)
        reserve_bytes = self.reserve.bytes_of(space.f_blocks * space.f_frsize)
        return space.f_bavail * space.f_frsize - need_bytes >= reserve_bytes

    def _write(self, name: bytes, frame: bytes) -> None:
        new = name + b".%d" % threading.get_ident() + _NEW_SUFFIX
        with opened(self._disk.create(self._dir_fd, new)) as fd:
            try:
                self._disk.write_at(fd, [frame], 0)
                self._disk.rename(self._dir_fd, new, self._dir_fd, name)
            except BaseException:
                self._unlink(new)
                raise

    def drop(self, fingerprint: bytes) -> None:
        """Forget a chunk, as one whose file is damaged."""
        name = fingerprint.hex().encode()
        with self._lock:
            self._bytes -= self._sizes.pop(name, 0)
            self._unlink(name)

    def _make_room(self, need_bytes: int) -> None:
        while self._sizes and self._bytes + need_bytes > self._bytes_max:
            name, size = self._sizes.popitem(last=False)
            self._bytes -= size
            self._unlink(name)

    def _unlink(self, name: bytes) -> None:
        disk = self._disk
        with suppress(OSError):
            disk.unlink(self._dir_fd, name)
