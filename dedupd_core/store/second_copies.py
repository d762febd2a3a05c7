"""Second copies of records, found by the id of what they repeat (docs/design/format.md,
"Copies")."""

import os
import threading
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from dedupd_core.errors import Damaged, DamagedTable, NoSpace
from dedupd_core.format import container as fmt
from dedupd_core.format import table as tbl
from dedupd_core.format.ids import container_of, make_id, ordinal_of
from dedupd_core.store.container.container import Container, data_name, header_of
from dedupd_core.store.container.files import container_numbers
from dedupd_core.store.container.recovery import entry_of
from dedupd_core.store.container.scan import ScannedRecord, believed, scan
from dedupd_core.store.container.table_file import load_table
from dedupd_core.store.writer import ContainerWriter
from dedupd_core.system.files import open_to_read, opened
from dedupd_core.units import MIB

GROUP_BYTES = 8 * MIB
"""Bytes of copies, or of repaired records, per sync."""


@dataclass(frozen=True, slots=True)
class Copy:
    """One second copy: its own id, and its entry, whose ``target`` is the record it repeats."""

    copy_id: int
    entry: tbl.TableEntry


def all_copies(dir_fd: int, kind: fmt.Kind, volume_id: bytes) -> Iterator[Copy]:
    """Every copy in a directory that its table, or else the container itself, calls live.

    Containers that cannot be read are passed over: copies are only a help.
    """
    for number in container_numbers(dir_fd):
        try:
            for ordinal, entry in enumerate(_entries(dir_fd, number, kind, volume_id)):
                if entry is not None and entry.state == tbl.State.LIVE:
                    yield Copy(make_id(number, ordinal), entry)
        except (Damaged, OSError):
            continue


def _entries(
    dir_fd: int, number: int, kind: fmt.Kind, volume_id: bytes
) -> Sequence[tbl.TableEntry | None]:
    """A container's entries, by ordinal. Raises Damaged, OSError."""
    name = data_name(number)
    with opened(open_to_read(dir_fd, name)) as fd:
        header = header_of(fd, name.decode())
        if not fmt.belongs_to(header, kind, number, volume_id):
            return []
        try:
            _, table = load_table(dir_fd, header)
            if not table.damaged():
                return table
            entries = list(table)
        except DamagedTable:
            entries = []
        items = scan(fd, fmt.seed_of(header), fmt.FILE_HEADER_BYTES, os.fstat(fd).st_size)
        found = {
            item.record.ordinal: entry_of(item)
            for item in believed(fd, header, items, None)
            if isinstance(item, ScannedRecord)
        }
    count = max([len(entries), *(ordinal + 1 for ordinal in found)])
    entries += [None] * (count - len(entries))
    return [entry or found.get(ordinal) for ordinal, entry in enumerate(entries)]


def append_copies(writer: ContainerWriter, records: Sequence[tuple[fmt.Record, bytes]]) -> int:
    """Write second copies, durably; returns how many: none where there is no space for them.

    The records that they repeat must be durable. These are safe without copies, so a full disk is
    no reason to stop: the next scrub writes the copies.
    """
    if not records:
        return 0
    try:
        first = writer.reserve(len(records), sum(record.raw_length for record, _ in records))
    except NoSpace:
        return 0
    try:
        writer.append_copies(first, records)
    except NoSpace:
        writer.cancel(first)
        return 0
    writer.sync()
    return len(records)


class CopyReader:
    """Reads the second copy of a record, if there is one. Safe to use from several threads.

    Nothing is opened before the first damage. Takes 16 bytes of memory for each copy.
    """

    def __init__(self, directory: str, kind: fmt.Kind, volume_id: bytes) -> None:
        self._directory = directory
        self._kind = kind
        self._volume_id = volume_id
        self._lock = threading.Lock()
        self._seen: tuple[tuple[str, int, int], ...] = ()
        self._targets = array("Q")
        self._copies = array("Q")

    def read(self, record_id: int) -> tuple[fmt.Record, bytes] | None:
        """The copy's record and its raw bytes, verified; None where there is no intact one."""
        return self._get(record_id, Container.read)

    def read_stored(self, record_id: int) -> tuple[fmt.Record, bytes] | None:
        """The copy's record and its payload as it is stored, verified; None as for :meth:`read`."""
        return self._get(record_id, Container.read_stored)

    def describe(self, record_id: int) -> fmt.Record | None:
        """The copy's header. Its bytes are checked too: this is asked for where damage is near."""
        found = self.read(record_id)
        return None if found is None else found[0]

    def _get(
        self, record_id: int, get: Callable[[Container, int], tuple[fmt.Record, bytes]]
    ) -> tuple[fmt.Record, bytes] | None:
        try:
            fd = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return None  # a volume from before there were copies
        with opened(fd):
            for copy_id in self._find(fd, record_id):
                try:
                    container = Container(fd, self._kind, container_of(copy_id), self._volume_id)
                    record, data = get(container, ordinal_of(copy_id))
                except (Damaged, OSError):
                    continue
                if record.kind == fmt.RecordKind.COPY and record.target == record_id:
                    return record, data
        return None

    def _find(self, dir_fd: int, record_id: int) -> list[int]:
        """The ids of the copies of a record, as the tables are now."""
        with self._lock:
            self._load(dir_fd)
            at = bisect_left(self._targets, record_id)
            found = []
            while at < len(self._targets) and self._targets[at] == record_id:
                found.append(self._copies[at])
                at += 1
            return found

    def _load(self, dir_fd: int) -> None:
        """Read the tables again where any of them was replaced, or has grown."""
        with os.scandir(dir_fd) as entries:
            seen = tuple(sorted((e.name, e.inode(), e.stat().st_size) for e in entries))
        if seen == self._seen:
            return
        rows = sorted(
            (copy.entry.target, copy.copy_id)
            for copy in all_copies(dir_fd, self._kind, self._volume_id)
        )
        self._targets = array("Q", (target for target, _ in rows))
        self._copies = array("Q", (copy_id for _, copy_id in rows))
        self._seen = seen
