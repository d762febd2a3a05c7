"""What the tables of one kind of container say, in a few bytes a record."""

from collections.abc import Iterator, Sequence

from dedupd import native
from dedupd.format import table as tbl
from dedupd.format.ids import container_of, make_id, ordinal_of
from dedupd.format.recipe import check_of
from dedupd.format.table_columns import PackedEntries, UncheckedEntries
from dedupd.store.reader import FORWARDS_MAX

REFERENCES_MAX = 255
"""Where the counting of references stops."""


class KnownRecords:
    """Which records are there, how often they are referred to, and which lead to others.

    Nine bytes each, and an entry of a dictionary for those that are merged or lost. ``counted`` is
    what the native side knows of them: all but the entries.
    """

    def __init__(self) -> None:
        self.counted = native.upkeep.KnownRecords()
        self.merged: dict[int, tbl.Entry] = {}
        self.lost: dict[int, tbl.Entry] = {}

    def add_container(
        self, number: int, entries: PackedEntries | UncheckedEntries, seed: int
    ) -> None:
        """Take in a table. ``seed`` is the container's."""
        others = self.counted.add_table(number, entries.data, seed)
        for ordinal in memoryview(others).cast("I"):
            entry = entries[ordinal]
            if entry is not None:
                self.add(make_id(number, ordinal), entry)

    def forget(self, record_id: int) -> None:
        """A record is not there, whatever its table says."""
        self.merged.pop(record_id, None)
        self.lost.pop(record_id, None)
        self.counted.set(record_id, 0, 0)

    def add(self, record_id: int, entry: tbl.Entry) -> None:
        """Take in what is known of a record, in place of what was known before."""
        length = check = 0
        target: int | None = None
        self.merged.pop(record_id, None)
        self.lost.pop(record_id, None)
        if entry.state in tbl.USABLE:
            length, check = entry.raw_length, check_of(entry.fingerprint)
        elif entry.state == tbl.State.MERGED:
            self.merged[record_id] = entry
            target = entry.target
        elif entry.state == tbl.State.QUARANTINED:
            self.lost[record_id] = entry
        self.counted.set(record_id, length, check, target)

    def count(self, number: int) -> int:
        """How many ordinals a container has; 0 where there is no such container."""
        return self.counted.count(number)

    def holds(self, record_id: int, length: int, check: int) -> bool:
        """Whether an id leads to a record of this length and check that is there."""
        return self.counted.holds(record_id, length, check)

    def begins(self, record_id: int, digest: bytes, length_min: int) -> bool:
        """Whether an id leads to a record that is there, whose fingerprint begins like ``digest``,
        as far as is known here (32 bits), and that is at least so long."""
        length, check = self.counted.known(record_id)
        return length >= length_min and length > 0 and check == check_of(digest)

    def is_there(self, record_id: int) -> bool:
        """Whether an id leads to any record that is there."""
        return self.counted.known(record_id)[0] > 0

    def is_primary(self, record_id: int) -> bool:
        """Whether the record itself is there, not one that it leads to, nor a copy."""
        return self.counted.is_primary(record_id)

    @property
    def relied_on(self) -> set[int]:
        """Records that were asked for and of which only the second copy is there."""
        return set(self.counted.relied_on())

    def add_copy(self, entry: tbl.Entry) -> None:
        """There is a second copy of ``entry.target``: it is there, whatever its container says."""
        self.counted.set_second(entry.target, entry.raw_length, check_of(entry.fingerprint))

    def wrong_merges(self) -> Iterator[int]:
        """Ids of merged records whose target is there and is another one."""
        for record_id, entry in self.merged.items():
            found = self.counted.known(record_id)
            if found[0] and found != (entry.raw_length, check_of(entry.fingerprint)):
                yield record_id

    def end_of(self, record_id: int) -> int:
        """Where a row of merged records ends; the record itself where it was not merged."""
        for _ in range(FORWARDS_MAX):
            entry = self.merged.get(record_id)
            if entry is None:
                break
            record_id = entry.target
        return record_id

    def is_lost(self, record_id: int) -> bool:
        """Whether a record is quarantined, or no table knows what became of it."""
        return record_id in self.lost or self.is_unknown(record_id)

    def is_unknown(self, record_id: int) -> bool:
        """Whether no table has a record, nor what became of it."""
        return ordinal_of(record_id) >= self.count(container_of(record_id))

    def refer(self, record_id: int) -> None:
        """Count a reference to the record that an id leads to."""
        self.counted.refer(record_id)

    def numbers(self) -> list[int]:
        """Numbers of the containers, ascending."""
        return self.counted.numbers()

    def add_references(self, record_id: int, count: int) -> None:
        """A record takes over the references of another one."""
        self.counted.add_references(record_id, min(REFERENCES_MAX, count))

    def references(self, record_id: int) -> int:
        """How often the record itself was referred to, 255 at most."""
        return self.counted.references(record_id)

    def referred_at_least(self, count: int) -> Sequence[int]:
        """Ids of records that are there and were referred to that often."""
        if count > REFERENCES_MAX:
            return ()
        return memoryview(self.counted.referred_at_least(count)).cast("Q")

    @property
    def unreferenced(self) -> int:
        """How many records that are there nothing refers to."""
        return self.counted.unreferenced()
