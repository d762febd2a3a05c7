"""Reads files ahead of a pipeline, into large reusable buffers."""

import errno
import mmap
import os
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, NamedTuple, TypeVar

from dedupd_core.errors import FileChanged
from dedupd_core.native.system import read_uncached
from dedupd_core.system.page_cache import BufferPool
from dedupd_core.units import MIB

BATCH_BYTES = 8 * MIB
"""Large enough to make Python's cost per batch negligible, small enough for many in flight."""

SMALL_BYTES_MAX = 1 * MIB
"""Up to this size a file is read completely, and many files in one native call: per-file Python
code would cost more than their bytes."""

HOLE_BYTES_MIN = 1 * MIB
"""Shorter holes are read as zeros: cheaper than a separate batch."""

_PUT_WAIT_S = 0.2
_CLOSE_POLL_S = 0.05

B = TypeVar("B")


class ReaderClosed(Exception):
    """The reader was closed."""


class FileReader(ABC, Generic[B]):
    """Reads batches in a separate thread, ahead of the caller that iterates over them.

    At most ``ahead`` batches wait for the caller; 0 means the number of buffers.
    """

    def __init__(self, pool: BufferPool, ahead: int = 0) -> None:
        self._pool = pool
        self._out: queue.Queue[B | BaseException | None] = queue.Queue(ahead)
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="reader", daemon=True)

    @abstractmethod
    def _read(self) -> None:
        """Read all data, and :meth:`_put` it. Runs in the thread."""

    def __iter__(self) -> Iterator[B]:
        """Yield the batches in order. Raises the reader's error."""
        while (item := self._out.get()) is not None:
            yield self._checked(item)

    def batches(self, wait_s: float) -> Iterator[B | None]:
        """Yield the batches in order, and None after each ``wait_s`` without a batch."""
        while True:
            try:
                item = self._out.get(timeout=wait_s)
            except queue.Empty:
                yield None
                continue
            if item is None:
                return
            yield self._checked(item)

    @staticmethod
    def _checked(item: B | BaseException) -> B:
        if isinstance(item, BaseException):
            raise item
        return item

    def close(self) -> None:
        """Stop reading; safe at any time, if the source of the files ends."""
        self._stop = True
        self._pool.close()
        while self._thread.is_alive():
            try:
                self._out.get(timeout=_CLOSE_POLL_S)
            except queue.Empty:
                continue
        self._thread.join()

    def _run(self) -> None:
        try:
            self._read()
            self._put(None)
        except ReaderClosed:
            return
        except BaseException as error:
            self._out.put(error)

    def _take_buffer(self) -> mmap.mmap:
        """Wait for a free buffer. Raises Stopped."""
        buffer = self._pool.take()
        if buffer is None or self._stop:
            raise ReaderClosed
        return buffer

    def _put(self, batch: B | None) -> None:
        """Wait for space in the queue, and pass a batch on. Raises Stopped."""
        while not self._stop:
            try:
                self._out.put(batch, timeout=_PUT_WAIT_S)
                return
            except queue.Full:
                continue
        raise ReaderClosed


def open_unnoticed(open_file: Callable[[int], int]) -> int:
    """Open a file for reading, by flags, without changing its access time if that is allowed."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return open_file(flags | os.O_NOATIME)
    except PermissionError:  # only the owner may do this
        return open_file(flags)


def open_failure(error: OSError) -> str:
    """Return the reason why a file cannot be opened."""
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO):
        return "was moved or deleted while it was read"
    return f"cannot be opened: {error.strerror}"


def fill(fd: int, view: memoryview, offset: int) -> None:
    """Fill ``view`` without the page cache. Raises OSError, or FileChanged for missing bytes."""
    if read_uncached(fd, view, offset) < len(view):
        raise FileChanged("shrank while it was read")


class FileStretch(NamedTuple):
    """Bytes [start, end) of a file: data, or a hole."""

    start: int
    end: int
    is_hole: bool


def stretches(
    ranges: Iterable[tuple[int, int]], start: int, end: int, hole_bytes_min: int = HOLE_BYTES_MIN
) -> Iterator[FileStretch]:
    """Yield the bytes [start, end) of a file in order. ``ranges`` have data; shorter holes count as
    data."""
    data_end = start
    for first, last in ranges:
        if first - data_end >= hole_bytes_min:
            if data_end > start:
                yield FileStretch(start, data_end, False)
            yield FileStretch(data_end, first, True)
            start = first
        data_end = last
    if end - data_end < hole_bytes_min:
        data_end = end
    if data_end > start:
        yield FileStretch(start, data_end, False)
    if end > data_end:
        yield FileStretch(data_end, end, True)
