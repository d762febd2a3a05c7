"""A cache for data of a cluster store on this host's own disk: bounded, disposable, never trusted.

Frames of chunks, and recipes, are stored in sequence in segments (docs/design/format.md, "Kept
frames"), each with a list. Native code knows the place of each frame, and reads it. A thread writes
new frames, in large pieces. A reader of a chunk never waits for the thread; if it is too slow,
frames are not kept. Nothing is synced: data that a crash has torn fails its check when it is read,
and is fetched again.
"""

import fcntl
import os
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, TypeVar

from dedupd_core import native
from dedupd_core.config.reserve import Reserve
from dedupd_core.errors import Damaged, NoSpace
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import free_space, opened, read_at
from dedupd_core.units import MIB

T = TypeVar("T")

GIVEN_BACK = 8
"""The fraction of the cache that is deleted at a time when the file system below is nearly full."""

SEGMENT_BYTES_MAX = 64 * MIB
SEGMENTS = 16
"""The smallest number of segments: an entire segment is deleted when space is needed."""

SEGMENTS_MAX = 4 * SEGMENTS
"""The limit for segments; each has an open descriptor."""

WRITE_BYTES = 4 * MIB
"""The most bytes per write."""

LOOK_S = 1.0
"""How often the writing thread checks whether the process has ended."""

ROW_BYTES = 48
"""The size of a row for a frame, in the list of its segment. Native code knows the fields."""

_NAME = re.compile(rb"([0-9a-f]{8})\.(frames|rows)")


def frames_name(number: int) -> bytes:
    """Return the name of the file with a segment's frames in sequence."""
    return b"%08x.frames" % number


def rows_name(number: int) -> bytes:
    """Return the name of the file with its list."""
    return b"%08x.rows" % number


class _OpenSegment(NamedTuple):
    """The segment that frames are added to, locked by this process."""

    number: int
    frames_fd: int
    rows_fd: int


