"""Appends deletions to the logs, in the process that serves the mount.

Each user has separate logs, one for each time that deletions are kept. So the deletions that expire
first are always the start of a log, and one user's deletions never displace another's.
"""

import os
import time
from collections import OrderedDict
from dataclasses import dataclass

from dedupd_core.deleted.alarm import read_state
from dedupd_core.deleted.dropped import Counts, DroppedDeletions, add
from dedupd_core.deleted.log import DeletionLogs, made_directory, name_of
from dedupd_core.deleted.log_space import LogSpace
from dedupd_core.errors import NoSpace
from dedupd_core.failpoint import define, reach
from dedupd_core.format.deletion import (
    LOG_HEADER_BYTES,
    Deletion,
    LogHeader,
    encode_deletion,
    encode_header,
)
from dedupd_core.units import MIB
from dedupd_core.volume.volume import Volume

LOG_BYTES_MAX = 4 * MIB
"""A longer log gets no more entries; a log is read in one piece."""

LOG_S_MAX = 86400.0
"""Nor does an older one: a damaged header loses at most a user's deletions of this time."""

OPEN_MAX = 256
"""Open logs. The next deletion of another user's file opens their log again."""

LOGS_MAX = 65_536
"""Logs that get more entries. If more users delete, those with the oldest last deletion get a new
log."""

_NOTED = define("deleted.noted", "a deletion is in its log, not durable yet, and has not happened")


@dataclass(slots=True)
class _Log:
    """A log that gets more entries; ``fd`` is -1 while it is closed."""

    fd: int
    inode: int
    number: int
    seed: int
    end: int = LOG_HEADER_BYTES
    began_s: float = 0.0
    is_dirty: bool = False
    is_finished: bool = False

    def is_over(self) -> bool:
        """Return whether the log is full, old or removed: a collection may remove any log."""
        is_old = time.monotonic() > self.began_s + LOG_S_MAX
        is_full = self.end >= LOG_BYTES_MAX
        return self.is_finished or is_full or is_old or os.fstat(self.fd).st_nlink == 0


