"""Cutting data into chunks, and their fingerprints."""

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
    """1 where every byte of the chunk is zero, else 0."""
    counts: Final[bytes]
    """u32 number of chunks found in each segment."""
    def __len__(self) -> int: ...
    def place(self, known: Buffer, as_is: Buffer) -> Placed:
        """Tell new chunks from known ones. ``known`` has the u64 id of each chunk that the index
        knows, and 0 for others; ``as_is`` has 1 for each segment whose new chunks are not to be
        compressed, else 0. Raises ValueError where a column has the wrong number of items."""
    def end(self, segment: int) -> int | None:
        """Where the last chunk of a segment ends, None where it has none."""
    def rows(self, segment: int, ids: Buffer) -> list[tuple[int, int, bytes]]:
        """Id, length and fingerprint of each chunk of a segment; ``ids`` are the u64 ids of all.

        Raises ValueError, also where one of the chunks is not stored.
        """

@final
class Followers:
    """The chunks that followed known ones in their files (RapidCDC, seed 000): ends of chunks that
    are tried before any other. An index that was given it fills it as it is asked. Cuts stay the
    same. Any number of threads may use it."""

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
        """Cut and fingerprint several independent segments ``(start, end, final)`` of ``data``."""
    def process_files(
        self, data: Buffer, files: FileList, threads: int = 1, followers: Followers | None = None
    ) -> Chunks:
        """:meth:`process` with a segment for each file that was read into ``data``."""
    def process_packed(self, data: Buffer, starts: Buffer, ends: Buffer, finals: Buffer) -> Chunks:
        """:meth:`process` with the segments as columns: u64 starts and ends, u8 finals."""
