"""The index as one table in RAM, about 48 bytes a chunk: exact, simple, loaded from the tables."""

from array import array
from collections.abc import Sequence

from dedupd import native
from dedupd.format.ids import make_id
from dedupd.format.table import USABLE, State
from dedupd.store.marks import Marks
from dedupd.store.recovery import Recovered


class MemoryIndex:
    """A ``ChunkIndex`` over ``native.FingerprintMap``.

    It offers orphans too. One that was found is about to be named again, so it must be live,
    durably, before the file that names it is committed: see :meth:`take_found_orphans`.
    """

    def __init__(self) -> None:
        self._map = native.FingerprintMap()
        self._orphans = Marks({})
        self._found: set[int] = set()

    def __len__(self) -> int:
        return len(self._map)

    def lookup(self, fingerprints: bytes) -> Sequence[int]:
        ids = memoryview(self._map.lookup(fingerprints)).cast("Q")
        if self._orphans:
            found = [one for one in ids if one in self._orphans]
            self._found.update(found)
            self._orphans.discard(found)
        return ids

    def take_found_orphans(self) -> set[int]:
        """Ids of orphans that were looked up with success since the last call."""
        found, self._found = self._found, set()
        return found

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
        states = [entry.state for entry in container.entries]
        if State.ORPHANED in states:
            orphans = (at for at, state in enumerate(states) if state == State.ORPHANED)
            self._orphans.add_container(number, orphans, len(states))
