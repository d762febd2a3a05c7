"""The steps that turn plain files into stubs."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal, final

from .tree import Identity

Recipe = tuple[int, bytes, bool]
"""The recipe of a file: id, digest, and whether it is a chunk."""

CommitFields = tuple[bytes, Identity, Recipe, bytes | None, bool]
"""The fields of ``commit_requests.CommitRequest``."""

Why = Literal[
    "unopened",
    "unoffered",
    "in use",
    "opened",
    "other stub",
    "capable",
    "large units",
    "changed",
    "touched",
    "full",
    "io",
    "half way",
]
"""``unopened``, ``io``, ``half way``: for the reason ``errno``. After ``half way`` the file stays a
stub, which is settled when it is opened; after every other reason, it is as before the commit."""

@final
class Refusal:
    """Why a file does not become a stub."""

    why: Final[Why]
    errno: Final[int]

@final
class CommitRequests:
    """Files to be committed together, without an object for each."""

    def __len__(self) -> int: ...
    def __getitem__(self, at: int, /) -> CommitFields:
        """Return one request. Raises IndexError."""
    def __iter__(self) -> Iterator[CommitFields]: ...
    @property
    def size_bytes(self) -> int:
        """Total size of all files."""
    @property
    def paths(self) -> list[bytes]: ...
    def add(
        self,
        path: bytes,
        identity: Identity,
        recipe: Recipe,
        previous: bytes | None = None,
        in_parts: bool = False,
    ) -> None:
        """Raises ValueError if a path contains a NUL byte, or a digest does not have 16 bytes."""
    def take(self, source: CommitRequests) -> None:
        """Move all requests of ``source`` to this object."""
    @property
    def are_plain(self) -> bytes:
        """1 for each plain file that is committed entirely, else 0."""
    @property
    def inodes(self) -> bytes:
        """Their numbers, u64 each."""
    def to_bytes(self) -> bytes:
        """Encode the requests for the process that serves a mount (docs/design/control.md)."""
    @staticmethod
    def from_bytes(data: bytes) -> CommitRequests:
        """Decode :meth:`to_bytes`. Raises ValueError."""
    def pick(self, positions: Sequence[int]) -> CommitRequests:
        """Return a copy of the requests at these positions. Raises IndexError."""
    def part(self, first: int, end: int) -> CommitRequests:
        """Return a copy of the existing requests in this range of positions."""

@final
class CommitBatch:
    """Commits of many files: the steps are those of :func:`begin` and :func:`finish`.

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
    def begin(self, requests: CommitRequests) -> list[tuple[int, Refusal]]:
        """Open each file and set its attribute.

        Returns the positions of the files whose commits do not start. The others stay open, and
        leased, until they are finished.
        """
    def finish(self) -> tuple[list[tuple[int, Refusal]], int]:
        """Punch the files whose commits have started, and settle their attributes.

        Returns the positions of those that do not become stubs, and how many bytes of blocks all
        others have freed. Every commit ends with this call.
        """
    def take(self, at: int) -> tuple[int, Identity] | None:
        """The descriptor of a file whose commit has started, and its identity with the attribute;
        None for other files. The descriptor and the commit are the caller's from now on."""
    def revert(self) -> int:
        """Roll back all commits that have started, and close the files.

        Returns for how many that failed: each of these is a stub that has all its blocks. Not
        synced.
        """
    def close(self) -> None: ...

def begin(
    fd: int,
    file: tuple[Identity, Recipe, bytes | None],
    space: tuple[bytes, tuple[int, int], int],
    door: Callable[..., int] | None,
) -> Identity | Refusal:
    """Set the attribute of a stub that is being committed on an open file.

    ``file``: its identity when it was read, its recipe, and the attribute that it has (None: none).
    ``space``: the name and seeds of the volume's attributes, and its block size.

    Returns the identity of the file with the attribute.

    Durable effect: an extended attribute, by the door.
    """

def finish(
    fd: int,
    begun: Identity,
    file: tuple[Identity, Recipe, bytes | None],
    space: tuple[bytes, tuple[int, int], int],
    door: Callable[..., int] | None,
) -> int | Refusal:
    """Punch a file whose attribute is durable and that is still ``begun``, and blocks after its
    end; restore its times; settle its attribute. Returns how many bytes of blocks it has freed.

    Durable effect: blocks, times, an extended attribute, by the door.
    """
