"""The index as one table in RAM, about 48 bytes a chunk: exact, simple, loaded from the tables."""

from array import array
from collections.abc import Sequence

from dedupd import native
from dedupd.format.ids import make_id
from dedupd.format.table import USABLE, State
from dedupd.store.chunk_index import IndexCounters
from dedupd.store.container.table_file import Recovered
from dedupd.store.mark_set import Marks


class MemoryIndex:
    """A ``StoreIndex`` over ``native.index.FingerprintMap``."""

    def __init__(self) -> None:
        self._map = native.index.FingerprintMap()
        self._orphans = Marks({})
        self._found: set[int] = set()
        self._lookups = self._hits = 0

    def __len__(self) -> int:
        return len(self._map)

    def lookup(self, fingerprints: bytes) -> "memoryview[int]":
        ids = memoryview(self._map.lookup(fingerprints)).cast("Q")
        self._lookups += len(ids)
        self._hits += len(ids) - ids.tolist().count(0)
        if self._orphans:
            found = [one for one in ids if one in self._orphans]
            self._found.update(found)
            self._orphans.discard(found)
        return ids

    def take_found_orphans(self) -> set[int]:
        found, self._found = self._found, set()
        return found

    def insert(self, fingerprints: bytes, ids: Sequence[int]) -> None:
        self._map.insert(fingerprints, array("Q", ids))

    def load(self, container: Recovered) -> None:
        number, entries = container.header.container, container.entries
        live = [ordinal for ordinal, state in enumerate(entries.states) if state in USABLE]
        fingerprints = b"".join(map(entries.fingerprint, live))
        self.insert(fingerprints, [make_id(number, ordinal) for ordinal in live])
        if State.ORPHANED in entries.states:
            orphans = entries.ordinals_in(State.ORPHANED)
            self._orphans.add_container(number, orphans, len(entries))

    def counters(self) -> IndexCounters:
        return IndexCounters(self._lookups, self._hits)

    def save(self) -> None:
        pass
