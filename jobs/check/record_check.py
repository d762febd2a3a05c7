"""The records of one container against its redirection table."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from dedupd import native
from dedupd.format import container as fmt
from dedupd.format import table as tbl
from dedupd.format.table_columns import UncheckedEntries
from dedupd.store.container.container import Gap
from dedupd.units import MIB
from jobs.check.invariants import Invariant
from jobs.check.record_windows import Passed, RecordPosition, RecordWindow, WindowReader

_WITHOUT_BYTES = frozenset((tbl.State.QUARANTINED, tbl.State.MERGED, tbl.State.TOMBSTONE))
"""States in which a record may be damaged or gone: it is not read."""

INTACT, _PAYLOAD = 0, 1
"""Verdicts of the native check of a record (``CheckedRecords.statuses``)."""


PORTION_BYTES = 128 * MIB
"""Read by one call: at its end, the cores wait for a moment."""


class CheckedTable:
    """The entries of a container's table, and those that a check found to be another one, or none.

    ``changed`` are the latter, by ordinal.
    """

    def __init__(self, entries: UncheckedEntries) -> None:
        self.entries = entries
        self.changed: dict[int, tbl.TableEntry | None] = {}

    def __getitem__(self, ordinal: int) -> tbl.TableEntry | None:
        if ordinal in self.changed or ordinal >= len(self.entries):
            return self.changed.get(ordinal)
        return self.entries[ordinal]

    def of_state(self, state: tbl.State) -> Iterator[tbl.TableEntry]:
        """The entries in a state."""
        count = max([len(self.entries), *(ordinal + 1 for ordinal in self.changed)])
        for ordinal in range(count):
            entry = self[ordinal]
            if entry is not None and entry.state == state:
                yield entry


@dataclass(frozen=True, slots=True)
class Problem:
    """A violated invariant at one record, or at a place where none is (``ordinal`` -1).

    ``entry`` is what the table should say, where the record itself tells.
    """

    invariant: Invariant
    detail: str
    ordinal: int = -1
    entry: tbl.TableEntry | None = None


@dataclass(slots=True)
class Row:
    """One record that was looked at."""

    ordinals: range
    kind: int
    status: int
    entry: tbl.TableEntry


class RecordCheck:
    """Takes the windows of a container in order, and gives the problems in them.

    ``entries`` are the table's. ``expected`` is the ordinal that the first record must have. A
    record beyond the table is compared with nothing.
    """

    def __init__(self, entries: UncheckedEntries, expected: int = 0) -> None:
        self.entries = entries
        self.seed = entries.seed
        self.gaps: list[Gap] = []
        self._seen = bytearray(len(entries))
        self._seen[:expected] = b"\1" * min(expected, len(entries))
        self.expected = expected
        self.records = 0
        self.raw_bytes = 0
        self.quarantined_intact: list[int] = []

    def skip(self, passed: Passed) -> None:
        """The records up to a place are what the table says."""
        ordinal = passed.to.ordinal
        self._seen[self.expected : ordinal] = b"\1" * (ordinal - self.expected)
        self.expected = ordinal
        self.records += passed.records
        self.raw_bytes += passed.raw_bytes

    def take(self, item: RecordWindow | Gap) -> Iterator[Problem]:
        """The problems in the next window, or gap."""
        if isinstance(item, Gap):
            self.gaps.append(item)
            return
        found = item.records
        self.records += len(found.kinds)
        self.raw_bytes += found.raw_bytes
        for row in rows(found, self.seed):
            yield from self._compare(row)

    def _compare(self, row: Row) -> Iterator[Problem]:
        first = row.ordinals[0]
        if first != self.expected and not self._are_excused(range(self.expected, first)):
            yield Problem(
                Invariant.CONTAINER_RECORDS,
                f"ordinal {first} at {row.entry.offset}; expected {self.expected}",
            )
        self.expected = row.ordinals.stop
        for ordinal in row.ordinals:
            if ordinal < len(self._seen):
                self._seen[ordinal] = 1
            said = self._said(ordinal)
            if ordinal < len(self.entries) and (said is None or not agrees(said, row)):
                yield Problem(
                    Invariant.TABLE_AGREES,
                    f"entry {ordinal} is not what the record says",
                    ordinal,
                    row.entry,
                )
            if said is not None and said.state in _WITHOUT_BYTES:
                if said.state == tbl.State.QUARANTINED and row.status == INTACT:
                    self.quarantined_intact.append(ordinal)
                continue
            yield from _damage(row, ordinal)

    def _are_excused(self, ordinals: range) -> bool:
        """Whether the table knows that these records are gone."""
        said = (self._said(ordinal) for ordinal in ordinals)
        return len(ordinals) > 0 and all(e is not None and e.state in _WITHOUT_BYTES for e in said)

    def _said(self, ordinal: int) -> tbl.TableEntry | None:
        return self.entries[ordinal] if ordinal < len(self.entries) else None

    def finish(self) -> Iterator[Problem]:
        """The problems of the container as a whole, once all of it was taken."""
        excused = 0
        unseen = [at for at, seen in enumerate(self._seen) if not seen] if 0 in self._seen else []
        for ordinal in unseen:
            entry = self.entries[ordinal]
            if entry is not None and entry.state in _WITHOUT_BYTES:
                excused += 1
                continue
            yield Problem(
                Invariant.TABLE_AGREES if entry is None else Invariant.CONTAINER_RECORDS,
                f"record {ordinal} is not there",
                ordinal,
            )
        if not excused:
            for gap in self.gaps:
                yield Problem(
                    Invariant.CONTAINER_RECORDS, f"bytes {gap.offset} to {gap.end} hold no record"
                )


def check_all(
    reader: WindowReader, fd: int, check: RecordCheck, start: int, end: int, bytes_max: int
) -> Iterator[tuple[int, RecordWindow | Gap | None, list[Problem]]]:
    """Look at a container between two offsets, ``bytes_max`` at a time.

    Gives, step by step, the offset up to which it was looked at, the window or gap that ends there
    where a closer look was needed, and the problems found there. Raises OSError.
    """
    offset = start
    while offset < end:
        place = RecordPosition(check.expected, offset)
        passed = reader.pass_on(fd, check.entries, place, end, bytes_max)
        if passed.to.offset > offset:
            check.skip(passed)
            offset = passed.to.offset
            yield offset, None, []
            continue
        with closing(reader.read(fd, check.seed, offset, end)) as items:
            for item in items:
                offset = item.end
                yield offset, item, list(check.take(item))
                if isinstance(item, RecordWindow):
                    break  # the next records may be intact


def rows(found: native.store.CheckedRecords, seed: int) -> Iterator[Row]:
    """A window's records one by one."""
    ordinals = memoryview(found.ordinals).cast("I").tolist()
    ends = memoryview(found.next_ordinals).cast("I").tolist()
    for at, (ordinal, end) in enumerate(zip(ordinals, ends, strict=True)):
        start = at * tbl.ENTRY_BYTES
        entry = tbl.decode_entry(found.entries[start : start + tbl.ENTRY_BYTES], seed)
        assert entry is not None
        end = min(end, max(ordinal + 1, fmt.CONTAINER_BYTES_MAX // fmt.RECORD_HEADER_BYTES))
        yield Row(range(ordinal, end), found.kinds[at], found.statuses[at], entry)


def agrees(said: tbl.TableEntry, row: Row) -> bool:
    """Whether an entry is one that its record may have."""
    is_copy = said.state == tbl.State.LIVE and row.kind == fmt.RecordKind.COPY
    is_of_another = is_copy and said.target not in (0, row.entry.target)
    return record_fields(said) == record_fields(row.entry) and not is_of_another


def record_fields(entry: tbl.TableEntry) -> tuple[bytes, int, int, int, int]:
    """The part of an entry that describes its record, whatever the state of the chunk."""
    return entry.fingerprint, entry.offset, entry.stored_length, entry.raw_length, entry.codec


def _damage(row: Row, ordinal: int) -> Iterator[Problem]:
    if row.status == INTACT:
        return
    if row.status == _PAYLOAD:
        detail = "the payload fails its checksum, or does not decode"
        yield Problem(Invariant.RECORD_PAYLOAD, detail, ordinal, row.entry)
    else:
        detail = "the raw bytes have another fingerprint"
        yield Problem(Invariant.RECORD_FINGERPRINT, detail, ordinal, row.entry)
