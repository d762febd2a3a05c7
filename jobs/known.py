"""What the tables of one kind of container say, in a few bytes a record."""

from array import array
from collections.abc import Iterable, Iterator

from dedupd.format import table as tbl
from dedupd.format.ids import container_of, make_id, ordinal_of
from dedupd.format.recipe import check_of
from dedupd.store.reader import FORWARDS_MAX

REFERENCES_MAX = 255
"""Where the counting of references stops."""


class KnownRecords:
    """Which records are there, how often they are referred to, and which lead to others.

    Nine bytes each, and an entry of a dictionary for those that are merged or lost.
    """

    def __init__(self) -> None:
        self._known: dict[int, array[int]] = {}
        self._references: dict[int, bytearray] = {}
        self._second: dict[int, int] = {}
        self.relied_on: set[int] = set()
        """Records that were asked for and of which only the second copy is there."""
        self.merged: dict[int, tbl.Entry] = {}
        self.lost: dict[int, tbl.Entry] = {}

    def add_container(self, number: int, entries: Iterable[tbl.Entry]) -> None:
        """Take in a table."""
        table = list(entries)
        self._grow(number, len(table))
        known, usable = self._known[number], tbl.USABLE
        for ordinal, entry in enumerate(table):
            if entry.state in usable:
                check = int.from_bytes(entry.fingerprint[:4], "little")
                known[ordinal] = entry.raw_length << 32 | check
            else:
                self.add(make_id(number, ordinal), entry)

    def add(self, record_id: int, entry: tbl.Entry) -> None:
        """Take in what is known of a record, in place of what was known before."""
        number, ordinal = container_of(record_id), ordinal_of(record_id)
        self._grow(number, ordinal + 1)
        word = 0
        self.merged.pop(record_id, None)
        self.lost.pop(record_id, None)
        if entry.state in tbl.USABLE:
            word = _key(entry.raw_length, check_of(entry.fingerprint))
        elif entry.state == tbl.State.MERGED:
            self.merged[record_id] = entry
        elif entry.state == tbl.State.QUARANTINED:
            self.lost[record_id] = entry
        self._known[number][ordinal] = word

    def _grow(self, number: int, count: int) -> None:
        known = self._known.setdefault(number, array("Q"))
        references = self._references.setdefault(number, bytearray())
        if count > len(known):
            known.frombytes(bytes(8 * (count - len(known))))
            references.extend(bytes(count - len(references)))

    def count(self, number: int) -> int:
        """How many ordinals a container has; 0 where there is no such container."""
        return len(self._known.get(number, ()))

    def resolve(self, record_id: int) -> int:
        """The record that an id leads to."""
        for _ in range(FORWARDS_MAX):
            entry = self.merged.get(record_id)
            if entry is None:
                break
            record_id = entry.target
        return record_id

    def holds(self, record_id: int, length: int, check: int) -> bool:
        """Whether an id leads to a record of this length and check that is there."""
        return self._word(self.resolve(record_id)) == _key(length, check)

    def begins(self, record_id: int, digest: bytes, length_min: int) -> bool:
        """Whether an id leads to a record that is there, whose fingerprint begins like ``digest``,
        as far as is known here (32 bits), and that is at least so long."""
        word = self._word(self.resolve(record_id))
        return word >> 32 >= length_min and word & 0xFFFF_FFFF == check_of(digest) and word != 0

    def is_there(self, record_id: int) -> bool:
        """Whether an id leads to any record that is there."""
        return self._word(self.resolve(record_id)) != 0

    def is_primary(self, record_id: int) -> bool:
        """Whether the record itself is there, not one that it leads to, nor a copy."""
        known = self._known.get(container_of(record_id), ())
        return ordinal_of(record_id) < len(known) and known[ordinal_of(record_id)] != 0

    def _word(self, record_id: int) -> int:
        known = self._known.get(container_of(record_id), ())
        ordinal = ordinal_of(record_id)
        word = known[ordinal] if ordinal < len(known) else 0
        if word == 0 and record_id in self._second:
            self.relied_on.add(record_id)
            return self._second[record_id]
        return word

    def add_copy(self, entry: tbl.Entry) -> None:
        """There is a second copy of ``entry.target``: it is there, whatever its container says."""
        self._second[entry.target] = _key(entry.raw_length, check_of(entry.fingerprint))

    def wrong_merges(self) -> Iterator[int]:
        """Ids of merged records whose target is there and is another one."""
        for record_id, entry in self.merged.items():
            word = self._word(self.resolve(record_id))
            if word not in (0, _key(entry.raw_length, check_of(entry.fingerprint))):
                yield record_id

    def refer(self, record_id: int) -> None:
        """Count a reference to the record that an id leads to."""
        target = self.resolve(record_id)
        counts = self._references.get(container_of(target))
        ordinal = ordinal_of(target)
        if counts is not None and ordinal < len(counts) and counts[ordinal] < REFERENCES_MAX:
            counts[ordinal] += 1

    def numbers(self) -> list[int]:
        """Numbers of the containers, ascending."""
        return sorted(self._known)

    def add_references(self, record_id: int, count: int) -> None:
        """A record takes over the references of another one."""
        counts = self._references[container_of(record_id)]
        ordinal = ordinal_of(record_id)
        counts[ordinal] = min(REFERENCES_MAX, counts[ordinal] + count)

    def references(self, record_id: int) -> int:
        """How often the record itself was referred to, 255 at most."""
        counts = self._references.get(container_of(record_id), b"")
        ordinal = ordinal_of(record_id)
        return counts[ordinal] if ordinal < len(counts) else 0

    def referred_at_least(self, count: int) -> Iterator[int]:
        """Ids of records that are there and were referred to that often."""
        for number, counts in self._references.items():
            known = self._known[number]
            for ordinal, references in enumerate(counts):
                if references >= count and known[ordinal]:
                    yield make_id(number, ordinal)

    @property
    def unreferenced(self) -> int:
        """How many records that are there nothing refers to."""
        return sum(
            word != 0 and references == 0
            for number, known in self._known.items()
            for word, references in zip(known, self._references[number], strict=True)
        )


def _key(length: int, check: int) -> int:
    """Never 0: no record is empty."""
    return length << 32 | check
