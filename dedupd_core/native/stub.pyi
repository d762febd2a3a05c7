"""Stubs that are written to (source: ``native/src/stub/``).

If a call returns a list, the list has the unreadable parts of the store. The caller may repeat the
call after these are repaired.
"""

import builtins
from collections.abc import Callable, Sequence
from typing import Self

from typing_extensions import Buffer

from .store import StubBytes, Unreadable

_Source = tuple[StubBytes, bool, Sequence[tuple[tuple[int, int, int], builtins.bytes]]]
"""The reader of the store; whether it may wait for the disk; and repaired chunks, by id, length and
start of the fingerprint, which the caller has verified."""

class OpenStub:
    """A settled stub, open as ``fd``. Reads may share it; changes need it alone.

    Durable effect: all changes to the file by users' writes and jobs, by the door.
    """

    def __new__(
        cls,
        fd: int,
        value: bytes,
        name: bytes,
        seed: int,
        block_bytes: int,
        door: Callable[..., int] | None,
    ) -> Self:
        """``value`` is that of the attribute ``name``, ``seed`` that of its checksum. The caller
        keeps ``fd`` open. Raises OSError, ValueError."""

    fd: int
    has_unwritten: bool
    """Whether allocated blocks may exist that were never written."""
    @property
    def block_bytes(self) -> int:
        """Missing blocks of the file are filled only completely."""
    @property
    def is_at_rest(self) -> bool:
        """Whether file and attribute describe the stub completely. Other code that follows the
        rules may then use the stub while this object is not in use."""
    @property
    def fields(self) -> tuple[int, bytes, int, int, int, int]:
        """Recipe, digest, covered, mtime_ns, flags and local_bytes of the attribute."""
    def note_local(self) -> None:
        """Note that other code may have added local blocks, if the attribute allows this."""
    def missing(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of [start, end) that only the recipe has: covered, without a block."""
    def read_by(self, source: _Source, start: int, end: int) -> bytes | list[Unreadable]:
        """Read bytes [start, end), fewer only at the end of the file. Raises OSError."""
    def write_by(self, source: _Source, offset: int, data: Buffer) -> int | list[Unreadable]:
        """Return the number of written bytes; fewer only if no space is free. Raises OSError."""
    def truncate_by(self, source: _Source, size: int) -> bool | list[Unreadable]:
        """Return whether the file is plain from now on. Raises OSError."""
    def allocate_by(
        self, source: _Source, start: int, end: int, keeps_size: bool
    ) -> tuple[int, bool] | list[Unreadable]:
        """Give blocks to a range. Returns the end of the step, and whether the file is plain from
        now on. Raises OSError."""
    def zero_by(self, source: _Source, start: int, end: int) -> tuple[int, bool] | list[Unreadable]:
        """Make a range read as zeros. Returns as :meth:`allocate_by`. Raises OSError."""
    def fill_by(
        self,
        source: _Source,
        loaded: Sequence[tuple[int, Buffer]],
        end: int,
        is_next: Callable[[int], None],
    ) -> int | list[Unreadable]:
        """Fill missing blocks below ``end`` with bytes of the store, unless these are zeros. Times
        and capabilities stay. Calls ``is_next`` with the number of bytes before the first write.
        Returns that number. Raises OSError, and what ``is_next`` raises."""
    def take_back_by(
        self, source: _Source, start: int, end: int, is_whole: bool
    ) -> tuple[()] | list[Unreadable]:
        """Punch the filled blocks of a range: all, or only those that equal the store's bytes.
        Times and capabilities stay. Raises OSError."""
    def punch_equal_by(self, source: _Source, end: int) -> bool | list[Unreadable]:
        """Punch the blocks below ``end`` that equal the store's bytes. ``end`` is a multiple of the
        block size, or the end of the file. Returns whether all were equal. Raises OSError."""
    def seal_by(self, source: _Source) -> bool | list[Unreadable]:
        """Update the number of local bytes in the attribute. Returns False if some blocks have no
        place on the disk yet. Raises OSError."""

def uncounted_bytes(fd: int, value: bytes, seed: int, block_bytes: int) -> int:
    """Return the bytes of local blocks that a settled stub has beyond the count of its attribute;
    negative if blocks are missing. Raises OSError, ValueError."""
