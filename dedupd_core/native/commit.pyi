"""The steps that turn plain files into stubs."""

from collections.abc import Callable, Iterator, Sequence
from typing import final

from .tree import Identity

Recipe = tuple[int, bytes, bool]
"""The recipe of a file: id, digest, and whether it is a chunk."""

@final
class PlainRequests:
    """Plain files to be committed: path, identity, and recipe of each."""

    def __len__(self) -> int: ...
    def __getitem__(self, at: int, /) -> tuple[bytes, Identity, Recipe]:
        """Return one request. Raises IndexError."""
    def __iter__(self) -> Iterator[tuple[bytes, Identity, Recipe]]: ...
    @property
    def size_bytes(self) -> int:
        """Total size of all files."""
    @property
    def paths(self) -> bytes:
        """Each path with a NUL byte after it."""
    def add(self, path: bytes, identity: Identity, recipe: Recipe) -> None:
        """Add a request. Raises ValueError for a path with a NUL byte, or a wrong digest size."""
    def take(self, source: PlainRequests) -> None:
        """Move all requests of ``source`` to this object."""
    @property
    def inodes(self) -> bytes:
        """Their numbers, u64 each."""
    def to_bytes(self) -> bytes:
        """Encode the requests for the process that serves a mount (docs/design/control.md)."""
    @staticmethod
    def from_bytes(data: bytes) -> PlainRequests:
        """Decode :meth:`to_bytes`. Raises ValueError."""
    def pick(self, positions: Sequence[int]) -> PlainRequests:
        """Return a copy of the requests at these positions. Raises IndexError."""
    def part(self, first: int, end: int) -> PlainRequests:
        """Return a copy of the existing requests in this range of positions."""

@final
class CommitBatch:
    """Commits of many plain files; ``dedupd_core/stub/transition.py`` explains the steps.

    An unusual file is skipped or restored. The caller takes it through the same steps alone, which
    report the problem.

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
        """``seeds`` are those of the attribute: of its checksum, and of its binding to its inode.
        Each step uses up to ``threads``, or one with a door (``Disk.door``). ``is_shared``: other
        processes may open the files, so each is leased from the first step to the second."""
    def begin(self, requests: PlainRequests) -> bytes:
        """Open each file and set its attribute.

        Returns 1 if that succeeded, else 0. Files stay open, and leased, until they are finished.
        """
    def finish(self) -> tuple[bytes, int]:
        """Punch the started files, and settle their attributes. Files that have changed since then,
        or are open elsewhere, are skipped.

        Returns 1 for each completed request, else 0, and the bytes of blocks that these files have
        freed. A file that failed during or after its punch no longer counts as started: it cannot
        be rolled back, and is settled when it is opened.
        """
    def begun(self, at: int) -> tuple[int, Identity] | None:
        """Return descriptor and new identity of a started, unfinished file; None for others. The
        descriptor is valid until :meth:`close`."""
    def take(self, at: int) -> tuple[int, Identity] | None:
        """Like :meth:`begun`; the caller takes over the descriptor and the commit."""
    def revert(self) -> bytes:
        """Roll back all commits that are started and not finished, and close the files.

        Returns 1 for each file for which that failed: it is a stub with all its blocks. Not synced.
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

    The identity is inode, size, mtime and ctime in ns. Returns the identity afterwards. Returns
    None, without a change, if the file has changed, is another one, or has another attribute. This
    includes files with capabilities, which the punching of blocks would remove. Raises OSError.

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
    """Punch and settle a file: the first ``length`` bytes and the blocks after its end, the times
    (last access, last modification), and an attribute. Returns the bytes of freed blocks. Raises
    OSError.

    Durable effect: blocks, times, an extended attribute, by the door.
    """
