"""Splits data into chunks, and computes their fingerprints."""

from collections.abc import Sequence
from typing import Final, final

from typing_extensions import Buffer

from .ingest import FileList, Placed

@final
class Chunks:
    """Result of :meth:`Chunker.process`: parallel arrays, one element per chunk."""

    ends: Final[bytes]
    """u32 end offset of each chunk, absolute in ``data``."""
    fingerprints: Final[bytes]
    """32 bytes per chunk."""
    zero: Final[bytes]
    """1 if every byte of the chunk is zero, else 0."""
    counts: Final[bytes]
    """u32 number of chunks found in each segment."""
    def __len__(self) -> int: ...
    def place(self, known: Buffer, as_is: Buffer) -> Placed:
        """Distinguish new chunks from known ones. ``known`` has the u64 id of each chunk in the
        index, and 0 for others. ``as_is`` has 1 for each segment whose new chunks are not
        compressed, else 0. Raises ValueError if a column has the wrong number of items."""
    def end(self, segment: int) -> int | None:
        """Return the end of the last chunk of a segment; None if it has no chunks."""
    def rows(self, segment: int, ids: Buffer) -> list[tuple[int, int, bytes]]:
        """Return id, length and fingerprint of each chunk of a segment; ``ids`` has u64 ids of all.

        Raises ValueError, including for a chunk that is not stored.
        """

@final
class Followers:
    """The chunks that followed known ones in their files (RapidCDC, seed 000). Their ends are tried
    before any other. An index that uses it adds to it during look-ups. Boundaries stay the same.
    Any number of threads may use it."""

    def __new__(cls) -> Followers: ...

@final
class Chunker:
    """Two-stage regression Rabin chunker (seed 003, 4.3; staging from SS-CDC, seed 000)."""

    def __new__(
        cls,
        *,
        polynomial: int,
        bits: int,
        pattern: int,
        regression: int,
        min_bytes: int,
        max_bytes: int,
        fingerprint: str = "blake3",
        path: str | None = None,
    ) -> Chunker:
        """Raises ValueError for parameters outside the limits, or an unavailable ``path``."""
    @property
    def path(self) -> str: ...
    def process(
        self,
        data: Buffer,
        segments: Sequence[tuple[int, int, bool]],
        threads: int = 1,
        followers: Followers | None = None,
    ) -> Chunks:
        """Split and fingerprint independent segments ``(start, end, final)`` of ``data``."""
    def process_files(
        self, data: Buffer, files: FileList, threads: int = 1, followers: Followers | None = None
    ) -> Chunks:
        """Like :meth:`process`, with a segment for each file that was read into ``data``."""
    def process_packed(self, data: Buffer, starts: Buffer, ends: Buffer, finals: Buffer) -> Chunks:
        """Like :meth:`process`, with the segments as columns: u64 starts and ends, u8 finals."""
