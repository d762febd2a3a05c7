"""Directories of a volume, many at once.

What these functions call a safe point is called every some entries, by any of the threads; an
exception there ends the call.
"""

from collections.abc import Callable, Sequence
from typing import Final, Literal, final

from dedupd_core.format.ids import PackedIds, PackedLengths

from .admission import Ledger, Recall
from .upkeep import KnownRecords

Identity = tuple[int, int, int, int]
"""Of a file: inode, size, mtime and ctime in ns. ``stub.transition.FileIdentity`` is one."""

@final
class FileEntry:
    """A regular file of a directory, as a scan came upon it."""

    name: Final[bytes]
    identity: Final[Identity]
    links: Final[int]
    owner: Final[int]
    allocated_bytes: Final[int]
    attribute: Final[bytes | None]
    """Value of the stub attribute; None where there is none, empty where it is unreadable."""

class Directory:
    """A directory, and those of its files that are left to the caller."""

    directories: Final[list[bytes]]
    """Names, in any order."""
    files: Final[list[FileEntry]]

@final
class Unreadable:
    """A directory that cannot be read; ``EXDEV`` where it is of another file system."""

    def __new__(cls, errno: int) -> Unreadable: ...
    errno: Final[int]

@final
class CountedStubs(Directory):
    """What was counted in a directory. Nothing of ``files`` is."""

    stubs: Final[int]
    plain_files: Final[int]
    logical_bytes: Final[int]
    """Of the stubs."""

@final
class StubCounter:
    """Counts what the stubs of a tree refer to, where all of that is there."""

    def __new__(
        cls,
        chunks: KnownRecords,
        nodes: KnownRecords,
        streams: Sequence[tuple[int, int, int, int]],
        *,
        attribute: bytes,
        seeds: tuple[int, int],
        tables: tuple[int, Sequence[tuple[int, bytes, int]]] | None,
    ) -> StubCounter:
        """``streams`` are containers of recipes: number, descriptors of data and table, seed; the
        caller keeps them open. ``seeds`` are those of the attribute: of its checksum, and of what
        binds it to its inode.

        ``tables`` are those of the containers of chunks: a directory, which the caller keeps open,
        and number, name and seed of each. With them, the chunk that a stub names is compared with
        all that the stub keeps of its fingerprint, without them with what is known of chunks.
        """
    def look_at(
        self,
        root: int,
        directories: Sequence[bytes],
        threads: int,
        safe_point: Callable[[], None],
    ) -> list[CountedStubs | Unreadable]:
        """Look at directories: paths below the descriptor ``root``, over no link and into no other
        file system.

        Left are files of several names, and stubs of which anything is out of the ordinary: blocks
        of their own, an attribute that is bound to another inode, a transition, a recipe of
        several nodes, a record that is not there, or that leads to another one.
        """

Reason = Literal["optimized", "empty", "small", "judged", "full", "young"]
"""Why a file is passed over: a stub with nothing to do about it, an empty file, a small one, one
that would save too little, or that is not among the recalled ones, one that was changed too
recently."""

@final
class Rules:
    """What the policy asks of a file."""

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
        """At least ``size_min`` bytes, and no change after ``newest_ns``; not judged by ``ledger``;
        with ``recall`` one of its files. ``seed`` is that of the attribute's checksum,
        ``chunk_bytes`` the average of a chunk. ``by_owner``: plain files of several owners are
        packed apart. Raises ValueError.
        """
    def is_young(self, identity: Identity) -> bool:
        """Whether a file was changed too recently."""
    def reason(self, identity: Identity) -> Reason | None:
        """Why a plain file is passed over, as far as its identity tells."""

@final
class PackedFiles:
    """Up to 4,096 plain files of a directory, for :class:`.ingest.FileList`."""

    packed: Final[bytes]
    count: Final[int]
    size_bytes: Final[int]
    owner: Final[int]
    """Of all of them; 0 where they are not packed by owner."""
    chunks: Final[list[tuple[bytes, int]]]
    """About how many chunks they have, by what follows the last dot of their names."""
    files: Final[list[tuple[bytes, int]]]
    """How many they are, likewise."""

@final
class DirectoryCandidates(Directory):
    """What an optimize job has to do with a directory.

    ``files`` are those of several names, and stubs of which anything is out of the ordinary.
    """

    passed: Final[dict[Reason, tuple[int, int]]]
    """Files that are passed over, and their bytes."""
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
    """Sort the files of directories out, as in :meth:`StubCounter.look_at`."""

@final
class StubSizes(Directory):
    """The stubs of a directory. ``files`` are those of several names."""

    bytes_by_suffix: Final[list[tuple[bytes, int]]]
    """Bytes of all other stubs, by what follows the last dot of their names: empty where
    nothing follows, where there is no dot, or where it is the first byte."""

def stub_sizes(
    root: int,
    directories: Sequence[bytes],
    attribute: bytes,
    threads: int,
    safe_point: Callable[[], None],
) -> list[StubSizes | Unreadable]:
    """Sum up the stubs of directories, as in :meth:`StubCounter.look_at`."""

@final
class UsageSums:
    """Files of a directory that are alike. ``own_bytes`` are in blocks of their own."""

    files: Final[int]
    stubs: Final[int]
    logical_bytes: Final[int]
    own_bytes: Final[int]
    stubs_own_bytes: Final[int]
    """Of the stubs among them."""
    optimized_bytes: Final[int]
    """Lengths of stubs."""
    direct_bytes: Final[int]
    """Lengths of stubs that name a chunk, in whole blocks."""
    chunks: Final[PackedIds]
    """Those that stubs name."""
    recipes: Final[PackedIds]
    covered: Final[PackedLengths]
    """What is covered of each recipe."""

@final
class StubUsage(Directory):
    """The files of a directory. ``files`` are those of several names, and those with an attribute
    that is not valid."""

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
    (u32) or type (what follows the last dot of their names). ``seed`` is that of the attribute's
    checksum."""

def scan_directory(
    fd: int, attribute: bytes, safe_point: Callable[[], None] | None = None
) -> Directory:
    """Names of directories, and all regular files on the same file system, in the order of inodes.

    No link is followed; files that vanish meanwhile are passed over. Raises OSError.
    """
