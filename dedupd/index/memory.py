"""The index as one table in RAM, about 48 bytes a chunk: exact, simple, loaded from the tables."""

from array import array
from collections.abc import Sequence

from dedupd import native
from dedupd.format.ids import make_id
from dedupd.format.table import USABLE
from dedupd.store.recovery import Recovered


class MemoryIndex:
    """A ``ChunkIndex`` over ``native.FingerprintMap``."""

    def __init__(self) -> None:
        self._map = native.FingerprintMap()

    def __len__(self) -> int:
        return len(self._map)

    def lookup(self, fingerprints: bytes) -> Sequence[int]:
        return memoryview(self._map.lookup(fingerprints)).cast("Q")

    def insert(self, fingerprints: bytes, ids: Sequence[int]) -> None:
        self._map.insert(fingerprints, array("Q", ids))

    def load(self, container: Recovered) -> None:
        """Insert every chunk of a container whose bytes are there."""
        number = container.header.container
        live = [
            (entry.fingerprint, make_id(number, ordinal))
            for ordinal, entry in enumerate(container.entries)
            if entry.state in USABLE
        ]
        self.insert(b"".join(fp for fp, _ in live), [chunk_id for _, chunk_id in live])
