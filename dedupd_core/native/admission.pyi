"""Files that would save too little: records of them, and the selection of files to read again."""

from collections.abc import Iterator, Set
from typing import final

from typing_extensions import Buffer

from .tree import Identity

Saved = tuple[int, int, int]
"""A descriptor, and the start and the end of the notes in that file."""

def pays(freed: int, cost: int, saving_min: float) -> bool:
    """Return whether a file saves the fraction ``saving_min``, 0 for always. It frees ``freed``
    bytes of blocks, and needs ``cost`` bytes in the store."""

def verdict(freed: int, cost: int, unique: int, saving_min: float) -> tuple[float, int]:
    """Return the fraction of its blocks that a file saves. Also estimate how many of its ``unique``
    chunks the store must have for the file to save ``saving_min``."""

@final
class Ledger:
    """The files that earlier runs have judged, and those of this run. For several threads."""

    def __new__(cls, rows: Buffer, saving_min: float, *, rows_max: int, notes_max: int) -> Ledger:
        """``rows`` are those of judged files (docs/design/format.md). A file that would save
        ``saving_min`` is judged again. Files beyond ``rows_max``, and their chunks, are not
        recorded; see :attr:`is_full` for ``notes_max``. Raises ValueError."""
    def use_salt(self, salt: int) -> None:
        """Note the following chunks for files of another domain. They share nothing with chunks
        noted with another salt (u64)."""
    def saving_of(self, identity: Identity) -> float | None:
        """Return the share of blocks that a file saves, as earlier found; None if it changed."""
    def note(self, inode: int, prefixes: Buffer) -> None:
        """Note chunks of a file: u64 first bytes of their fingerprints."""
    def leave(self, identity: Identity, saving: float, missing: int) -> None:
        """Record a skipped file. Notes of earlier runs on it are no longer valid."""
    def leave_full(self, identity: Identity, recalled: bool) -> None:
        """Record a file whose attributes leave no room for that of a stub."""
    def leave_again(self, identity: Identity, saving: float, missing: int) -> None:
        """Record a recalled file that is skipped again; its notes stay valid."""
    @property
    def is_full(self) -> bool:
        """Whether to save and forget the notes of this run before there are more."""
    @property
    def has_changed(self) -> bool:
        """Whether this run has recorded anything since :meth:`forget_notes`."""
    def forget_notes(self) -> None:
        """Drop the notes of this run, which are saved."""
    def snapshot(self, whole: bool, recalled: Set[int] = frozenset()) -> Snapshot:
        """Return the data to save. ``whole``: the walk has found every file, so all others are
        deleted. ``recalled`` inodes are only judged by :meth:`leave_again`."""

@final
class Snapshot:
    """The files that stay judged, and the notes of a run."""

    @property
    def rows(self) -> bytes:
        """The rows of the files, by inode."""
    @property
    def files(self) -> int: ...
    @property
    def size_bytes(self) -> int:
        """Size of the rows, and of the notes of the run."""
    def join(self, saved: Saved | None, entries_max: int) -> Recall:
        """Find the files that have chunks in common. Raises OSError if notes cannot be read."""
    def notes(self, saved: Saved | None, joined: bool) -> Notes:
        """Return all valid notes, in pieces, in the form to save; with ``joined`` none is new.
        Raises OSError."""

@final
class Notes:
    """The notes of a run in pieces, in the form to save."""

    def __iter__(self) -> Iterator[bytes]: ...
    def __next__(self) -> bytes:
        """Return the next piece. Raises StopIteration, OSError."""

@final
class Recall:
    """Files to read again, and the chunks that cost them nothing."""

    def __new__(cls, inodes: Set[int] = frozenset()) -> Recall: ...
    def __len__(self) -> int:
        """The number of files."""
    @property
    def inodes(self) -> set[int]: ...
    @property
    def wanted(self) -> int:
        """The number of chunks."""
    @property
    def is_cut(self) -> bool:
        """Whether more did not fit into memory."""
    def including(self, inodes: Set[int]) -> Recall:
        """Return the same with further files."""
