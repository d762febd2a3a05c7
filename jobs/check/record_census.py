"""A census of the records of one kind of container, in a few bytes each."""

from collections.abc import Iterator, Sequence

from dedupd_core import native
from dedupd_core.format import table as tbl
from dedupd_core.format.ids import container_of, make_id, ordinal_of, unpack_ids, unpack_ordinals
from dedupd_core.format.recipe import fingerprint_check
from dedupd_core.format.table_columns import PackedEntries, UncheckedEntries

REFERENCES_MAX = 255
"""Where the counting of references stops."""


class RecordCensus(native.upkeep.KnownRecords):
    """Which records are there, how often they are referred to, and which lead to others.

    Nine bytes each, and an entry of a dictionary for those that are merged or lost. The native
    part knows all but these entries.
    """

    def __init__(self) -> None:
        self.merged: dict[int, tbl.TableEntry] = {}
        self.lost: dict[int, tbl.TableEntry] = {}

    def add_container(
        self, number: int, entries: PackedEntries | UncheckedEntries, seed: int
    ) -> None:
        """Take in a table. ``seed`` is the container's."""
        for ordinal in unpack_ordinals(self.add_table(number, entries.data, seed)):
            entry = entries[ordinal]
            assert entry is not None
            kept = self.merged if entry.state == tbl.State.MERGED else self.lost
            kept[make_id(number, ordinal)] = entry

    def forget(self, record_id: int) -> None:
        """Count a record as missing, whatever its table says."""
        self.merged.pop(record_id, None)
        self.lost.pop(record_id, None)
        self.set(record_id, 0, 0)

    def add(self, record_id: int, entry: tbl.TableEntry) -> None:
        """Take in the entry of a record, in place of any before."""
        length = check = 0
        target: int | None = None
        self.merged.pop(record_id, None)
        self.lost.pop(record_id, None)
        if entry.state in tbl.USABLE:
            length, check = entry.raw_length, fingerprint_check(entry.fingerprint)
        elif entry.state == tbl.State.MERGED:
            self.merged[record_id] = entry
            target = entry.target
        elif entry.state == tbl.State.QUARANTINED:
            self.lost[record_id] = entry
        self.set(record_id, length, check, target)

    def begins(self, record_id: int, digest: bytes, length_min: int) -> bool:
        """Whether an id leads to a record that is there, is at least so long, and has a fingerprint
        that begins like ``digest`` (32 bits of it are known here)."""
        length, check = self.known(record_id)
        return length >= length_min and length > 0 and check == fingerprint_check(digest)

    def is_there(self, record_id: int) -> bool:
        """Whether an id leads to any record that is there."""
        return self.known(record_id)[0] > 0

    def add_copy(self, entry: tbl.TableEntry) -> None:
        """Count ``entry.target`` as present, because a second copy of it exists."""
        self.set_second(entry.target, entry.raw_length, fingerprint_check(entry.fingerprint))

    def wrong_merges(self) -> Iterator[int]:
        """Ids of merged records whose target is there and has another fingerprint."""
        for record_id, entry in self.merged.items():
            found = self.known(record_id)
            if found[0] and found != (entry.raw_length, fingerprint_check(entry.fingerprint)):
                yield record_id

    def is_lost(self, record_id: int) -> bool:
        """Whether a record is quarantined, or no table knows what became of it."""
        return record_id in self.lost or self.is_unknown(record_id)

    def is_unknown(self, record_id: int) -> bool:
        """Whether no table has a record, nor what became of it."""
        return ordinal_of(record_id) >= self.count(container_of(record_id))

    def often_referred(self, count: int) -> Sequence[int]:
        """Ids of records that are there and were referred to at least so often."""
        if count > REFERENCES_MAX:
            return ()
        return unpack_ids(self.referred_at_least(count))
