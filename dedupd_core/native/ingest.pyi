"""Files that are read and cut, and their new chunks."""

from collections.abc import Iterator, Set
from typing import Final, final

from typing_extensions import Buffer

from dedupd_core.format.ids import PackedIds

from .admission import Ledger, Recall
from .chunker import Chunks
from .commit import PlainRequests
from .tree import Identity

@final
class NewChunks:
    """Chunks to be stored alike: parallel arrays, one element per chunk."""

    raw_bytes: Final[int]
    """Of all together."""
    fingerprints: Final[bytes]
    """32 bytes per chunk."""
    starts: Final[bytes]
    """u32 start offsets in the data that was cut."""
    lengths: Final[bytes]
    """u32 lengths."""
    hints: Final[bytes]
    """u32 length of the chunk that follows each in its segment, 0 where none does."""
    def __len__(self) -> int: ...
    def retained(self, kept: Buffer) -> NewChunks:
        """Only those whose item of ``kept`` is not 0. Raises ValueError."""

@final
class Placed:
    """What becomes of :class:`.chunker.Chunks`: zeros, known, met before in the data, or new."""

    new: Final[tuple[NewChunks, NewChunks]]
    """Those to be compressed, and those to be stored as they are."""
    duplicate_bytes: Final[int]
    """Of chunks that are neither new nor zeros."""
    zero_bytes: Final[int]
    def ids(self, first: int, first_as_is: int) -> PackedIds:
        """The id of every chunk, 0 for zeros, where those of new chunks begin with these."""
    def judge(
        self,
        later: tuple[Buffer, Buffer],
        stored_lengths: tuple[Buffer, Buffer],
        modes: Buffer,
        freed: Buffer,
        recall: Recall,
        saving_min: float,
        *,
        salt: int = 0,
    ) -> Judgement:
        """Decide which segments are taken, in their order: :data:`JUDGE` and the other modes.

        ``later`` has the u64 id of each new chunk that the store has got meanwhile, else 0, and
        ``stored_lengths`` the u32 bytes of its payload; ``freed`` the u64 bytes of the blocks that
        each segment gives up. A chunk of several segments is paid for by all of them, one that is
        wanted by :class:`.admission.Recall` by none; ``salt`` as in :meth:`.Ledger.use_salt`.
        Raises ValueError.
        """

JUDGE: Final[int]
"""A file, or all that is new of it: taken where it saves the fraction ``saving_min``."""
STORE: Final[int]
"""Taken."""
LEAVE: Final[int]
"""Not taken."""
BEGIN: Final[int]
"""The beginning of a file: judged as if it gave up as many bytes as are not zeros."""

@final
class Judgement:
    """What is done with the new chunks of a buffer."""

    @property
    def taken(self) -> bytes:
        """1 for each segment that is taken, else 0."""
    @property
    def costs(self) -> list[int]:
        """What each would add to the store, in bytes."""
    @property
    def unique(self) -> list[int]:
        """How many chunks of each neither the store has nor a segment before."""
    @property
    def fresh(self) -> list[int]:
        """The bytes of these."""
    @property
    def solid(self) -> list[int]:
        """The bytes of each that are not zeros."""
    @property
    def later_bytes(self) -> int:
        """Of new chunks that the store has got meanwhile."""
    @property
    def kept(self) -> tuple[bytes, bytes]:
        """1 for each new chunk that is to be stored, else 0."""
    def ids(self, first: int, first_as_is: int) -> PackedIds:
        """As :meth:`Placed.ids`, where those of stored chunks begin with these. A chunk that is not
        stored has an id that no recipe takes."""
    def note_stored(self, ledger: Ledger) -> None:
        """Note the chunks that are stored: files that were left may have them."""
    def prefixes(self, part: int, found: Chunks) -> bytes:
        """u64 first bytes of the fingerprints of the new chunks of a segment. Raises ValueError."""

@final
class FileList:
    """Plain files on their way through an optimize job, without an object for each."""

    def __new__(
        cls,
        directory: bytes = b"",
        packed: bytes = b"",
        suffixes: Set[bytes] | None = None,
        as_is: Set[bytes] = frozenset(),
        sample: tuple[int, int, bool] | None = None,
        sizes: tuple[int, int] | None = None,
    ) -> FileList:
        """The plain files that :func:`.tree.find_candidates` has packed: paths are names after
        ``directory``. Of all, or of those whose names end in one of ``suffixes``; those whose names
        end in one of ``as_is`` are not to be compressed. With ``sample`` (n, k, True) only of those
        whose inodes leave k when they are divided by n, with (n, k, False) of the others. With
        ``sizes`` (start, end) only those of so many bytes. Raises ValueError where these are no
        such files.
        """
    def __len__(self) -> int: ...
    def __getitem__(self, at: int, /) -> tuple[bytes, Identity, bool]:
        """Path, identity, and whether it is not to be compressed. Raises IndexError."""
    def __iter__(self) -> Iterator[tuple[bytes, Identity, bool]]: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def as_is(self) -> bytes:
        """1 for each file that is not to be compressed, else 0."""
    def add(self, path: bytes, identity: Identity, as_is: bool) -> None: ...
    def take(self, source: FileList, at: int, size_max: int, room: int, count_max: int) -> int:
        """Add files of ``source`` from ``at`` on, up to the first of more than ``size_max`` bytes:
        at most ``count_max`` files, of at most ``room`` bytes together. Returns how many."""
    def read(
        self,
        dir_fd: int,
        settle_ns: int,
        out: Buffer,
        offset: int,
        threads: int = 1,
    ) -> list[tuple[bytes, Identity, bool]]:
        """Read each as a whole, one after the other, into ``out`` from ``offset`` on, bypassing the
        page cache. They must have no holes.

        Each takes as many bytes as it had, read or not. One is read only if its inode, size, mtime
        and ctime are its identity before and after, the last change is more than ``settle_ns`` ago,
        nobody has it open for writing, and no block of it belongs to another file, or to a
        snapshot, as well. The others are taken out of the list and returned, for
        the caller to find out why; their room may hold anything. Raises ValueError where ``out`` is
        short.
        """
    def freed_bytes(self, block_bytes: int) -> bytes:
        """u64 bytes of the blocks of each file. Raises ValueError."""
    def single(
        self, found: Chunks, ids: Buffer, judgement: Judgement, into: PlainRequests
    ) -> list[int]:
        """Add each file that is taken, is one chunk, and not zeros, to ``into``: that chunk is its
        recipe. Returns the numbers of the other files that are taken.

        ``found`` are the chunks of these files, ``ids`` the u64 ids of all. Raises ValueError.
        """
    def tally(self, judgement: Judgement) -> list[tuple[bytes, bytes, int, int, int, int]]:
        """By the folder at the top of their paths, and by what follows the last dot of their names:
        how many files, their bytes, bytes of new chunks, bytes of blocks saved. Raises ValueError.
        """
    def leave(
        self,
        found: Chunks,
        judgement: Judgement,
        ledger: Ledger,
        saving_min: float,
        again: bool,
    ) -> tuple[int, int]:
        """Have the files remembered that are not taken; with ``again`` as recalled ones. Returns
        how many, and their bytes. Raises ValueError."""
