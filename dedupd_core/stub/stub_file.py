"""A stub as a file that is read and written: the sparse stream.

A write lands in the stub's own file, at the same offset. The invariant is that of
``transition.py``: *a block that is present holds current content; a hole below ``covered`` is what
the recipe says*. So the file system's extent map is at all times the map of what is local, nothing
has to be kept beside it, and it is as durable as the data is. Four rules keep it so:

1. A block that is missing is only ever written whole: what the write does not cover comes from
   the recipe, in the same call. No crash leaves a block that is half filled.
2. What a failed write leaves in a block that was missing is punched out again, and so is what a
   file system that allocates in larger pieces adds beside the blocks that are written.
3. The last block of a file that ends within it is filled before the file grows from beyond it.
4. The file is cut first, then ``covered`` follows; it follows before the file grows again. File
   systems that journal keep the order of such changes to one file; docs/design/crash-safety.md goes
   through the states that a crash can leave, and :func:`dedupd_core.stub.transition.settle` through
   what becomes of them.

Nothing here locks: reads may share a stub; writes and truncations need it alone.
"""

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from dedupd_core import native
from dedupd_core.byte_ranges import missing_ranges
from dedupd_core.errors import NoSpace
from dedupd_core.format.stub import Flag, StubAttribute
from dedupd_core.stub.content import StoreContent
from dedupd_core.stub.local_blocks import seal
from dedupd_core.stub.transition import LENGTH_BYTES_MAX, StubFiles
from dedupd_core.system.extents import extent_size_hint, written_ranges
from dedupd_core.system.files import data_ranges, free_space
from dedupd_core.units import GIB, align_down, align_up

LOW_SPACE_BYTES = 1 * GIB
"""With less than this free, blocks are allocated before they are written: see :meth:`_allocate`."""

LoadContent = Callable[[StubAttribute], StoreContent]


