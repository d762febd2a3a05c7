"""Files that would save too little: what is remembered of them, and which are read again."""

from collections.abc import Iterator, Set
from typing import final

from typing_extensions import Buffer

from .tree import Identity

Saved = tuple[int, int, int]
"""A descriptor, and the start and the end of the notes in that file."""

def pays(freed: int, cost: int, saving_min: float) -> bool:
    """Whether giving up ``freed`` bytes of blocks for ``cost`` bytes in the store saves the
    fraction ``saving_min`` of them. 0: always."""

def verdict(freed: int, cost: int, unique: int, saving_min: float) -> tuple[float, int]:
    """The fraction of its blocks that a file saves, and about how many of its ``unique`` chunks
    would have to be in the store for it to save ``saving_min``."""

@final
class Ledger:
    """The files that earlier runs have judged, and those of this run. For several threads."""

    def __new__(cls, rows: Buffer, saving_min: float, *, rows_max: int, notes_max: int) -> Ledger:
        """``rows`` are those of judged files (docs/design/format.md). A file that would save
        ``saving_min`` is judged again. Of more than ``rows_max`` files, and of their chunks,
        nothing is remembered; see :attr:`is_full` for ``notes_max``. Raises ValueError."""
    def use_salt(self, salt: int) -> None:
        """Note chunks of the files of another domain from here on: they have nothing in common with
        those that were noted with another salt (u64)."""
    def saving_of(self, identity: Identity) -> float | None:
        """The fraction of its blocks that an earlier run has found a file to save, if the file is
        as it was then."""
    def note(self, inode: int, prefixes: Buffer) -> None:
        """Note chunks of a file: u64 first bytes of their fingerprints."""
    def leave(self, identity: Identity, saving: float, missing: int) -> None:
        """Remember a file that is left. What earlier runs have noted of it counts no more."""
    def leave_full(self, identity: Identity, recalled: bool) -> None:
        """Remember a file whose attributes leave no room for that of a stub."""
    def leave_again(self, identity: Identity, saving: float, missing: int) -> None:
        """Remember a recalled file that is left; its notes stay."""
    @property
    def is_full(self) -> bool:
        """Whether the notes of this run should be saved, and forgotten, before there are more."""
    @property
    def has_changed(self) -> bool:
        """Whether this run has remembered anything since :meth:`forget_notes`."""
    @property
    def forgotten_files(self) -> int:
        """How many files there was no memory for."""
    def forget_notes(self) -> None:
        """All of this run is saved: its notes need no memory any more."""
    def snapshot(self, whole: bool, recalled: Set[int] = frozenset()) -> Snapshot:
        """What there is to be saved. ``whole``: the walk has met every file, so that others are
        gone. ``recalled`` inodes are judged only as :meth:`leave_again` says."""

@final
class Snapshot:
    """The files that stay judged, and the notes of a run."""

    @property
    def rows(self) -> bytes:
        """Of the files, by inode."""
    @property
    def files(self) -> int: ...
    @property
    def size_bytes(self) -> int:
        """Of the rows, and of the notes of the run."""
    def join(self, saved: Saved | None, entries_max: int) -> Recall:
        """Find the files that have chunks in common. Raises OSError where notes cannot be read."""
    def notes(self, saved: Saved | None, joined: bool) -> Notes:
        """All notes that count, in pieces, as they are to be saved; with ``joined`` none is new.
        Raises OSError."""

@final
class Notes:
    """The notes of a run in pieces, as they are to be saved."""

    def __iter__(self) -> Iterator[bytes]: ...
    def __next__(self) -> bytes:
        """The next piece. Raises StopIteration, OSError."""

@final
class Recall:
    """Files to be read again, and chunks that cost them nothing."""

    def __new__(cls, inodes: Set[int] = frozenset()) -> Recall: ...
    def __len__(self) -> int:
        """How many files."""
    @property
    def inodes(self) -> set[int]: ...
    @property
    def wanted(self) -> int:
        """How many chunks."""
    @property
    def is_cut(self) -> bool:
        """Whether there was no memory for more."""
    def including(self, inodes: Set[int]) -> Recall:
        """The same, with further files."""
