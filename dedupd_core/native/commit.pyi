"""The steps that make plain files stubs."""

from collections.abc import Callable, Iterator, Sequence
from typing import final

from .tree import Identity

Recipe = tuple[int, bytes, bool]
"""Of a file: id, digest, and whether it is a chunk."""

@final
class PlainRequests:
    """Plain files to be committed: path, identity, and recipe of each."""

    def __len__(self) -> int: ...
    def __getitem__(self, at: int, /) -> tuple[bytes, Identity, Recipe]:
        """Raises IndexError."""
    def __iter__(self) -> Iterator[tuple[bytes, Identity, Recipe]]: ...
    @property
    def size_bytes(self) -> int:
        """Of all files together."""
    @property
    def paths(self) -> bytes:
        """Each with a NUL byte after it."""
    def add(self, path: bytes, identity: Identity, recipe: Recipe) -> None:
        """Raises ValueError where a path has a NUL byte in it, or a digest not 16 bytes."""
    def take(self, source: PlainRequests) -> None:
        """Add what ``source`` has, which has nothing afterwards."""
    @property
    def inodes(self) -> bytes:
        """Their numbers, u64 each."""
    def to_bytes(self) -> bytes:
        """As they travel to the process that serves a mount (docs/design/control.md)."""
    @staticmethod
    def from_bytes(data: bytes) -> PlainRequests:
        """The inverse. Raises ValueError."""
    def pick(self, positions: Sequence[int]) -> PlainRequests:
        """A copy of those of these positions. Raises IndexError."""
    def part(self, first: int, end: int) -> PlainRequests:
        """A copy of those of these positions, as far as there are."""

@final
class CommitBatch:
    """Commits of many plain files; see ``dedupd_core/stub/transition.py`` for what the steps mean.

    A file that is out of the ordinary is left, or put back, as it was, for the caller to take it
    through the same steps by itself, which say what is wrong.

    Durable effect: extended attributes, punched blocks and times of the files, by the door.
    """

    def __new__(
        cls,
        data_fd: int,
        attribute: bytes,
        seeds: tuple[int, int],
        block_bytes: int,
        threads: int,
        is_shared: bool,
        door: Callable[..., int] | None,
    ) -> CommitBatch:
        """``seeds`` are those of the attribute: of its checksum, and of what binds it to its inode.
        Each step takes up to ``threads``, and one with a door (``Disk.door``). ``is_shared``:
        other processes may open the files, so each is leased from the first step to the second."""
    def begin(self, requests: PlainRequests) -> bytes:
        """Open each file and set its attribute.

        Returns 1 where that was done, else 0. Files stay open, and leased, until they are finished.
        """
    def finish(self) -> tuple[bytes, int]:
        """Punch the files that have begun, have not changed since, and are open nowhere else, and
        settle their attributes.

        Returns 1 for each request of which all is done, else 0; and how many bytes of blocks these
        files have given up. A file that failed from its punch
        on has not begun any more: it is not to be taken back, and is settled when it is opened.
        """
    def begun(self, at: int) -> tuple[int, Identity] | None:
        """Descriptor, and identity with the attribute set, of a file that has begun and is not
        finished; None for others. The descriptor is good until :meth:`close`.
        """
    def take(self, at: int) -> tuple[int, Identity] | None:
        """As :meth:`begun`; the descriptor is the caller's from now on, and so is the commit."""
    def revert(self) -> bytes:
        """Take back all that has begun and is not finished, and close the files.

        Returns 1 for each where that failed: it is a stub that has all its blocks. Not synced.
        """
    def close(self) -> None: ...

def exchange_attribute(
    fd: int,
    identity: Identity,
    name: bytes,
    previous: bytes | None,
    value: bytes,
    door: Callable[..., int] | None,
) -> Identity | None:
    """Set an extended attribute on a file that is ``identity`` and has ``previous`` (None: none).

    Inode, size, mtime and ctime in ns; returns what they are then. None, and nothing done, where
    the file is another one, or has changed, or has another attribute, or capabilities, which
    the punching of its blocks would take away. Raises OSError.

    Durable effect: an extended attribute, by the door.
    """

def punch_and_settle(
    fd: int,
    length: int,
    times_ns: tuple[int, int],
    name: bytes,
    value: bytes,
    door: Callable[..., int] | None,
) -> int:
    """Punch the first ``length`` bytes, and what was allocated behind the end of the file, set the
    times (last access, last modification), set an attribute. Returns how many bytes of blocks the
    file has given up. Raises OSError.

    Durable effect: blocks, times, an extended attribute, by the door.
    """
