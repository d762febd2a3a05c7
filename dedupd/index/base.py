"""What every index offers, whatever it keeps in memory."""

from collections.abc import Sequence
from typing import Protocol


class ChunkIndex(Protocol):
    """Exact look-up of fingerprints, in batches.

    ``fingerprints`` are 32 bytes each, packed; ids are 0 where there is none.
    """

    def __len__(self) -> int: ...

    def lookup(self, fingerprints: bytes) -> Sequence[int]:
        """The chunk id of each fingerprint, or 0."""
        ...

    def insert(self, fingerprints: bytes, ids: Sequence[int]) -> None:
        """Remember ids; a fingerprint that is known keeps its id."""
        ...
