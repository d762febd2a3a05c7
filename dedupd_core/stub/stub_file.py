"""A stub as a file that is read and written: the sparse stream.

Native code changes the file (``native/src/stub/open_stub.rs`` has the rules). It names each part of
the store that it cannot read. That part is repaired here, and native code is asked again.

Nothing here locks: reads may share a stub; writes and truncations need it alone.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

from dedupd_core import native
from dedupd_core.format.stub import Flag, StubAttribute
from dedupd_core.native.store import Unreadable
from dedupd_core.stub.content import StoreContent
from dedupd_core.stub.transition import StubFiles

LoadContent = Callable[[StubAttribute], StoreContent]


class RangeStep(NamedTuple):
    """The end of a step of a change, and whether the file is plain from now on."""

    end: int
    is_plain: bool = False


class SparseStub(native.stub.OpenStub):
    """One settled stub, open for reading and writing as ``fd`` (which stays the caller's)."""

    def __new__(
        cls, fd: int, attribute: StubAttribute, files: StubFiles, load: LoadContent
    ) -> Self:
        """``load`` is called once, if bytes of the store may be needed."""
        space = files.space
        value, seed = space.encode(attribute, fd), space.seeds[0]
        block_bytes, door = files.block_bytes, files.disk.door
        stub = super().__new__(cls, fd, value, space.name, seed, block_bytes, door)
        stub._load, stub._content, stub.watch = load, None, None
        return stub

    _load: LoadContent
    _content: StoreContent | None
    watch: Callable[[int, int], None] | None
    """Told of each write, before it is made: its start and its end."""

    @property
    def attribute(self) -> StubAttribute:
        """The attribute, perhaps newer than the one on the disk."""
        recipe, digest, covered, mtime_ns, flags, local_bytes = self.fields
        return StubAttribute(recipe, digest, covered, mtime_ns, Flag(flags), local_bytes)

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

    def read(self, start: int, length: int, reasons: Sequence[Unreadable] = ()) -> bytes:
        """Read up to ``length`` bytes at ``start``; fewer only at the end. ``reasons``: the parts
        that could not be read a moment ago. Raises Damaged, OSError."""
        end = start + length
        return self.content.repairing(lambda source: self.read_by(source, start, end), reasons)

    def read_at_once(self, start: int, length: int) -> bytes | None:
        """Read without a wait; None if bytes are not in memory, or anything is wrong."""
        found = self.read_by(self.content.at_hand, start, start + length)
        return None if isinstance(found, list) else found

    def write(self, offset: int, data: bytes | memoryview) -> int:
        """Write at ``offset``. Return the number of bytes, fewer only if no space is free.

        Raises OSError, and Damaged if the store cannot complete a block. Then nothing was written.
        """
        self._tell(offset, offset + len(data))
        return self.content.repairing(lambda source: self.write_by(source, offset, data))

    def write_at_once(self, offset: int, data: bytes | memoryview) -> int | None:
        """Write without a wait for the store; None if memory lacks bytes of the store."""
        self._tell(offset, offset + len(data))
        written = self.write_by(self.content.at_hand, offset, data)
        return None if isinstance(written, list) else written

    def truncate(self, size: int) -> bool:
        """Set the length; True if the file is plain from now on. Raises OSError, Damaged."""
        return self.content.repairing(lambda source: self.truncate_by(source, size))

    def allocate(self, start: int, end: int, *, keep_size: bool) -> RangeStep:
        """Give a range blocks, from its start on, so that later writes of it need no space. Raises
        OSError, Damaged."""
        self._tell(start, end)
        allocate = lambda source: self.allocate_by(source, start, end, keep_size)  # noqa: E731
        return RangeStep(*self.content.repairing(allocate))

    def zero(self, start: int, end: int) -> RangeStep:
        """Make a range read as zeros, from its start to the end of the file at most, and free the
        blocks that this does not need. Raises OSError, Damaged."""
        self._tell(start, end)
        return RangeStep(*self.content.repairing(lambda source: self.zero_by(source, start, end)))

    def seal(self) -> bool:
        """Make the attribute count the stub's own blocks; False if some have no place on the disk
        yet. Nothing else may use the stub during this call. Raises OSError."""
        return self.content.repairing(self.seal_by)

    def _tell(self, start: int, end: int) -> None:
        if self.watch is not None:
            self.watch(start, end)
