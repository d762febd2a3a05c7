"""The containers in which a scrub has seen every record where its entry says that it is.

gc punches the payloads of what is dead. Before that it reads the header of each, because after a
write that went astray another record may lie there, intact. Where a scrub has seen the headers and
nothing was written to the container since, no such write can have been one of ours, and a record of
any other container is of no use in this one: headers have the seed of theirs. A note is of no
account as soon as a record was appended, moved or entered otherwise: it is a digest of the places
of all records, in their order, and of the seed (docs/crash-safety.md).
"""

from collections.abc import Iterable

from dedupd import native
from dedupd.format.container import Kind
from dedupd.volume.hints import HintKey
from dedupd.volume.volume import Volume


class HeadersSeen:
    """The notes of a store. Needs the job lock."""

    def __init__(self, volume: Volume) -> None:
        self._hints = volume.store_hints
        self._known: dict[Kind, dict[int, int]] = {}
        self._changed = set[Kind]()

    def are(self, kind: Kind, number: int, entries: bytes, seed: int) -> bool:
        """Whether all records that have a sound header were seen where ``entries`` say."""
        noted = self._of(kind).get(number)
        return noted is not None and noted == native.store.places_digest(entries, seed)

    def note(self, kind: Kind, number: int, entries: bytes, seed: int, *, is_seen: bool) -> None:
        """All records of a container were looked at; ``is_seen``: and are where they should be."""
        digest = native.store.places_digest(entries, seed) if is_seen else None
        known = self._of(kind)
        if known.get(number) != digest:
            self._changed.add(kind)
            known.pop(number, None)
            if digest is not None:
                known[number] = digest

    def keep(self, kind: Kind, numbers: Iterable[int]) -> None:
        """Keep the notes, and none of containers that are not among ``numbers``."""
        known, there = self._of(kind), set(numbers)
        if kind in self._changed or not known.keys() <= there:
            rows = [[number, digest] for number, digest in known.items() if number in there]
            self._hints.put(HintKey.HEADERS_SEEN.of(kind.name.lower()), rows)
            self._changed.discard(kind)

    def _of(self, kind: Kind) -> dict[int, int]:
        if kind not in self._known:
            rows = self._hints.get(HintKey.HEADERS_SEEN.of(kind.name.lower()))
            pairs = rows if isinstance(rows, list) else []
            self._known[kind] = {
                row[0]: row[1]
                for row in pairs
                if isinstance(row, list) and [type(part) for part in row] == [int, int]
            }
        return self._known[kind]
