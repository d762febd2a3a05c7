"""The records of one container against its redirection table."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from dedupd_core import native
from dedupd_core.byte_ranges import missing_ranges
from dedupd_core.format import container as fmt
from dedupd_core.format import table as tbl
from dedupd_core.format.ids import unpack_ordinals
from dedupd_core.format.table_columns import UncheckedEntries
from dedupd_core.store.container.directory import ContainerDirectory
from dedupd_core.store.container.scan import Gap, scan_inside
from dedupd_core.units import MIB
from jobs.check.invariants import Invariant
from jobs.check.record_windows import RecordWindow, WindowReader

_WITHOUT_BYTES = frozenset((tbl.State.QUARANTINED, tbl.State.MERGED, tbl.State.TOMBSTONE))
"""States in which a record may be damaged or gone: it is not read."""

_GONE = frozenset((tbl.State.MERGED, tbl.State.TOMBSTONE))
"""States in which nothing asks for the bytes of a record any more."""

_WITH_BYTES = frozenset((fmt.RecordKind.DATA, fmt.RecordKind.COPY))

INTACT, _PAYLOAD, _, WITHOUT_BASE = range(4)
"""Verdicts of the native check of a record (``CheckedRecords.statuses``)."""


PORTION_BYTES = 128 * MIB
"""Read by one call: at its end, the cores wait for a moment."""


class CheckedTable:
    """The entries of a container's table, and those that a check found to be another one, or none.

    ``changed`` are the latter, by ordinal.
    """

    def __init__(
        self, directory: ContainerDirectory, number: int, entries: UncheckedEntries
    ) -> None:
        self.directory = directory
        self.number = number
        self.entries = entries
        self.changed: dict[int, tbl.TableEntry | None] = {}

    def __getitem__(self, ordinal: int) -> tbl.TableEntry | None:
        if ordinal in self.changed or ordinal >= len(self.entries):
            return self.changed.get(ordinal)
        return self.entries[ordinal]

    @property
    def where(self) -> str:
        """The container's name in messages."""
        return self.directory.where(self.number)

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
    record beyond the table is compared with nothing. ``is_in_order`` says whether all that was
    taken so far followed one another, so that the check can go on from here another time.

    Where a record lies, the table says. So a record in another place than that is judged last: if
    there is none in the place that the table names, the table is wrong; if there is, a write went
    astray, and the bytes are nobody's. ``damaged`` are the ranges of records that are not intact:
    what went astray may lie in the midst of another record, or claim to be longer than it is.

    Users choose the bytes of payloads. So a record inside a damaged one counts only if the table
    names it there, or states the fingerprint that its bytes have. The same holds for records after
    a gap if users can know the container's seed (``is_forgeable``).
    """

    def __init__(
        self,
        entries: UncheckedEntries,
        expected: int = 0,
        bases: native.store.Bases | None = None,
        *,
        is_forgeable: bool = False,
    ) -> None:
        self.entries = entries
        self.seed = entries.seed
        self._is_forgeable = is_forgeable
        self._is_trusted = True
        self.bases = bases
        self.gaps: list[Gap] = []
        self.is_in_order = True
        self._displaced: list[tuple[Row, int]] = []
        self.damaged: dict[int, int] = {}
        self._damaged: set[int] = set()
        self._hit: list[tuple[int, int]] = []
        self._seen = bytearray(len(entries))
        self._seen[:expected] = b"\1" * min(expected, len(entries))
        self.expected = expected
        self.records = 0
        self.raw_bytes = 0
        self.quarantined_intact: list[int] = []
        self.without_base: list[int] = []
        """Live records whose own bytes are sound, and that lean on one that cannot be read."""

    def skip(self, passed: native.store.PassedRecords) -> None:
        """The records up to a place are what the table says."""
        ordinal = passed.ordinal
        self._seen[self.expected : ordinal] = b"\1" * (ordinal - self.expected)
        self.expected = ordinal
        self.records += passed.records
        self.raw_bytes += passed.raw_bytes

    def take(self, item: RecordWindow | Gap) -> Iterator[Problem]:
        """The problems in the next window, or gap."""
        if isinstance(item, Gap):
            self.gaps.append(item)
            self.is_in_order = False
            self._is_trusted = not self._is_forgeable
            return
        found = item.records
        self.records += len(found.kinds)
        self.raw_bytes += found.raw_bytes
        for row in rows(found, self.seed):
            yield from self._follow(row)
            for ordinal in row.ordinals:
                yield from self._compare(row, ordinal, is_trusted=self._is_trusted)

    def take_inside(self, found: native.store.CheckedRecords) -> Iterator[Problem]:
        """The problems of a record that begins within the bytes of a damaged one."""
        for row in rows(found, self.seed):
            for ordinal in row.ordinals:
                self._hit.append(self._place(ordinal))
                yield from self._compare(row, ordinal, is_trusted=False)

    def _follow(self, row: Row) -> Iterator[Problem]:
        """The problem of a record that does not follow the one before it, where no table tells its
        place."""
        first = row.ordinals[0]
        if first != self.expected and not self._are_excused(range(self.expected, first)):
            self.is_in_order = False
            if self._said(first) is None:
                yield Problem(
                    Invariant.CONTAINER_RECORDS,
                    f"ordinal {first} at {row.entry.offset}; expected {self.expected}",
                )
        self.expected = row.ordinals.stop

    def _compare(self, row: Row, ordinal: int, *, is_trusted: bool) -> Iterator[Problem]:
        said, at = self._said(ordinal), row.entry.offset
        if not _is_sound(row):
            self.damaged[at] = at + fmt.record_size(row.entry.stored_length)
            self.is_in_order = False
        if not is_trusted and not self._is_proved(row, ordinal):
            self._add_gap(row, fmt.RECORD_HEADER_BYTES)
            return
        if said is not None and said.offset != at:
            self._displaced.append((row, ordinal))
            self.is_in_order = False
            return
        if ordinal < len(self._seen):
            self._seen[ordinal] = 1
        if not _is_sound(row):
            self._damaged.add(ordinal)
            self._hit.append((at, self.damaged[at]))
        yield from self._judge(row, ordinal)

    def _is_proved(self, row: Row, ordinal: int) -> bool:
        """Whether a record that may be a user's bytes is one of ours."""
        said = self._said(ordinal)
        if said is not None and said.offset == row.entry.offset:
            return record_fields(said) == record_fields(row.entry)
        if row.status != INTACT or row.kind not in _WITH_BYTES:
            return False
        return said is not None and said.fingerprint == row.entry.fingerprint

    def _judge(self, row: Row, ordinal: int) -> Iterator[Problem]:
        said = self._said(ordinal)
        if ordinal < len(self.entries) and (said is None or not agrees(said, row)):
            yield Problem(
                Invariant.TABLE_AGREES,
                f"entry {ordinal} differs from the record",
                ordinal,
                row.entry,
            )
        if said is not None and is_of_another(said, row.entry):
            said = None
        if said is not None and said.state in _WITHOUT_BYTES:
            if said.state == tbl.State.QUARANTINED and row.status == INTACT:
                self.quarantined_intact.append(ordinal)
            return
        if row.status == WITHOUT_BASE:
            if said is not None and said.state == tbl.State.LIVE:
                self.without_base.append(ordinal)
            return
        yield from _damage(row, ordinal)

    def _judge_displaced(self) -> Iterator[Problem]:
        """The problems of records that lie elsewhere than the table says."""
        for row, ordinal in self._displaced:
            is_hit = ordinal in self._damaged
            if not _is_sound(row):
                # Its length may be a lie: only its header is sure to lie here.
                self._add_gap(row, fmt.RECORD_HEADER_BYTES)
            elif self._is_gone(row, ordinal) or (self._seen[ordinal] and not is_hit):
                self._add_gap(row, fmt.record_size(row.entry.stored_length))
            else:
                if is_hit:
                    self._damaged.discard(ordinal)
                    self.quarantined_intact.append(ordinal)
                self._seen[ordinal] = 1
                yield from self._judge(row, ordinal)

    def _is_gone(self, row: Row, ordinal: int) -> bool:
        """Whether nothing asks for the bytes of a record any more."""
        said = self._said(ordinal)
        return said is not None and said.state in _GONE and not is_of_another(said, row.entry)

    def _add_gap(self, row: Row, size: int) -> None:
        gap = Gap(row.entry.offset, row.entry.offset + size)
        if gap not in self.gaps[-1:]:
            self.gaps.append(gap)

    def _are_excused(self, ordinals: range) -> bool:
        """Whether the table knows that these records are gone."""
        said = (self._said(ordinal) for ordinal in ordinals)
        return len(ordinals) > 0 and all(e is not None and e.state in _WITHOUT_BYTES for e in said)

    def _said(self, ordinal: int) -> tbl.TableEntry | None:
        return self.entries[ordinal] if ordinal < len(self.entries) else None

    def finish(self) -> Iterator[Problem]:
        """The problems of the container as a whole, once all of it was taken."""
        yield from self._judge_displaced()
        excused = 0
        self._hit += [self._place(ordinal) for _, ordinal in self._displaced]
        unseen = [at for at, seen in enumerate(self._seen) if not seen] if 0 in self._seen else []
        for ordinal in unseen:
            entry = self.entries[ordinal]
            if entry is not None and entry.state in _WITHOUT_BYTES:
                excused += 1
                continue
            self._hit.append(self._place(ordinal))
            yield Problem(
                Invariant.TABLE_AGREES if entry is None else Invariant.CONTAINER_RECORDS,
                f"record {ordinal} is missing",
                ordinal,
            )
        if not excused:
            known = sorted(self._hit)
            for gap in self.gaps:
                for start, end in missing_ranges(known, gap.offset, gap.end):
                    yield Problem(
                        Invariant.CONTAINER_RECORDS, f"bytes {start} to {end} contain no record"
                    )

    def _place(self, ordinal: int) -> tuple[int, int]:
        """The bytes of a container that a record takes by its entry; none where it has no entry."""
        entry = self._said(ordinal)
        if entry is None:
            return 0, 0
        return entry.offset, entry.offset + fmt.record_size(entry.stored_length)


