"""Restores lost records: writes their bytes again, and redirects old entries to the new records.

The sources, in this order: another record with the same fingerprint, the second copy, a file that
still has the bytes. Other records are restored by the next optimize run that finds their bytes
(``jobs/repair/returning_records.py``). New records are in the domain of the lost record, and no
entry is redirected to another domain.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from dedupd_core import native
from dedupd_core.errors import Damaged
from dedupd_core.failpoint import define, reach
from dedupd_core.format import container as fmt
from dedupd_core.format import table as tbl
from dedupd_core.format.domain import PartitionKey
from dedupd_core.format.ids import container_of, make_id
from dedupd_core.format.recipe import fingerprint_check
from dedupd_core.format.table_columns import UncheckedEntries
from dedupd_core.store.container.record_states import set_states
from dedupd_core.store.container.table_file import LOST
from dedupd_core.store.encoded_records import encoded_alone
from dedupd_core.store.second_copies import GROUP_BYTES
from dedupd_core.store.writer import ContainerWriter
from dedupd_core.volume.volume import Volume
from jobs.check.record_census import RecordCensus
from jobs.check.references import Missing
from jobs.frame.run import JobRun

_DURABLE = define("repair.durable", "repaired records are durable, the old entries do not know yet")
_MERGED = define("repair.merged", "the entries of lost records lead to the repaired ones")


FROM_TWIN, FROM_COPY, FROM_FILE = "from another record", "from the second copy", "from a file"
"""Sources."""


@dataclass(slots=True)
class _Group:
    """Records to write together: the replaced record and the new payload of each."""

    domain: bytes
    ids: list[int] = field(default_factory=list)
    records: list[tuple[fmt.Record, bytes]] = field(default_factory=list)
    size: int = 0


class Repair:
    """Repairs records of one kind. ``writer`` has recovered; every lost record has an entry.

    ``repaired`` counts the restored records, by source.
    """

    def __init__(
        self,
        volume: Volume,
        run: JobRun,
        kind: fmt.Kind,
        writer: ContainerWriter,
        known: RecordCensus,
        expected: dict[int, Missing],
    ) -> None:
        self._volume = volume
        self._run = run
        self._writer = writer
        self._known = known
        self._expected = expected
        self._directory = volume.containers(kind)
        self._copies = volume.store.copies(kind)
        self._reader = volume.records(kind)
        self._algorithm = volume.parameters.fingerprint
        self._groups: dict[bytes, _Group] = {}
        self._domains: dict[int, bytes] = {}
        self.repaired: Counter[str] = Counter()

    def close(self) -> None:
        self._directory.close()

    @property
    def lost(self) -> dict[int, tbl.TableEntry]:
        """The records that are still lost: ids and entries."""
        return self._known.lost

    def from_twins(self) -> None:
        """Redirect lost records to others with the same bytes. Raises Cancelled, NoSpace."""
        wanted: dict[bytes, list[int]] = {}
        for record_id, lost in self.lost.items():
            if lost.fingerprint != LOST.fingerprint:
                wanted.setdefault(lost.fingerprint, []).append(record_id)
        found: dict[int, tbl.TableEntry] = {}
        revived: dict[int, tbl.TableEntry] = {}
        leaning: dict[int, int] = {}
        for number, entries in self._tables() if self.lost else ():
            for ordinal, entry in self._run.checked(enumerate(entries)):
                if entry is None or entry.state not in tbl.USABLE:
                    continue
                is_orphan = entry.state == tbl.State.ORPHANED
                # A repaired record names the one it repeats, so forwards outlive their tables.
                named = () if is_orphan or entry.leans else (entry.target,)
                for old in {*wanted.get(entry.fingerprint, ()), *named}:
                    own = make_id(number, ordinal)
                    if self.is_wanted(old, entry.fingerprint) and self._is_intact(own, entry):
                        if entry.leans or self._domain(own) != self._domain(old):
                            leaning[old] = own
                            continue
                        found[old] = self._merged(old, own, entry.fingerprint, entry.raw_length)
                        if is_orphan:
                            revived[own] = entry._replace(state=tbl.State.LIVE, target=0)
        # Before entries are redirected there: the next job may be a compaction.
        set_states(self._directory, revived)
        self._merge(found)
        self.repaired[FROM_TWIN] += len(found)
        self._from_leaning({old: own for old, own in leaning.items() if old not in found})

    def _from_leaning(self, twins: dict[int, int]) -> None:
        """Write lost records again, from others with bases of their own, or in other domains. Lost
        records may be bases, so they are not redirected to these."""
        for old, own in twins.items():
            self._run.safe_point()
            found = self._stored(own)
            if found is not None and self.is_wanted(old, found[0].fingerprint):
                self._add(old, *found)
        self.repaired[FROM_TWIN] += self.flush()

    def _is_intact(self, record_id: int, entry: tbl.TableEntry) -> bool:
        try:
            _, raw = self._reader.read(record_id)
        except Damaged:
            return False
        return native.hashing.fingerprint(raw, self._algorithm) == entry.fingerprint

    def _tables(self) -> Iterator[tuple[int, UncheckedEntries]]:
        for number in self._known.numbers():
            try:
                yield number, self._directory.entries(number)
            except (Damaged, OSError):
                continue  # a replaced or deleted container

    def from_copies(self) -> None:
        """Write lost records again, from their second copies. Raises Cancelled, NoSpace."""
        for record_id in list(self.lost):
            self._run.safe_point()
            found = self._copies.read_stored(record_id)
            if found is not None and self.is_wanted(record_id, found[0].fingerprint):
                self._add(record_id, *found)
                self.repaired[FROM_COPY] += 1
        self.flush()

    def from_merged(self) -> None:
        """Write lost records again, from records that were merged into them. A merged record keeps
        its bytes until compaction, and perhaps has a second copy. Raises Cancelled, NoSpace."""
        for merged_id in self._run.checked(list(self._known.merged) if self.lost else ()):
            record_id = self._known.end_of(merged_id)
            lost = self.lost.get(record_id)
            if lost is not None:
                self._run.safe_point()
            found = None if lost is None else self._stored(merged_id)
            if found is not None and self.is_wanted(record_id, found[0].fingerprint):
                self._add(record_id, *found)
        self.repaired[FROM_TWIN] += self.flush()

    def _stored(self, record_id: int) -> tuple[fmt.Record, bytes] | None:
        """Return a record's own bytes, in any state, or those of its second copy."""
        try:
            return self._reader.read_alone(record_id)
        except (Damaged, OSError):
            return self._copies.read_stored(record_id)

    def from_bytes(self, record_ids: Iterable[int], raw: bytes, fingerprint: bytes) -> None:
        """Write lost records again, from bytes that have their fingerprint. Raises NoSpace."""
        record, payload = encoded_alone(raw, fingerprint)
        for record_id in record_ids:
            self._add(record_id, record, payload)
            self.repaired[FROM_FILE] += 1

    def is_wanted(self, record_id: int, fingerprint: bytes) -> bool:
        """Return whether a lost record has this fingerprint, as far as known."""
        entry, expected = self.lost.get(record_id), self._expected.get(record_id)
        if entry is None:
            return False
        if entry.fingerprint != LOST.fingerprint:
            return entry.fingerprint == fingerprint
        return expected is None or expected.fingerprint_check == fingerprint_check(fingerprint)

    def _add(self, record_id: int, record: fmt.Record, payload: bytes) -> None:
        domain = self._domain(record_id)
        group = self._groups.setdefault(domain, _Group(domain))
        if record_id in group.ids:
            return
        group.ids.append(record_id)
        group.records.append((replace(record, target=record_id), payload))
        group.size += len(payload)
        if sum(group.size for group in self._groups.values()) >= GROUP_BYTES:
            self.flush()

    def _domain(self, record_id: int) -> bytes:
        """Return the domain of a record's container, whose header exists or was repaired."""
        number = container_of(record_id)
        if number not in self._domains:
            self._domains[number] = self._directory.header(number).domain
        return self._domains[number]

    def flush(self) -> int:
        """Make added records durable, then redirect the old entries to them. Raises NoSpace.

        Returns the number of these records.
        """
        groups, self._groups = self._groups, {}
        return sum(map(self._flush, groups.values()))

    def _flush(self, group: _Group) -> int:
        self._writer.use_partition(PartitionKey(group.domain))
        raw_bytes = sum(record.raw_length for record, _ in group.records)
        first = self._writer.reserve(len(group.ids), raw_bytes)
        self._writer.append_copies(first, group.records)
        self._writer.sync()
        reach(_DURABLE)
        changes: dict[int, tbl.TableEntry] = {}
        for at, (record_id, (record, _)) in enumerate(zip(group.ids, group.records, strict=True)):
            new = first + at
            changes[record_id] = self._merged(record_id, new, record.fingerprint, record.raw_length)
            entry = LOST._replace(
                fingerprint=record.fingerprint,
                raw_length=record.raw_length,
                state=tbl.State.LIVE,
            )
            self._known.add(new, entry)
        self._merge(changes)
        return len(changes)

    def _merged(self, old: int, new: int, fingerprint: bytes, raw_length: int) -> tbl.TableEntry:
        return self.lost[old]._replace(
            state=tbl.State.MERGED, target=new, fingerprint=fingerprint, raw_length=raw_length
        )

    def _merge(self, changes: dict[int, tbl.TableEntry]) -> None:
        if not changes:
            return
        set_states(self._directory, changes)
        reach(_MERGED)
        for record_id, entry in changes.items():
            self._known.add_references(entry.target, self._known.references(record_id))
            self._known.add(record_id, entry)
