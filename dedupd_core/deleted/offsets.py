"""The starts of deletions in their logs, as found by reading in order."""

import os
from array import array
from bisect import bisect_left
from collections import OrderedDict
from dataclasses import dataclass, field
from threading import Lock

from dedupd_core import native
from dedupd_core.errors import Damaged
from dedupd_core.format.deletion import LOG_HEADER_BYTES, LogHeader
from dedupd_core.system.files import read_at

LOGS_MAX = 16
"""Logs whose offsets are remembered: at most some 200 KiB each."""


@dataclass(slots=True)
class _ReadLog:
    """The result of reading the first ``size`` bytes of a log. Deletions end before ``end``."""

    starts: "array[int]" = field(default_factory=lambda: array("I"))
    lengths: "array[int]" = field(default_factory=lambda: array("I"))
    end: int = LOG_HEADER_BYTES
    size: int = 0


class LogOffsets:
    """The offsets of deletions in the logs that were read last. Used by any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._logs: OrderedDict[tuple[int, int, int], _ReadLog] = OrderedDict()

    def length_at(self, fd: int, header: LogHeader, offset: int) -> int:
        """Return the length of the deletion at ``offset`` of the log ``fd``. Raises Damaged if no
        deletion starts there, OSError."""
        status = os.fstat(fd)
        with self._lock:
            known = self._of((status.st_dev, status.st_ino, header.seed))
            if known.size != status.st_size:
                _extend(known, fd, status.st_size, header)
            at = bisect_left(known.starts, offset)
            if at == len(known.starts) or known.starts[at] != offset:
                raise Damaged(f"no deletion starts at {offset}")
            return known.lengths[at]

    def _of(self, key: tuple[int, int, int]) -> _ReadLog:
        known = self._logs.setdefault(key, _ReadLog())
        self._logs.move_to_end(key)
        if len(self._logs) > LOGS_MAX:
            self._logs.popitem(last=False)
        return known


def _extend(known: _ReadLog, fd: int, size: int, header: LogHeader) -> None:
    """Read what was appended to a log since it was read."""
    if size < known.size:  # a failed append was removed
        known.end = min(known.end, size)
        while known.starts and known.starts[-1] >= known.end:
            known.starts.pop()
            known.lengths.pop()
    data = read_at(fd, max(0, size - known.end), known.end)
    starts, lengths = native.deletions.spans(
        data, seed=header.seed, is_proven=header.is_proven, base=known.end
    )
    known.starts.frombytes(starts)
    known.lengths.frombytes(lengths)
    if known.starts and known.starts[-1] + known.lengths[-1] > size:  # it is incomplete
        known.starts.pop()
        known.lengths.pop()
    if known.starts:
        known.end = known.starts[-1] + known.lengths[-1]
    known.size = size


OFFSETS = LogOffsets()
"""Shared by this process: each request of a mount opens the logs again."""