class SparseStub:
    """One settled stub, open for reading and writing as ``fd`` (which stays the caller's)."""

    def __init__(
        self,
        fd: int,
        attribute: StubAttribute,
        files: StubFiles,
        load: LoadContent,
    ) -> None:
        self.fd = fd
        self.attribute = attribute
        self._files = files
        self._disk = files.disk
        self.block_bytes = files.block_bytes
        """A block of the file that is missing is filled as a whole."""
        self._load = load
        self._content: StoreContent | None = None
        self._attribute_is_stale = False
        self._extent_bytes: int | None = None
        self.has_unwritten = False
        """Whether blocks may have been left that are allocated and were never written."""
        self.watch: Callable[[int, int], None] | None = None
        """Told of each write, before it is made: its start and its end."""
        self.may_be_local = next(data_ranges(fd, 0, os.fstat(fd).st_size), None) is not None
        """Whether blocks of the file's own may have been there since it was opened."""

    @property
    def content(self) -> StoreContent:
        """The recipe's bytes."""
        if self._content is None:
            self._content = self._load(self.attribute)
        return self._content

    @property
    def is_sealed(self) -> bool:
        """Whether the attribute counts the blocks of the stub's own, or a change is under way."""
        flags = self.attribute.flags
        return bool(flags.transient) or not flags & Flag.WRITTEN

    @property
    def is_at_rest(self) -> bool:
        """Whether file and attribute say all there is to know of the stub: then other code that
        keeps to the rules above may use it, as long as nothing here does."""
        is_stale = self.has_unwritten or self._attribute_is_stale
        return not (is_stale or self.attribute.flags.transient)

    @property
    def grows_by_blocks(self) -> bool:
        """Whether no more blocks come to be than those that are written."""
        if self._extent_bytes is None:
            self._extent_bytes = extent_size_hint(self.fd)
        return self._extent_bytes <= self.block_bytes

    def note_local(self) -> None:
        """Others may have added blocks to those that are there, if the attribute allows for it."""
        if self.attribute.flags & Flag.WRITTEN:
            self.may_be_local = True

    def missing(self, start: int, end: int) -> list[tuple[int, int]]:
        """The parts of [start, end) that are the recipe's: covered, and without a block."""
        end = min(end, self.attribute.covered)
        if start >= end:
            return []
        if not self.may_be_local:
            return [(start, end)]
        return list(missing_ranges(self._local(start, end), start, end))

    def _local(self, start: int, end: int) -> list[tuple[int, int]]:
        if self.has_unwritten:
            written = written_ranges(self.fd, end)
            return [(max(low, start), high) for low, high in written if high > start]
        return native.system.present_ranges(self.fd, start, end)

    def read(
        self, start: int, length: int, reasons: Sequence[native.store.Unreadable] = ()
    ) -> bytes:
        """Up to ``length`` bytes at ``start``; shorter only at the end. ``reasons``: what of them
        could not be read a moment ago. Raises Damaged, OSError."""
        end = min(start + length, os.fstat(self.fd).st_size)
        if start >= end:
            return b""
        own, covered = self._own(start, end), self.attribute.covered
        return self.content.read_file(self.fd, own, covered, start, end, reasons)

    def read_at_once(self, start: int, length: int) -> bytes | None:
        """As :meth:`read`, without a wait; None where that gives not all, or anything is wrong."""
        end = min(start + length, os.fstat(self.fd).st_size)
        if start >= end:
            return b""
        own, covered = self._own(start, end), self.attribute.covered
        return self.content.read_at_once(self.fd, own, covered, start, end)

    def _own(self, start: int, end: int) -> list[tuple[int, int]]:
        """The parts of [start, end) that are not the recipe's."""
        return list(missing_ranges(self.missing(start, end), start, end))

    def needs_chunks(self, start: int, end: int) -> bool:
        """Whether a write of [start, end) has to fill up blocks from the store."""
        size = os.fstat(self.fd).st_size
        if start > size:
            return True
        low, high = align_down(start, self.block_bytes), align_up(end, self.block_bytes)
        ends_within = end != high and end < size
        return (start != low or ends_within) and bool(self.missing(low, high))

    def write(self, offset: int, data: bytes | memoryview) -> int:
        """Write at ``offset``; returns how many bytes, fewer only where the space ends.

        Raises NoSpace, OSError; Damaged where a block can't be filled up from the store. Then
        nothing was written.
        """
        end = offset + len(data)
        if not data:
            return 0
        _check_length(end)
        if self.watch is not None:
            self.watch(offset, end)
        size = os.fstat(self.fd).st_size
        if end > size:
            self._store_attribute()
        if offset > size:
            self._fill_end(size, align_down(offset, self.block_bytes))
        low, high = align_down(offset, self.block_bytes), align_up(end, self.block_bytes)
        missing = self.missing(low, high)
        if not missing:
            if high > self.attribute.covered:
                self._unseal()
            with self._nothing_beside(low, high):
                return self._disk.write_some(self.fd, [data], offset)
        head: bytes | bytearray = b""
        if low < offset and missing[0][0] < low + self.block_bytes:
            head = bytes(self.read(low, offset - low)).ljust(offset - low, b"\0")
        tail: bytes | bytearray = b""
        if end < min(high, size) and missing[-1][1] > high - self.block_bytes:
            tail = self.read(end, high - end)
        self.may_be_local = True
        return self._write_blocks(offset, head, data, tail, size, missing)

    def _write_blocks(
        self,
        offset: int,
        head: bytes | bytearray,
        data: bytes | bytearray | memoryview,
        tail: bytes | bytearray,
        size: int,
        missing: list[tuple[int, int]],
    ) -> int:
        """Write head, data and tail, which together fill every missing block that they touch."""
        start, end = offset - len(head), offset + len(data)
        total = len(head) + len(data) + len(tail)
        written = 0
        self._unseal()
        try:
            with self._nothing_beside(
                align_down(start, self.block_bytes), align_up(start + total, self.block_bytes)
            ):
                self._allocate(missing)
                written = self._disk.write_some(self.fd, [head, data, tail], start)
        finally:
            if written < total:
                kept = max(start, align_down(start + written, self.block_bytes))
                self._undo(kept, size, missing)
        if written < total:
            if kept <= offset:
                raise NoSpace("no space left to write")
            return min(kept, end) - offset
        return len(data)

    def _allocate(self, missing: list[tuple[int, int]]) -> None:
        """Where space is low, find out before anything is written whether it suffices.

        A write that spans several blocks of one page of the cache, and runs out of space in the
        middle, makes ext4 fill the blocks that it did get with zeros. They would count as
        current until :meth:`_undo`. Allocated blocks that are not written are holes for
        SEEK_DATA, and for ``settle``, should we be killed.
        """
        if free_space(self.fd).free_bytes >= LOW_SPACE_BYTES:
            return
        for start, end in missing:
            start = align_down(start, self.block_bytes)
            self._disk.allocate(self.fd, start, align_up(end, self.block_bytes) - start)

    @contextmanager
    def _nothing_beside(self, low: int, high: int) -> Iterator[None]:
        """Keep the holes on both sides of the blocks of [low, high) while these are written.

        Of a file with a hint for the size of its extents, XFS fills these holes with blocks that
        are not written. ``SEEK_DATA`` would call them data once the kernel has read ahead into
        them, and they would be read as zeros. A crash in between leaves them to ``settle``.
        """
        beside = self._holes_beside(low, high)
        try:
            yield
        finally:
            self.punch(beside)

    def _holes_beside(self, low: int, high: int) -> list[tuple[int, int]]:
        """The missing ranges that the blocks around [low, high) may be allocated in."""
        if self.grows_by_blocks or self._extent_bytes is None:
            return []
        unit = self._extent_bytes
        # An extent is aligned to its unit, and moved by less than one where another is in the way.
        area_start, area_end = max(0, align_down(low, unit) - unit), align_up(high, unit) + unit
        there = [*native.system.present_ranges(self.fd, area_start, low), (low, high)]
        there += native.system.present_ranges(self.fd, high, area_end)
        covered = align_up(self.attribute.covered, self.block_bytes)
        return [
            (start, min(end, covered))
            for start, end in missing_ranges(there, area_start, area_end)
            if start < covered and (end == low or start == high)
        ]

    def _undo(self, kept: int, size: int, missing: list[tuple[int, int]]) -> None:
        """Make what was missing from ``kept`` on missing again, and the file as long as it was."""
        if os.fstat(self.fd).st_size > max(size, kept):
            self._disk.truncate(self.fd, max(size, kept))
        unit = os.fstatvfs(self.fd).f_bsize
        self.punch((max(start, kept), align_up(end, unit)) for start, end in missing if kept < end)

    def punch(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Make blocks holes again: what was only allocated, or filled. Raises OSError.

        XFS may have no room for that, on a disk that others fill up meanwhile. From then on the
        extents tell what was only allocated, until the file is settled when it is opened next.
        """
        try:
            for start, end in ranges:
                self._disk.punch(self.fd, start, end - start)
        except OSError:
            self.has_unwritten = True
            raise

    def reserve(self, start: int, end: int) -> None:
        """Allocate blocks behind those that the recipe covers, also behind the end of the file:
        there btrfs clears the rest of the last block as if the file grew. Raises NoSpace, OSError,
        Damaged."""
        if self.watch is not None:
            self.watch(start, end)
        size = os.fstat(self.fd).st_size
        if end > size:
            self._store_attribute()
            self._fill_end(size, end)
            self._unseal_end(size)
        self._disk.allocate(self.fd, start, end - start)

    def give_up(self, start: int, end: int) -> None:
        """Have whole blocks be holes that stand for zeros anyway: the recipe has a hole there."""
        if start < end and os.fstat(self.fd).st_blocks > 0:
            if self.watch is not None:
                self.watch(start, end)
            if self.attribute.local_bytes:
                self.uncount()
            self.punch([(start, end)])

    def end_in_zeros(self, start: int, end: int) -> bool:
        """Have whole blocks, up to the end of what the recipe covers or farther, be holes that read
        as zeros; True where the file is plain from now on. Raises OSError.

        The attribute goes first: a hole that is still covered would bring the recipe's bytes back.
        It is synced, because where there is no block to be punched nothing else says that there are
        zeros, and the fdatasync of a user need not make an attribute durable.
        """
        if self.watch is not None:
            self.watch(start, end)
        if start == 0:
            self._disk.remove_attribute(self.fd, self._files.space.name)
        elif start < self.attribute.covered or self.attribute.local_bytes:
            flags, covered = self.attribute.flags | Flag.WRITTEN, min(start, self.attribute.covered)
            self._change_attribute(
                replace(self.attribute, flags=flags, covered=covered, local_bytes=0)
            )
        self._disk.sync_file(self.fd)
        self.punch([(start, end)])
        return start == 0

    def truncate(self, size: int) -> bool:
        """Set the length; True where the file is plain from now on. Raises OSError, NoSpace."""
        old = os.fstat(self.fd).st_size
        if size > old:
            _check_length(size)
            self._store_attribute()
            self._fill_end(old, size)
            self._unseal_end(old)
            self._disk.truncate(self.fd, size)
            return False
        if self.attribute.local_bytes:
            self.uncount()
        self._disk.truncate(self.fd, size)
        if size < self.attribute.covered:
            self.attribute = replace(self.attribute, covered=size)
            self._attribute_is_stale = True
        if size == 0:
            self._disk.remove_attribute(self.fd, self._files.space.name)
            return True
        self._store_attribute()
        return False

    def _fill_end(self, size: int, grows_from: int) -> None:
        """Fill the last block, where the file ends within it and grows from beyond it.

        btrfs clears the rest of that block then, and in doing so gives a missing one zeros.
        """
        low = align_down(size, self.block_bytes)
        missing = self.missing(low, size) if grows_from > low else []
        if not missing:
            return
        data = self.read(low, size - low)
        self.may_be_local = True
        if self._write_blocks(low, b"", data, b"", size, missing) < len(data):
            raise NoSpace("no space left to write")

    def _unseal_end(self, size: int) -> None:
        """For a file that is about to grow, and ends within a block: btrfs makes one of zeros where
        that is a hole behind ``covered``."""
        if size % self.block_bytes:
            self._unseal()

    def _unseal(self) -> None:
        """Say that blocks are about to be added to those that the attribute counts.

        It becomes durable before the first of them does: both are changes of one file's metadata.
        """
        if not self.attribute.flags & Flag.WRITTEN:
            flags = self.attribute.flags | Flag.WRITTEN
            self._change_attribute(replace(self.attribute, flags=flags))

    def uncount(self) -> None:
        """Say that blocks are about to come, and blocks to go that the attribute counts."""
        if self.attribute.local_bytes or not self.attribute.flags & Flag.WRITTEN:
            flags = self.attribute.flags | Flag.WRITTEN
            self._change_attribute(replace(self.attribute, flags=flags, local_bytes=0))

    def _change_attribute(self, changed: StubAttribute) -> None:
        self._files.write(self.fd, changed)
        self.attribute = changed
        self._attribute_is_stale = False

    def seal(self) -> bool:
        """Have the attribute count the blocks of the stub's own; False where some have no place on
        the disk yet. Nothing else may use it meanwhile. Raises OSError."""
        if self.has_unwritten:
            return False
        self._store_attribute()
        sealed = seal(self.fd, self.attribute, self._files)
        self.attribute = sealed or self.attribute
        return sealed is not None

    def _store_attribute(self) -> None:
        """Bring ``covered`` on disk up to date, before the file can grow."""
        if self._attribute_is_stale:
            self._files.write(self.fd, self.attribute)
            self._attribute_is_stale = False


def _check_length(length: int) -> None:
    if length > LENGTH_BYTES_MAX:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
