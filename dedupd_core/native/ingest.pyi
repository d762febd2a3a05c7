"""Reads files and splits them into chunks; decides which new chunks to store."""

from collections.abc import Iterator, Set
from typing import Final, Literal, final

from typing_extensions import Buffer

from dedupd_core.format.ids import PackedIds

from .admission import Ledger, Recall
from .chunker import Chunks
from .commit import CommitRequests
from .tree import Identity

@final
class NewChunks:
    """Chunks to be stored in the same way: parallel arrays, one element per chunk."""

    raw_bytes: Final[int]
    """Total of all chunks."""
    fingerprints: Final[bytes]
    """32 bytes per chunk."""
    starts: Final[bytes]
    """u32 start offsets in the data that was split."""
    lengths: Final[bytes]
    """u32 lengths."""
    hints: Final[bytes]
    """u32 length of the chunk that follows each in its segment, 0 if there is none."""
    def __len__(self) -> int: ...
    def retained(self, kept: Buffer) -> NewChunks:
        """Return only those whose item of ``kept`` is not 0. Raises ValueError."""

@final
class Placed:
    """The sorted :class:`.chunker.Chunks`: zeros, known, repeated in the data, or new."""

    new: Final[tuple[NewChunks, NewChunks]]
    """Those to be compressed, and those to be stored uncompressed."""
    duplicate_bytes: Final[int]
    """Bytes of chunks that are neither new nor zeros."""
    zero_bytes: Final[int]
    def ids(self, first: int, first_as_is: int) -> PackedIds:
        """Return the id of every chunk, 0 for zeros; new ids start with these arguments."""
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
        """Decide which segments are stored, in their order: :data:`JUDGE` and the other modes.

        ``later`` has the u64 id of each new chunk that the store has received since, else 0.
        ``stored_lengths`` has the u32 bytes of its payload, ``freed`` the u64 bytes of the blocks
        that each segment frees. All segments with a chunk share its cost, but chunks that are
        wanted by :class:`.admission.Recall` are free; ``salt`` as in :meth:`.Ledger.use_salt`.
        Raises ValueError.
        """

JUDGE: Final[int]
"""A file, or all new parts of it: stored if it saves the fraction ``saving_min``."""
STORE: Final[int]
"""Stored."""
LEAVE: Final[int]
"""Not stored."""
BEGIN: Final[int]
"""The start of a file: judged as if it freed as many bytes as are not zeros."""

@final
class Judgement:
    """The decision on the new chunks of a buffer."""

    @property
    def taken(self) -> bytes:
        """1 for each segment that is stored, else 0."""
    @property
    def costs(self) -> list[int]:
        """Bytes that each would add to the store."""
    @property
    def unique(self) -> list[int]:
        """Number of chunks of each that neither the store nor an earlier segment has."""
    @property
    def fresh(self) -> list[int]:
        """The bytes of these chunks."""
    @property
    def solid(self) -> list[int]:
        """The bytes of each that are not zeros."""
    @property
    def later_bytes(self) -> int:
        """Bytes of new chunks that the store has received since."""
    @property
    def kept(self) -> tuple[bytes, bytes]:
        """1 for each new chunk to be stored, else 0."""
    def ids(self, first: int, first_as_is: int) -> PackedIds:
        """Like :meth:`Placed.ids`; ids of stored chunks start with these arguments. A chunk that is
        not stored has an id that no recipe uses."""
    def note_stored(self, ledger: Ledger) -> None:
        """Note the stored chunks: skipped files may have them."""
    def prefixes(self, part: int, found: Chunks) -> bytes:
        """Return u64 starts of the fingerprints of a segment's new chunks. Raises ValueError."""

Why = Literal["unopened", "changed before", "in use", "large units", "shared", "changed", "io"]
"""``unopened`` and ``io``: for the reason ``errno``. ``changed``: while it was read."""

@final
class Unread:
    """Why a file is not read. ``shared_bytes``: in blocks that snapshots or copies below have."""

    why: Final[Why]
    errno: Final[int]
    shared_bytes: Final[int]

def examine(fd: int, identity: Identity, is_whole: bool, unshared_only: bool) -> int | Unread:
    """Check that an open file may be read. Without ``is_whole``, check only its blocks. The file
    must have this ``identity``, and no process may have it open for writing. Waits up to about a
    second until the last change is old enough. Each block must be freeable alone. With
    ``unshared_only``, no block may belong to other files or snapshots. Returns how many bytes of
    the blocks other files or snapshots share.
    """

@final
class FileList:
    """Plain files in an optimize job, without an object per file."""

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
        ``directory``. With ``suffixes``, only those whose names end in one of them. Those whose
        names end in one of ``as_is`` are not compressed. With ``sample`` (n, k, True), only those
        whose inodes are k modulo n; with (n, k, False), only the others. With ``sizes`` (start,
        end), only those with a size in this range. Raises ValueError if ``packed`` is invalid."""
    def __len__(self) -> int: ...
    def __getitem__(self, at: int, /) -> tuple[bytes, Identity, bool]:
        """Return path, identity, and whether to store it uncompressed. Raises IndexError."""
    def __iter__(self) -> Iterator[tuple[bytes, Identity, bool]]: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def as_is(self) -> bytes:
        """1 for each file that is stored uncompressed, else 0."""
    def add(self, path: bytes, identity: Identity, as_is: bool) -> None: ...
    def take(self, source: FileList, at: int, size_max: int, room: int, count_max: int) -> int:
        """Add files of ``source`` from ``at`` on, up to the first of more than ``size_max`` bytes:
        at most ``count_max`` files, of at most ``room`` bytes together. Returns their number."""
    @property
    def read_bytes(self) -> int:
        """Those outside of holes, of files that were read."""
    def read(
        self,
        dir_fd: int,
        out: Buffer,
        offset: int,
        threads: int = 1,
        unshared_only: bool = True,
    ) -> list[tuple[tuple[bytes, Identity, bool], Unread]]:
        """Read the complete files, one after the other, into ``out`` from ``offset`` on, bypassing
        the page cache.

        Each file occupies as many bytes as it had, read or not. A file is read only if it passes
        :func:`examine`, and is the same afterwards. The other files are removed from the list and
        returned with the reasons; the content of their bytes in ``out`` is undefined. Raises
        ValueError if ``out`` is too short.
        """
    def shared_bytes(self, judgement: Judgement) -> int:
        """How many bytes in the blocks of files that are taken others have as well."""
    def freed_bytes(self, block_bytes: int) -> bytes:
        """Return u64 bytes of the blocks of each file. Raises ValueError."""
    def single(
        self, found: Chunks, ids: Buffer, judgement: Judgement, into: CommitRequests
    ) -> list[int]:
        """Add each selected file that is one chunk, and not zeros, to ``into``: its recipe is that
        chunk. Returns the numbers of the other selected files.

        ``found`` are the chunks of these files, ``ids`` the u64 ids of all. Raises ValueError.
        """
    def tally(self, judgement: Judgement) -> list[tuple[bytes, bytes, int, int, int, int]]:
        """Return by top folder and by suffix (the part after the last dot of the name): number of
        files, their bytes, bytes of new chunks, bytes of blocks saved. Raises ValueError."""
    def leave(
        self,
        found: Chunks,
        judgement: Judgement,
        ledger: Ledger,
        saving_min: float,
        again: bool,
    ) -> tuple[int, int]:
        """Record the files that are not stored; with ``again`` as recalled files. Returns their
        number and bytes. Raises ValueError."""