class DiskCache:
    """A directory of frames with a limited size. Safe to use from several threads.

    The oldest frames are deleted first, except frames that were used again after they had become
    some of the oldest. Several processes may have the same directory open: each adds to its own
    segments. This object takes ownership of ``dir_fd``.
    """

    def __init__(self, dir_fd: int, bytes_max: int, disk: Disk) -> None:
        self._dir_fd, self._bytes_max, self._disk = dir_fd, bytes_max, disk
        self.reserve = Reserve()
        self.native = native.rados.FrameCache(max(0, bytes_max - ROW_BYTES))
        self._segment_bytes = min(SEGMENT_BYTES_MAX, bytes_max // SEGMENTS)
        self._turn = threading.Lock()  # held by the writer
        self._lock = threading.Lock()
        self._newest = 0  # _lock: the highest known number
        self._sizes: dict[int, int] = {}  # _lock: of segments, with their lists; the oldest first
        self._growing: _OpenSegment | None = None  # _lock
        # With a disk of tests, frames are written at once, so that effects have the order of reads.
        self._is_beside = disk.door is None
        self._thread: threading.Thread | None = None
        self._look(alone=True)
        self._go_on()
        self._make_room(0)

    def close(self) -> None:
        """Wait until all kept frames are written."""
        self.native.close()
        if self._thread is not None:
            self._thread.join()
        self._end_segment()
        for number in self._sizes:
            self.native.drop_segment(number)  # it has its file open
        os.close(self._dir_fd)

    @property
    def used_bytes(self) -> int:
        return sum(self._sizes.copy().values())

    def get(self, name: bytes) -> bytes | None:
        """Return the frame of a chunk from the disk: the caller verifies it, or drops it."""
        return self.native.get(name)

    def verified(self, name: bytes, decode: Callable[[bytes], T]) -> T | None:
        """Return the result of ``decode``. If it raises Damaged, drop the frame and return None."""
        frame = self.get(name)
        if frame is None:
            return None
        try:
            return decode(frame)
        except Damaged:
            self.native.forget(name)
            return None

    def put(self, name: bytes, frame: bytes) -> None:
        """Keep a verified frame, soon; not if the disk is full or too slow."""
        self.native.keep(name, frame)
        if self._is_beside:
            self.begin()
        else:
            with self._turn:
                while self._write_next(0.0):
                    pass

    def begin(self) -> None:
        """Start writing the frames that ``native`` gets."""
        if self._thread is None and self._is_beside:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._write_all, name="cluster-cache")
                    self._thread.start()

    # --- writing ------------------------------------------------------------------------------

    def _write_all(self) -> None:
        main = threading.main_thread()
        while self._write_next(LOOK_S) or (main.is_alive() and not self.native.is_closed):
            pass

    def _write_next(self, wait_s: float) -> bool:
        """Write the next frames; return False if there are none for this time."""
        growing = self._growing
        number = growing.number if growing else self._newest + 1
        at = os.fstat(growing.frames_fd).st_size if growing else 0
        room = max(0, min(WRITE_BYTES, self._segment_bytes - at))
        batch = self.native.next(number, at, room, wait_s)
        if batch is None:
            return False
        frames, rows = batch
        with self._lock:
            if not rows:  # the segment is full
                self._end_segment()
                self._look()
                return True
            is_written = False
            try:
                is_written = self._write(number, [memoryview(one) for one in frames], rows, at)
            except (NoSpace, OSError):
                self._end_segment()
                self._look()
            finally:
                self.native.settle(number, rows, is_written)
        return True

    def _write(self, number: int, frames: list[memoryview], rows: bytes, at: int) -> bool:
        """Write frames; return whether there was space."""
        need_bytes = sum(map(len, frames), len(rows))
        if not self._leaves_reserve(need_bytes):
            # Users need the space: delete frames bit by bit while the space is too low.
            self.native.give_up_waiting()
            used = self.used_bytes
            self._make_room(self._bytes_max - used + max(1, used // GIVEN_BACK))
            return False
        self._make_room(need_bytes)
        if self._growing is None and at:
            return False  # it was deleted
        growing = self._growing or self._new_segment(number)
        self._disk.write_at(growing.frames_fd, frames, at)
        # A crash may have left half a row.
        end = os.fstat(growing.rows_fd).st_size // ROW_BYTES * ROW_BYTES
        self._disk.write_at(growing.rows_fd, [rows], end)
        self._sizes[number] = self._sizes.get(number, 0) + need_bytes
        return True

    def _leaves_reserve(self, need_bytes: int) -> bool:
        space = free_space(self._dir_fd)
        return space.free_bytes - need_bytes >= self.reserve.bytes_of(space.total_bytes)

    # --- segments -----------------------------------------------------------------------------

    def _look(self, *, alone: bool = False) -> None:
        """Find the existing segments, including those of other processes. ``alone``: also delete
        other files, for example those of an older version."""
        found: dict[int, set[bytes]] = {}
        for name in map(os.fsencode, os.listdir(self._dir_fd)):
            match = _NAME.fullmatch(name)
            if match is not None:
                found.setdefault(int(match[1], 16), set()).add(match[2])
            elif alone:
                self._unlink(name)
        self._newest = max(self._newest, *found, 0)
        for number in [*self._sizes]:
            if number not in found:
                self._forget(number)
        for number, kinds in sorted(found.items()):
            if len(kinds) == 2 and number not in self._sizes:
                with suppress(OSError):
                    self._add(number)
        self._sizes = dict(sorted(self._sizes.items()))

    def _add(self, number: int) -> None:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        with (
            opened(os.open(frames_name(number), flags, dir_fd=self._dir_fd)) as frames_fd,
            opened(os.open(rows_name(number), flags, dir_fd=self._dir_fd)) as rows_fd,
        ):
            rows = read_at(rows_fd, os.fstat(rows_fd).st_size, 0)
            self.native.add_segment(number, frames_fd, rows)
            self._sizes[number] = os.fstat(frames_fd).st_size + len(rows)

    def _go_on(self) -> None:
        """Continue with the newest segment, if it has space and no other process adds to it."""
        number = max(self._sizes, default=0)
        if number and self._sizes[number] < self._segment_bytes:
            with suppress(OSError):
                self._begin(number, self._disk.open_write)

    def _new_segment(self, number: int) -> _OpenSegment:
        growing = self._begin(number, self._disk.create)
        self.native.add_segment(number, growing.frames_fd, b"")
        self._sizes[number] = 0
        return growing

    def _begin(self, number: int, take: Callable[[int, bytes], int]) -> _OpenSegment:
        """Add to the segment whose files ``take`` returns. Raises OSError, including when another
        process adds to it."""
        frames_fd = take(self._dir_fd, frames_name(number))
        try:
            rows_fd = take(self._dir_fd, rows_name(number))
        except BaseException:
            os.close(frames_fd)
            raise
        # When its files exist, the number is in use, even if another process locks them.
        self._newest = max(self._newest, number)
        self._growing = _OpenSegment(number, frames_fd, rows_fd)
        try:
            fcntl.flock(rows_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._end_segment()
            raise
        return self._growing

    def _end_segment(self) -> None:
        if self._growing is not None:
            os.close(self._growing.frames_fd)
            os.close(self._growing.rows_fd)
            self._growing = None

    def _make_room(self, need_bytes: int) -> None:
        used = self.used_bytes
        while self._sizes and (
            used + need_bytes > self._bytes_max or len(self._sizes) >= SEGMENTS_MAX
        ):
            number, size = next(iter(self._sizes.items()))
            used -= size
            self._forget(number)
            self._unlink(rows_name(number))
            self._unlink(frames_name(number))

    def _forget(self, number: int) -> None:
        if self._growing is not None and self._growing.number == number:
            self._end_segment()
        self.native.drop_segment(number)
        del self._sizes[number]

    def _unlink(self, name: bytes) -> None:
        disk = self._disk
        with suppress(OSError):
            disk.unlink(self._dir_fd, name)
