"""Directories of a volume, many per call.

The safe point of these functions is called regularly, after some entries, by any of the threads; an
exception there ends the call.
"""

from collections.abc import Callable, Sequence
from typing import Final, Literal, final

from dedupd_core.format.ids import PackedIds, PackedLengths

from .admission import Ledger, Recall
from .store import Bases
from .upkeep import KnownRecords

Identity = tuple[int, int, int, int]
"""Identity of a file: inode, size, mtime and ctime in ns, as ``stub.transition.FileIdentity``."""

@final
class FileEntry:
    """A regular file of a directory that a scan found."""

    name: Final[bytes]
    identity: Final[Identity]
    links: Final[int]
    owner: Final[int]
    allocated_bytes: Final[int]
    attribute: Final[bytes | None]
    """Value of the stub attribute; None if there is none, empty if it is unreadable."""

class Directory:
    """A directory, and its files that the caller must handle."""

    directories: Final[list[bytes]]
    """Names, in any order."""
    files: Final[list[FileEntry]]

@final
class Unreadable:
    """A directory that cannot be read; ``EXDEV`` if it is on another file system."""

    def __new__(cls, errno: int) -> Unreadable: ...
    errno: Final[int]

@final
class CountedStubs(Directory):
    """The counts of a directory, without ``files``."""

    stubs: Final[int]
    plain_files: Final[int]
    logical_bytes: Final[int]
    """Length of the stubs."""

@final
class StubCounter:
    """Counts the references of the stubs of a tree, if all of the records exist."""

    def __new__(
        cls,
        chunks: KnownRecords,
        nodes: KnownRecords,
        chunk_records: Bases,
        recipes: Bases,
        *,
        attribute: bytes,
        seeds: tuple[int, int],
        is_exact: bool,
    ) -> StubCounter:
        """``seeds`` are those of the attribute: of its checksum, and of what binds it to its inode.

        ``is_exact``: compare a stub that names a chunk with the table entry of the chunk. Otherwise
        compare it only with ``chunks``, which has less of each fingerprint.
        """
    def look_at(
        self,
        root: int,
        directories: Sequence[bytes],
        threads: int,
        safe_point: Callable[[], None],
    ) -> list[CountedStubs | Unreadable]:
        """Examine directories: paths below the descriptor ``root``. Follows no link, and enters no
        other file system.

        The caller must handle files with several names, and unusual stubs. These have local blocks,
        an attribute that is bound to another inode, a transition, a recipe of several nodes, or a
        missing or redirected record.
        """

Reason = Literal["optimized", "empty", "small", "judged", "full", "young"]
"""Why a file is skipped. It is a stub without work, is empty, is small, saves too little (or is not
recalled), has no room for another attribute, or has changed too recently."""

@final
class Rules:
    """The policy's conditions for a file."""

    def __new__(
        cls,
        *,
        seed: int,
        size_min: int,
        newest_ns: int,
        chunk_bytes: int,
        ledger: Ledger | None = None,
        recall: Recall | None = None,
        by_owner: bool = False,
    ) -> Rules:
        """Conditions: at least ``size_min`` bytes; no change after ``newest_ns``; not judged by
        ``ledger``; with ``recall`` one of its files. ``seed`` is that of the attribute's checksum,
        ``chunk_bytes`` the average of a chunk. ``by_owner``: plain files of different owners are
        packed separately. Raises ValueError."""
    def is_young(self, identity: Identity) -> bool:
        """Return whether a file was changed too recently."""
    def reason(self, identity: Identity) -> Reason | None:
        """Return why a plain file is skipped, as far as its identity determines it."""

@final
class PackedFiles:
    """Up to 4,096 plain files of a directory, for :class:`.ingest.FileList`."""

    packed: Final[bytes]
    count: Final[int]
    size_bytes: Final[int]
    owner: Final[int]
    """Owner of all files; 0 if they are not packed by owner."""
    chunks: Final[list[tuple[bytes, int]]]
    """Estimated number of their chunks, by the part of the name after the last dot."""
    files: Final[list[tuple[bytes, int]]]
    """Number of the files, by the same part of the name."""

@final
class DirectoryCandidates(Directory):
    """The work of an optimize job in a directory.

    ``files`` are those with several names, and unusual stubs.
    """

    passed: Final[dict[Reason, tuple[int, int]]]
    """Skipped files, and their bytes."""
    plain: Final[list[PackedFiles]]
    """Plain files for the job."""
    markers: Final[list[bytes]]
    """Names of files of this directory that may keep it plain: ``CACHEDIR.TAG``, ``.nodedup``."""

def find_candidates(
    root: int,
    directories: Sequence[bytes],
    attribute: bytes,
    threads: int,
    safe_point: Callable[[], None],
    rules: Rules,
) -> list[DirectoryCandidates | Unreadable]:
    """Sort the files of directories, as in :meth:`StubCounter.look_at`."""

@final
class UsageSums:
    """Files of a directory with the same owner or type. ``own_bytes`` are in their own blocks."""

    files: Final[int]
    stubs: Final[int]
    logical_bytes: Final[int]
    own_bytes: Final[int]
    stubs_own_bytes: Final[int]
    """``own_bytes`` of the stubs."""
    optimized_bytes: Final[int]
    """Lengths of stubs."""
    direct_bytes: Final[int]
    """Lengths of stubs that name a chunk, in complete blocks."""
    chunks: Final[PackedIds]
    """Chunks that stubs name."""
    recipes: Final[PackedIds]
    covered: Final[PackedLengths]
    """The covered length of each recipe."""

@final
class StubUsage(Directory):
    """The files of a directory. ``files`` are those with several names, and those with an invalid
    attribute."""

    sums: Final[dict[bytes, UsageSums]]

def sum_up(
    root: int,
    directories: Sequence[bytes],
    attribute: bytes,
    threads: int,
    safe_point: Callable[[], None],
    *,
    seed: int,
    by: Literal["", "owner", "type"],
) -> list[StubUsage | Unreadable]:
    """Sum up the files of directories, as in :meth:`StubCounter.look_at`: all together, or by owner
    (u32) or type (the part of the name after the last dot). ``seed`` is that of the attribute's
    checksum."""

def scan_directory(
    fd: int, attribute: bytes, safe_point: Callable[[], None] | None = None
) -> Directory:
    """Return the subdirectories, and the regular files on this file system in order of inodes.

    Follows no link; files that vanish during the scan are skipped. Raises OSError.
    """
