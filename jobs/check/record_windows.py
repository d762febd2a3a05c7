"""Containers read from one end to the other, window by window, and every record checked.

While one window is being checked, by all cores, the next one is being read, past the page cache,
and the memory is that of two windows. Records that are as their table says are passed over first,
in large portions that all cores check.
"""

import mmap
import os
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass

from dedupd_core import native
from dedupd_core.format import container as fmt
from dedupd_core.format.table_columns import UncheckedEntries
from dedupd_core.store.container.scan import Gap, ScannedRecord, scan
from dedupd_core.system.files import UNREADABLE, read_readable
from dedupd_core.system.page_cache import new_buffer, read_uncached_readable
from dedupd_core.units import MIB

WINDOW_BYTES = 8 * MIB
"""Some 100 records: enough to keep all cores busy, little enough to stop at once."""

HEADROOM_BYTES = 1 * MIB
"""In front of a window, for the record that the one before ends in: more than any that we write."""


@dataclass(frozen=True, slots=True)
class RecordWindow:
    """Consecutive records of a container, from ``offset`` on, and the verdict on each."""

    offset: int
    records: native.store.CheckedRecords

    @property
    def end(self) -> int:
        return self.offset + self.records.consumed


class WindowReader:
    """Reads and checks records. ``pace`` is told the bytes of each read before it is made.

    It may wait, or raise to stop.
    """

    def __init__(self, algorithm: str, threads: int, pace: Callable[[int], None]) -> None:
        self._algorithm = algorithm
        self._threads = threads
        self._pace = pace
        self._bases: native.store.Bases | None = None
        self._buffers = [new_buffer(HEADROOM_BYTES + WINDOW_BYTES) for _ in range(2)]
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="reader")

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    def pass_on(
        self,
        fd: int,
        entries: UncheckedEntries,
        ordinal: int,
        offset: int,
        end: int,
        bytes_max: int,
        bases: native.store.Bases | None = None,
    ) -> native.store.PassedRecords | None:
        """How far, from the record ``ordinal`` on, which begins at ``offset``, every record is
        intact and as its table's entry says. None where a block cannot be read.

        Looks at about ``bytes_max`` bytes, on all threads, or as far as it gets in a quarter of a
        second. Where the first record is not so, nothing is passed: :meth:`read` finds the problem.
        """
        planned = min(bytes_max, end - offset)
        self._pace(planned)
        try:
            passed = native.store.pass_records(
                fd,
                entries.data,
                seed=entries.seed,
                ordinal=ordinal,
                offset=offset,
                end=end,
                bytes_max=planned,
                algorithm=self._algorithm,
                threads=self._threads,
                bases=bases,
            )
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
            return None  # :meth:`read` says whose it is
        self._pace(passed.read_bytes - planned)
        return passed

    def read(
        self,
        fd: int,
        seed: int,
        start: int,
        end: int,
        bases: native.store.Bases | None = None,
    ) -> Generator[RecordWindow | Gap, None, None]:
        """The records between two offsets, in order, and the gaps between them. Raises OSError."""
        self._bases = bases
        # Read from the disk: the page cache may have these bytes from before the damage.
        os.posix_fadvise(fd, start & -mmap.PAGESIZE, WINDOW_BYTES, os.POSIX_FADV_DONTNEED)
        position = start
        while position < end:
            with closing(self._run(fd, seed, position, end)) as windows:
                for window in windows:
                    position = window.end
                    if window.records.consumed:
                        yield window
            if position >= end:
                return
            found = self._next_record(fd, seed, position, end)
            if found is not None and found.offset == position:
                # Longer than a window: no record of ours is, but its header says so.
                yield RecordWindow(position, self.read_one(fd, seed, found))
                position = found.end
                continue
            begin = end if found is None else found.offset
            yield Gap(position, begin)
            position = begin

    def _run(self, fd: int, seed: int, start: int, end: int) -> Generator[RecordWindow, None, None]:
        """Windows up to the first place without a valid header, or the end."""
        pending: Future[int] | None = self._submit(fd, 0, start, end)
        offset, carried, turn = start, 0, 0
        try:
            while pending is not None:
                count = pending.result()
                read_to = offset + carried + count
                pending = (
                    self._submit(fd, 1 - turn, read_to, end) if read_to < end and count else None
                )
                view = memoryview(self._buffers[turn])[
                    HEADROOM_BYTES - carried : HEADROOM_BYTES + count
                ]
                records = self._check(view, seed, offset)
                rest = len(view) - records.consumed
                yield RecordWindow(offset, records)
                offset += records.consumed
                if records.is_lost or rest > HEADROOM_BYTES:
                    return
                self._buffers[1 - turn][HEADROOM_BYTES - rest : HEADROOM_BYTES] = view[
                    records.consumed :
                ]
                carried, turn = rest, 1 - turn
        finally:
            if pending is not None:
                wait([pending])  # the buffer that it fills is used again

    def _submit(self, fd: int, turn: int, offset: int, end: int) -> "Future[int]":
        length = min(WINDOW_BYTES, end - offset)
        self._pace(length)
        view = memoryview(self._buffers[turn])[HEADROOM_BYTES : HEADROOM_BYTES + length]
        return self._thread.submit(read_uncached_readable, fd, view, offset)

    def _check(
        self, data: "memoryview | bytes", seed: int, offset: int
    ) -> native.store.CheckedRecords:
        return native.store.check_records(
            data,
            seed=seed,
            offset=offset,
            algorithm=self._algorithm,
            threads=self._threads,
            bases=self._bases,
        )

    def read_one(self, fd: int, seed: int, found: ScannedRecord) -> native.store.CheckedRecords:
        """A record that was found by its header, if it is one. Raises OSError."""
        size = fmt.record_size(found.record.stored_length)
        return self._check(read_readable(fd, size, found.offset), seed, found.offset)

    @staticmethod
    def _next_record(fd: int, seed: int, start: int, end: int) -> ScannedRecord | None:
        for item in scan(fd, seed, start, end):
            if isinstance(item, ScannedRecord) and not item.is_implied:
                return item
        return None
