"""Stubs that are written to (source: ``native/src/stub/``).

Where a call returns a list, that is what cannot be read of the store. The call may be repeated once
it is repaired.
"""

import builtins
from collections.abc import Callable, Sequence
from typing import Self

from typing_extensions import Buffer

from .store import StubBytes, Unreadable

_Source = tuple[StubBytes, bool, Sequence[tuple[tuple[int, int, int], builtins.bytes]]]
"""What reads the store; whether it may wait for the disk; and chunks that were repaired, by id,
length and start of the fingerprint, verified by the caller."""

class OpenStub:
    """A settled stub, open as ``fd``. Reads may share it; changes need it alone.

    Durable effect: all that users' writes and jobs change of the file, by the door.
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
        """``value``: of the attribute ``name``, whose checksum has the ``seed``. ``fd`` stays the
        caller's. Raises OSError, ValueError."""

    fd: int
    has_unwritten: bool
    """Whether blocks may have been left that are allocated and were never written."""
    @property
    def block_bytes(self) -> int:
        """A block of the file that is missing is filled as a whole."""
    @property
    def is_at_rest(self) -> bool:
        """Whether file and attribute say all there is to know of the stub: then other code that
        keeps to the rules may use it, as long as nothing here does."""
    @property
    def fields(self) -> tuple[int, bytes, int, int, int, int]:
        """Recipe, digest, covered, mtime_ns, flags and local_bytes of the attribute."""
    def note_local(self) -> None:
        """Others may have added blocks to those that are there, if the attribute allows for it."""
    def missing(self, start: int, end: int) -> list[tuple[int, int]]:
        """The parts of [start, end) that are the recipe's: covered, and without a block."""
    def read_by(self, source: _Source, start: int, end: int) -> bytes | list[Unreadable]:
        """Bytes [start, end), fewer only at the end of the file. Raises OSError."""
    def write_by(self, source: _Source, offset: int, data: Buffer) -> int | list[Unreadable]:
        """Returns how many bytes, fewer only if the space ends. Raises OSError."""
    def truncate_by(self, source: _Source, size: int) -> bool | list[Unreadable]:
        """Returns whether the file is plain from now on. Raises OSError."""
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
        """Write bytes of the store below ``end`` into whole blocks that are missing, unless they
        are zeros; times and capabilities stay. ``is_next`` is given the number of bytes before
        anything is written. Returns that number. Raises OSError, and what ``is_next`` raises."""
    def take_back_by(
        self, source: _Source, start: int, end: int, is_whole: bool
    ) -> tuple[()] | list[Unreadable]:
        """Punch what was filled of a range: all of it, or what equals the store's bytes; times and
        capabilities stay. Raises OSError."""
    def punch_equal_by(self, source: _Source, end: int) -> bool | list[Unreadable]:
        """Punch the blocks below ``end``, that of whole blocks or of the file, that equal the
        store's bytes. Returns whether all did. Raises OSError."""
    def seal_by(self, source: _Source) -> bool | list[Unreadable]:
        """Make the attribute count the blocks of the stub's own. False if some have no place on the
        disk yet. Raises OSError."""

def uncounted_bytes(fd: int, value: bytes, seed: int, block_bytes: int) -> int:
    """How many bytes more than its attribute says a settled stub has in blocks of its own; negative
    if blocks are missing. Raises OSError, ValueError."""
