"""The verify job: reads everything and checks every invariant, each stated once, with a name."""

import os
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from dedupd import native
from dedupd.errors import Damaged, DamagedTable
from dedupd.format import container as fmt
from dedupd.format import table as tbl
from dedupd.format.ids import HOLE, container_of, make_id, ordinal_of, show_id
from dedupd.format.recipe import check_of
from dedupd.fsutil import open_beneath, opened, read_at, show_path
from dedupd.ranges import missing_ranges
from dedupd.store.container import Found, Gap, data_name, payload_is_intact, scan
from dedupd.store.recipes import Recipe, Span
from dedupd.store.recovery import (
    container_numbers,
    entry_of,
    is_unfinished,
    load_table,
)
from dedupd.stub import local_ranges
from dedupd.volume import Volume
from jobs.frame import JobRun
from jobs.scan import walk

INVARIANTS = {
    "container-header": "every container begins with a valid header of this volume",
    "container-records": "records follow one another without gaps, with consecutive ordinals",
    "record-payload": "every payload matches its checksum and decodes to its raw length",
    "record-fingerprint": "every payload's raw bytes have the fingerprint in the header",
    "table-agrees": "the redirection table says what the records say",
    "stub-attribute": "every stub attribute decodes and belongs to this volume",
    "stub-recipe": "every stub's recipe is there, is the one that it names, and long enough",
    "recipe-chunks": "every chunk of a recipe is there, with the length and the check it states",
    "tree-readable": "every directory of the tree can be read",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """A violated invariant: its name, and where."""

    invariant: str
    where: str
    detail: str


@dataclass(slots=True)
class VerifyReport:
    """What a run found; the JSON form of the report.

    ``unsettled`` are stubs in the middle of a transition, and ``unsynced_bytes`` the ends of
    containers that never became durable: what an interrupted job leaves, and the next one clears.
    """

    job: str = "verify"
    outcome: str = "clean"
    containers: int = 0
    records: int = 0
    stored_bytes: int = 0
    stubs: int = 0
    plain_files: int = 0
    logical_bytes: int = 0
    unreferenced_chunks: int = 0
    unsettled: int = 0
    unsynced_bytes: int = 0
    findings: list[Finding] = field(default_factory=list)
    by_invariant: dict[str, int] = field(default_factory=dict)
    resources: dict[str, float] = field(default_factory=dict)
    started_s: float = 0.0


class Verify:
    """One offline check of a volume. Changes nothing. Needs the job lock, and no mount."""

    def __init__(self, volume: Volume, run: JobRun) -> None:
        self._volume = volume
        self._run = run
        self._report = VerifyReport(started_s=run.started_s)
        self._chunks = _IntactChunks()

    def run(self) -> VerifyReport:
        """Check everything. Raises Cancelled."""
        report = self._report
        for kind in (fmt.Kind.CHUNKS, fmt.Kind.STREAMS):
            self._check_containers(kind)
        self._run.update(phase="stubs", done=0, total=0)
        unreadable: list[str] = []
        for found in walk(self._volume, errors=unreadable):
            self._run.check()
            if found.is_stub:
                report.stubs += 1
                report.logical_bytes += found.identity.size
                self._check_stub(found.path)
            else:
                report.plain_files += 1
            self._run.update(files=report.stubs + report.plain_files)
        for message in unreadable:
            where, _, detail = message.partition(": ")
            self._find("tree-readable", where, detail)
        report.unreferenced_chunks = self._chunks.unreferenced
        report.by_invariant = dict(Counter(f.invariant for f in report.findings))
        report.outcome = "damaged" if report.findings else "clean"
        report.resources = self._run.resources()
        return report

    def _find(self, invariant: str, where: str, detail: str) -> None:
        assert invariant in INVARIANTS
        self._report.findings.append(Finding(invariant, where, detail))

    def _check_containers(self, kind: fmt.Kind) -> None:
        directory = os.open(self._volume.directory(kind), os.O_RDONLY | os.O_DIRECTORY)
        with opened(directory):
            numbers = container_numbers(directory)
            self._run.update(phase=f"{kind.name.lower()} containers", total=len(numbers))
            for done, number in enumerate(numbers):
                try:
                    self._check_container(directory, kind, number)
                except OSError as error:
                    where = f"{kind.name.lower()}/{data_name(number).decode()}"
                    self._find("container-records", where, f"cannot be read: {error.strerror}")
                self._run.update(done=done + 1)
                self._run.check()

    def _check_container(self, directory: int, kind: fmt.Kind, number: int) -> None:
        where = f"{kind.name.lower()}/{data_name(number).decode()}"
        if is_unfinished(directory, number):
            return
        self._report.containers += 1
        uuid = self._volume.space.volume
        with opened(os.open(data_name(number), os.O_RDONLY, dir_fd=directory)) as fd:
            try:
                header = fmt.decode_file_header(read_at(fd, fmt.FILE_HEADER_BYTES, 0), where)
            except Damaged as error:
                self._find("container-header", where, str(error))
                return
            if (header.kind, header.container, header.volume) != (kind, number, uuid):
                self._find("container-header", where, "the header is of another container")
                return
            mark, table = self._load_table(directory, header, where)
            entries = self._records(fd, header, mark, where)
        self._check_table(mark, table, entries, where)

    def _load_table(
        self, directory: int, header: fmt.FileHeader, where: str
    ) -> tuple[tbl.TableHeader | None, list[tbl.Entry | None]]:
        try:
            return load_table(directory, header)
        except DamagedTable as error:
            self._find("table-agrees", where, str(error))
            return None, []

    def _records(
        self, fd: int, header: fmt.FileHeader, mark: tbl.TableHeader | None, where: str
    ) -> dict[int, tbl.Entry]:
        """The entries that the records imply. What lies beyond the mark may be a torn tail."""
        seed = fmt.checksum_seed(header.volume, header.container, header.generation)
        entries: dict[int, tbl.Entry] = {}
        expected = 0
        size = os.fstat(fd).st_size
        if mark is not None and size < mark.synced_bytes:
            self._find(
                "container-records",
                where,
                f"{mark.synced_bytes - size} bytes are missing at its end",
            )
        for item in scan(fd, seed, fmt.FILE_HEADER_BYTES, size):
            beyond = mark is not None and item.offset >= mark.synced_bytes
            if beyond and (isinstance(item, Gap) or not payload_is_intact(fd, item)):
                self._report.unsynced_bytes += size - item.offset
                break
            if isinstance(item, Gap):
                self._find(
                    "container-records", where, f"bytes {item.offset} to {item.end} hold no record"
                )
                continue
            if item.record.ordinal != expected:
                self._find(
                    "container-records",
                    where,
                    f"ordinal {item.record.ordinal} at {item.offset}; expected {expected}",
                )
            expected = item.record.next_ordinal
            entries.update(dict.fromkeys(item.ordinals(), entry_of(item)))
            self._report.records += 1
            self._report.stored_bytes += fmt.record_size(item.record.stored_length)
            self._check_payload(fd, item, header, where)
        return entries

    def _check_payload(self, fd: int, found: Found, header: fmt.FileHeader, where: str) -> None:
        record = found.record
        if record.kind in (fmt.RecordKind.FORWARD, fmt.RecordKind.TOMBSTONE):
            return
        name = f"{where} record {record.ordinal}"
        stored = read_at(fd, record.stored_length, found.offset + fmt.RECORD_HEADER_BYTES)
        try:
            raw = native.decode(stored, record.codec, record.raw_length, record.checksum)
        except native.CorruptPayload as error:
            self._find("record-payload", name, str(error))
            return
        algorithm = self._volume.parameters.fingerprint
        if native.fingerprint(raw, algorithm) != record.fingerprint:
            self._find("record-fingerprint", name, "the raw bytes have another fingerprint")
            return
        if header.kind is fmt.Kind.CHUNKS:
            chunk_id = make_id(header.container, record.ordinal)
            self._chunks.add(chunk_id, record.raw_length, check_of(record.fingerprint))

    def _check_table(
        self,
        mark: tbl.TableHeader | None,
        table: list[tbl.Entry | None],
        entries: dict[int, tbl.Entry],
        where: str,
    ) -> None:
        """Beyond the mark a table may lag behind, or run ahead, after a crash."""
        if mark is None:
            return
        for ordinal in range(mark.synced_count):
            said = table[ordinal] if ordinal < len(table) else None
            entry = entries.get(ordinal)
            if said is None or entry is None or _place(said) != _place(entry):
                self._find("table-agrees", where, f"entry {ordinal} is not what the record says")

    def _check_stub(self, path: bytes) -> None:
        where = show_path(path)
        try:
            flags = os.O_RDONLY | os.O_NONBLOCK
            with opened(open_beneath(self._volume.data_fd, path, flags)) as fd:
                size = os.fstat(fd).st_size
                try:
                    stub = self._volume.space.read(fd, where)
                except Damaged as error:
                    self._find("stub-attribute", where, str(error))
                    return
                if stub is None:
                    return
                local = local_ranges(fd, stub, size)
        except OSError as error:
            self._find("stub-attribute", where, f"cannot be read: {error.strerror}")
            return
        if stub.flags.transient:
            self._report.unsettled += 1
        missing = list(missing_ranges(local, 0, min(stub.covered, size)))
        if not missing:
            return
        try:
            content = self._volume.content(stub, where)
        except Damaged as error:
            self._find("stub-recipe", where, str(error))
            return
        for start, end in missing:
            for problem in self._broken(content.recipe, start, end):
                self._find("recipe-chunks", where, problem)

    def _broken(self, recipe: Recipe, start: int, end: int) -> Iterator[str]:
        try:
            for span in recipe.spans(start, end):
                if span.chunk != HOLE and not self._chunks.refer(span):
                    yield (
                        f"bytes {span.offset} to {span.offset + span.length}: chunk"
                        f" {show_id(span.chunk)} is missing, damaged or another one"
                    )
        except Damaged as error:
            yield str(error)


class _IntactChunks:
    """Which chunks are there and intact, in 9 bytes each: length and check, and if referred to."""

    def __init__(self) -> None:
        self._known: dict[int, array[int]] = {}
        self._referred: dict[int, bytearray] = {}

    def add(self, chunk_id: int, length: int, check: int) -> None:
        known = self._known.setdefault(container_of(chunk_id), array("Q"))
        ordinal = ordinal_of(chunk_id)
        known.extend([0] * (ordinal + 1 - len(known)))
        known[ordinal] = length << 32 | check

    def refer(self, span: Span) -> bool:
        """Note that a recipe names a chunk; whether it is there, and the one that is meant."""
        container, ordinal = container_of(span.chunk), ordinal_of(span.chunk)
        known = self._known.get(container, ())
        if ordinal >= len(known) or known[ordinal] != span.length << 32 | span.check:
            return False
        self._referred.setdefault(container, bytearray(len(known)))[ordinal] = 1
        return True

    @property
    def unreferenced(self) -> int:
        """How many chunks no recipe has named."""
        known = sum(len(chunks) - chunks.count(0) for chunks in self._known.values())
        return known - sum(sum(referred) for referred in self._referred.values())


def _place(entry: tbl.Entry) -> tuple[Any, ...]:
    return entry.fingerprint, entry.offset, entry.stored_length, entry.raw_length, entry.codec