def check_all(
    reader: WindowReader, fd: int, check: RecordCheck, start: int, end: int, bytes_max: int
) -> Iterator[tuple[int, RecordWindow | Gap | None, list[Problem]]]:
    """Look at a container between two offsets, ``bytes_max`` at a time.

    Gives, step by step, the offset up to which it was looked at, the window or gap that ends there
    where a closer look was needed, and the problems found there. Raises OSError.
    """
    offset = start
    while offset < end:
        passed = reader.pass_on(
            fd, check.entries, check.expected, offset, end, bytes_max, check.bases
        )
        if passed is not None and passed.offset > offset:
            check.skip(passed)
            offset = passed.offset
            yield offset, None, []
            continue
        with closing(reader.read(fd, check.seed, offset, end, check.bases)) as items:
            for item in items:
                offset = item.end
                yield offset, item, list(check.take(item))
                if isinstance(item, RecordWindow):
                    break  # the next records may be intact
    for found in _inside(reader, fd, check, end):
        yield end, None, list(check.take_inside(found))


def _inside(
    reader: WindowReader, fd: int, check: RecordCheck, end: int
) -> Iterator[native.store.CheckedRecords]:
    """The records that begin within the bytes of damaged ones, these included."""
    searched: set[int] = set()
    read: set[int] = set()
    while damaged := [place for place in check.damaged.items() if place[0] not in searched]:
        for start, stop in damaged:
            searched.add(start)
            for found in scan_inside(fd, check.seed, start, stop, end):
                if found.offset not in read:
                    read.add(found.offset)
                    yield reader.read_one(fd, check.seed, found)