class DeletionWriter:
    """Appends deletions. Raises OSError, NoSpace."""

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self._disk = volume.disk
        self._directory_fd = -1
        self._logs: OrderedDict[tuple[int, int], _Log] = OrderedDict()
        self._open: OrderedDict[tuple[int, int], _Log] = OrderedDict()
        self._space = LogSpace(DeletionLogs(volume), volume.disk)
        self._has_new = False
        self._pending: list[int] = []

    def append(self, one: Deletion) -> None:
        """Record a deletion that is about to happen. It is durable after a sync of the files of
        :meth:`unsynced`. Raises ValueError if it is too large, NoSpace if there is no space for it
        during an alarm."""
        key = one.uid, one.keep_s
        log = self._current(key)
        data = encode_deletion(one, log.seed, log.end)
        if not self._space.has_room(one.uid, len(data)):
            self._make_room(one.uid, len(data))
            log = self._current(key)  # it may itself have been dropped
            data = encode_deletion(one, log.seed, log.end)
        try:
            self._disk.write_at(log.fd, [data], log.end)
        except BaseException:
            self._cut(log)
            raise
        log.end += len(data)
        log.is_dirty = True
        self._space.grow(log.number, log.end)
        reach(_NOTED)

    def finish(self) -> None:
        """Append no more to these logs: a disk error may have damaged one."""
        for log in self._logs.values():
            log.is_finished = True

    def unsynced(self) -> list[int]:
        """Return descriptors of all files to sync, so that appended data is durable. The caller
        closes them."""
        for log in self._open.values():
            if log.is_dirty:
                self._pending.append(os.dup(log.fd))
                log.is_dirty = False
        if self._has_new:
            self._pending += [os.dup(self._directory_fd), os.dup(self._volume.base_fd)]
            self._has_new = False
        pending, self._pending = self._pending, []
        return pending

    def take_counts(self) -> Counts:
        """Return and reset the numbers of deletions dropped or refused for lack of space."""
        taken, self._space.counts = self._space.counts, {}
        return taken

    def count(self, counts: Counts) -> None:
        """Make :meth:`take_counts` return these again."""
        for uid, one in counts.items():
            add(self._space.counts, uid, one)

    def close(self) -> None:
        for fd in (*self._pending, *(log.fd for log in self._open.values()), self._directory_fd):
            if fd >= 0:
                os.close(fd)
        self._pending.clear()
        self._logs.clear()
        self._open.clear()
        self._directory_fd = -1

    def _make_room(self, uid: int, size: int) -> None:
        """Drop logs so that ``size`` more bytes of a user fit. During an alarm none is dropped: an
        attacker's deletions must not displace older ones."""
        if read_state(self._volume.base_fd).alarm is not None:
            self.count({uid: DroppedDeletions(refused=1)})
            raise NoSpace("the logs of deletions are full, and an alarm prevents their cleanup")
        self._space.make_room(uid, size)

    def _current(self, key: tuple[int, int]) -> _Log:
        """Return the log for the next deletion of this kind."""
        log = self._opened(key)
        return self._begin(key) if log is None or log.is_over() else log

    def _opened(self, key: tuple[int, int]) -> _Log | None:
        """Open the last log for deletions of this kind; None if it is missing."""
        log = self._logs.get(key)
        if log is None:
            return None
        self._logs.move_to_end(key)
        if log.fd < 0:
            try:
                log.fd = self._disk.open_write(self._directory_fd, name_of(log.number))
            except FileNotFoundError:
                return None
            self._keep_open(key, log)
            status = os.fstat(log.fd)
            if (status.st_ino, status.st_size) != (log.inode, log.end):
                log.is_finished = True
        self._open.move_to_end(key)
        return log

    def _keep_open(self, key: tuple[int, int], log: _Log) -> None:
        self._open[key] = log
        if len(self._open) > OPEN_MAX:
            self._let_go(next(iter(self._open)))

    def _let_go(self, key: tuple[int, int]) -> None:
        """Close a log; its new data is yet to be synced."""
        log = self._open.pop(key)
        if log.is_dirty:
            self._pending.append(log.fd)
        else:
            os.close(log.fd)
        log.fd, log.is_dirty = -1, False

    def _cut(self, log: _Log) -> None:
        """Remove the remains of a failed append. If that fails, the log is finished: these bytes
        must never be between two deletions."""
        try:
            self._disk.truncate(log.fd, log.end)
        except OSError:
            log.is_finished = True

    def _begin(self, key: tuple[int, int]) -> _Log:
        """Create a new log; a log that a crash may have torn gets no more entries."""
        if key in self._open:
            self._let_go(key)
        self._logs.pop(key, None)
        disk, uid = self._disk, key[0]
        if self._directory_fd < 0:
            self._directory_fd = made_directory(self._volume.base_fd, disk)
        if not self._space.has_room(uid, LOG_HEADER_BYTES):
            self._make_room(uid, LOG_HEADER_BYTES)
        number, fd = self._created()
        seed = int.from_bytes(os.urandom(8), "little") or 1
        header = LogHeader(number, self._volume.space.volume_id, time.time_ns(), seed, uid=uid)
        try:
            disk.write_at(fd, [encode_header(header)], 0)
        except BaseException:
            os.close(fd)
            disk.unlink(self._directory_fd, name_of(number))
            raise
        log = _Log(fd, os.fstat(fd).st_ino, number, seed, began_s=time.monotonic())
        self._space.add(number, uid, log.end)
        self._logs[key] = log
        self._keep_open(key, log)
        if len(self._logs) > LOGS_MAX:
            oldest, _ = self._logs.popitem(last=False)
            if oldest in self._open:
                self._let_go(oldest)
        self._has_new = True
        return log

    def _created(self) -> tuple[int, int]:
        """Create a new, empty file; return its number, and a descriptor."""
        number = 0
        while True:
            number = max(number + 1, self._space.next_number())
            try:
                return number, self._disk.create(self._directory_fd, name_of(number))
            except FileExistsError:  # another program has put a log there
                self._space.refresh()