def rows(found: native.store.CheckedRecords, seed: int) -> Iterator[Row]:
    """A window's records one by one."""
    ordinals = unpack_ordinals(found.ordinals).tolist()
    ends = unpack_ordinals(found.next_ordinals).tolist()
    for at, (ordinal, end) in enumerate(zip(ordinals, ends, strict=True)):
        start = at * tbl.ENTRY_BYTES
        entry = tbl.decode_entry(found.entries[start : start + tbl.ENTRY_BYTES], seed)
        assert entry is not None
        end = min(end, max(ordinal + 1, fmt.CONTAINER_BYTES_MAX // fmt.RECORD_HEADER_BYTES))
        yield Row(range(ordinal, end), found.kinds[at], found.statuses[at], entry)


def is_of_another(said: tbl.TableEntry, found: tbl.TableEntry) -> bool:
    """Whether an entry that calls its record gone is that of another record, which a disk has put
    there: ``found`` is what the record implies."""
    return said.state in _GONE and said.fingerprint != found.fingerprint


def agrees(said: tbl.TableEntry, row: Row) -> bool:
    """Whether an entry is one that its record may have."""
    is_copy = said.state == tbl.State.LIVE and row.kind == fmt.RecordKind.COPY
    is_elsewhere = is_copy and said.target not in (0, row.entry.target)
    return record_fields(said) == record_fields(row.entry) and not is_elsewhere


def record_fields(entry: tbl.TableEntry) -> tuple[bytes, int, int, int, int]:
    """The part of an entry that describes its record, whatever the state of the chunk."""
    return entry.fingerprint, entry.offset, entry.stored_length, entry.raw_length, entry.codec


def _is_sound(row: Row) -> bool:
    """Whether the record's own bytes are intact, whatever became of the one that it leans on."""
    return row.status in (INTACT, WITHOUT_BASE)


def _damage(row: Row, ordinal: int) -> Iterator[Problem]:
    if row.status == INTACT:
        return
    if row.status == _PAYLOAD:
        detail = "the payload has a wrong checksum, or cannot be decoded"
        yield Problem(Invariant.RECORD_PAYLOAD, detail, ordinal, row.entry)
    else:
        detail = "the raw bytes have a different fingerprint"
        yield Problem(Invariant.RECORD_FINGERPRINT, detail, ordinal, row.entry)
