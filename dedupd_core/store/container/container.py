"""One container open for reading: records by ordinal, each checked on every read.

The redirection table is believed only as far as the record confirms it. Where the table is
missing, short or wrong, the container itself is scanned.
"""

import os
import threading

from dedupd_core import native
from dedupd_core.errors import DamagedChunk, DamagedContainer, DamagedTable
from dedupd_core.format import container as fmt
from dedupd_core.format import table as tbl
from dedupd_core.format.ids import make_id, show_id
from dedupd_core.store.container.bases import Bases, raw_bytes
from dedupd_core.store.container.scan import ScannedRecord, believed, is_right, scan
from dedupd_core.system.files import open_to_read, read_at, read_readable

NEW = b".new"
"""Suffix of a file that is being written, to be put in the place of another."""

_OPENS_MAX = 8
"""Compactions of one container that may come between the opening of its two files. More of them
mean that its table is damaged, and that it is replaced all the time."""


def data_name(container: int) -> bytes:
    return b"%08d.dat" % container


def header_of(fd: int, where: str) -> fmt.FileHeader:
    """The header of an open container, called ``where``. Raises DamagedContainer, UnknownFormat."""
    return fmt.decode_file_header(read_readable(fd, fmt.FILE_HEADER_BYTES, 0), where)


def container_name(kind: fmt.Kind, number: int) -> str:
    """A container's name in messages."""
    return f"{kind.name.lower()}/{data_name(number).decode()}"


def table_name(container: int) -> bytes:
    return b"%08d.dir" % container


def has_hole(fd: int, offset: int, stored_length: int) -> bool:
    """Whether any block of the payload of the record at ``offset`` was given back. Moves the
    position of ``fd``."""
    start = offset + fmt.RECORD_HEADER_BYTES
    try:
        return os.lseek(fd, start, os.SEEK_HOLE) < start + stored_length
    except OSError:
        return False  # beyond the end of the container


_NOT_THERE = "the record does not exist"
_BYTES_GONE = "its bytes are missing"

_WITHOUT_BYTES = frozenset((fmt.RecordKind.FORWARD, fmt.RecordKind.TOMBSTONE))


def forward(ordinal: int, entry: tbl.TableEntry, collected: int = 0) -> fmt.Record:
    """The record that a compaction makes of a merged one, behind so many collected ones."""
    return fmt.Record(
        ordinal=ordinal,
        kind=fmt.RecordKind.FORWARD,
        codec=fmt.Codec.RAW,
        raw_length=entry.raw_length,
        hint=entry.hint,
        fingerprint=entry.fingerprint,
        target=entry.target,
        checksum=fmt.EMPTY_CHECKSUM,
        collected=collected,
    )


def _is_another(fd: int | None, dir_fd: int, name: bytes) -> bool:
    """Whether a name leads to another file than the open one; None is one that was not there."""
    try:
        status = os.stat(name, dir_fd=dir_fd)
    except FileNotFoundError:
        return fd is not None
    if fd is None:
        return True
    own = os.fstat(fd)
    return (status.st_dev, status.st_ino) != (own.st_dev, own.st_ino)


class Container:
    """A container file and its table. Safe to use from several threads."""

    def __init__(
        self, dir_fd: int, kind: fmt.Kind, number: int, volume_id: bytes, bases: Bases | None = None
    ) -> None:
        """Raises DamagedContainer where the file is missing or is not this container. Without
        ``bases``, records that lean on others cannot be read."""
        self.number = number
        self.bases = bases
        self.fd = -1
        self.table_fd: int | None = None
        """The table's descriptor; None where there is no usable one. Both go with :meth:`close`."""
        self._table_map: native.store.TableMap | None = None
        self._where = container_name(kind, number)
        for _ in range(_OPENS_MAX):
            self.header = self._open_data(dir_fd, kind, volume_id)
            self.table_fd = self._open_table(dir_fd)
            if self.table_fd is not None or not self.is_replaced(dir_fd):
                break
            # A compaction put both files in the place of the old ones, one before the table was
            # opened and one after the data was.
            self.close()
        self.seed = fmt.seed_of(self.header)
        self._lock = threading.Lock()
        self._scanned: dict[int, ScannedRecord] = {}
        self._scanned_to = fmt.FILE_HEADER_BYTES
        self._last_scanned: ScannedRecord | None = None

    def _open_data(self, dir_fd: int, kind: fmt.Kind, volume_id: bytes) -> fmt.FileHeader:
        try:
            self.fd = open_to_read(dir_fd, data_name(self.number))
        except FileNotFoundError:
            raise DamagedContainer(f"{self._where}: the container is missing") from None
        header = header_of(self.fd, self._where)
        if not fmt.belongs_to(header, kind, self.number, volume_id):
            raise DamagedContainer(f"{self._where}: this file is another container")
        return header

    def close(self) -> None:
        """Close the files. Also done when the last user lets go of the object."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        if self.table_fd is not None:
            os.close(self.table_fd)
            self.table_fd = None

    def __del__(self) -> None:
        self.close()

    def is_replaced(self, dir_fd: int) -> bool:
        """Whether a compaction has put another file in the place of this one, or removed it."""
        return _is_another(self.fd, dir_fd, data_name(self.number))

    def is_stale(self, dir_fd: int) -> bool:
        """Whether there may be more to know by now than when this was opened: the container was
        replaced, or a recovery or a scrub has written a new table."""
        return self.is_replaced(dir_fd) or _is_another(
            self.table_fd, dir_fd, table_name(self.number)
        )

    def _open_table(self, dir_fd: int) -> int | None:
        """The table's descriptor, or None where there is no usable one.

        Between the two steps of a compaction the table still has its temporary name; asked for
        after the first name, it may have got its own meanwhile.
        """
        own = table_name(self.number)
        for name in (own, own + NEW, own):
            try:
                fd = open_to_read(dir_fd, name)
            except FileNotFoundError:
                continue
            if self._is_own_table(fd):
                return fd
            os.close(fd)
        return None

    def _is_own_table(self, fd: int) -> bool:
        try:
            header = tbl.decode_header(read_readable(fd, tbl.HEADER_BYTES, 0), "")
            if not tbl.belongs(header, self.header):
                return False
            lines = read_readable(fd, header.map_lines * tbl.MAP_LINE_BYTES, tbl.HEADER_BYTES)
            self._table_map = tbl.decode_map(lines, header, self._where)
        except DamagedTable:
            return False
        return True

    def entry(self, ordinal: int) -> tbl.TableEntry | None:
        """The table's entry, or None where the table has no valid one."""
        if self.table_fd is None or self._table_map is None:
            return None
        offset = self._table_map.offset(ordinal)
        if offset is None:
            return tbl.COLLECTED
        data = read_readable(self.table_fd, tbl.ENTRY_BYTES, offset)
        return tbl.decode_entry(data, self.seed)

    def read(self, ordinal: int) -> tuple[fmt.Record, bytes]:
        """The record ``ordinal`` and its raw bytes, verified. Raises DamagedChunk.

        A merged or collected record has no bytes: it is given as a record of that kind.
        """
        entry = self.entry(ordinal)
        if entry is not None and entry.state == tbl.State.MERGED:
            return forward(ordinal, entry), b""
        if entry is not None and entry.state == tbl.State.QUARANTINED:
            return self.read_own(ordinal)
        return self._read(ordinal, entry)

    def read_own(self, ordinal: int) -> tuple[fmt.Record, bytes]:
        """As :meth:`read`, but regardless of the state in the table, and with the fingerprint
        compared."""
        record, raw = self._read(ordinal, self.entry(ordinal))
        if record.kind not in _WITHOUT_BYTES and not is_right(record, raw):
            raise self._damaged(ordinal, "its bytes do not match its fingerprint")
        return record, raw

    def _read(self, ordinal: int, entry: tbl.TableEntry | None) -> tuple[fmt.Record, bytes]:
        if entry is not None:
            result = self._read_at(entry.offset, entry.stored_length, ordinal)
            if result is not None:
                return result
            if entry.state == tbl.State.TOMBSTONE and self._is_at(entry, ordinal):
                return fmt.tombstone(ordinal, 1, entry.fingerprint), b""  # its payload was punched
        found = self._find(ordinal)
        if found is not None:
            if found.record.kind in _WITHOUT_BYTES:
                return found.record, b""
            result = self._read_at(found.offset, found.record.stored_length, ordinal)
            if result is not None:
                return result
        raise self._damaged(ordinal, "its bytes do not match its checksum" if found else _NOT_THERE)

    def describe(self, ordinal: int) -> fmt.Record:
        """The header of the record ``ordinal``, without its bytes. Raises DamagedChunk."""
        entry = self.entry(ordinal)
        if entry is not None and entry.state == tbl.State.MERGED:
            return forward(ordinal, entry)
        return self._describe(ordinal, entry)

    def describe_own(self, ordinal: int) -> fmt.Record:
        """As :meth:`describe`, but regardless of the state in the table."""
        return self._describe(ordinal, self.entry(ordinal))

    def _describe(self, ordinal: int, entry: tbl.TableEntry | None) -> fmt.Record:
        if entry is not None:
            record = self._header_at(entry.offset)
            if record is not None and record.ordinal == ordinal:
                return record
        found = self._find(ordinal)
        if found is None:
            raise self._damaged(ordinal, _NOT_THERE)
        return found.record

    def _damaged(self, ordinal: int, reason: str) -> DamagedChunk:
        chunk_id = make_id(self.number, ordinal)
        return DamagedChunk(f"{self._where}: record {show_id(chunk_id)}: {reason}", chunk_id)

    def _read_at(
        self, offset: int, stored_length: int, ordinal: int
    ) -> tuple[fmt.Record, bytes] | None:
        """The record at ``offset`` if it is ``ordinal`` and intact, else None."""
        data = memoryview(read_at(self.fd, fmt.RECORD_HEADER_BYTES + stored_length, offset))
        record = fmt.unpack_record(data, 0, self.seed)
        if record is None or record.ordinal != ordinal or record.stored_length != stored_length:
            return None
        if len(data) != fmt.RECORD_HEADER_BYTES + stored_length:
            return None
        try:
            raw = raw_bytes(record, data[fmt.RECORD_HEADER_BYTES :], self.bases)
        except DamagedContainer as error:
            raise self._damaged(ordinal, str(error)) from error
        return None if raw is None else (record, raw)

    def read_stored(self, ordinal: int) -> tuple[fmt.Record, bytes]:
        """The record ``ordinal`` and its payload as it is stored, verified with its fingerprint.

        Raises DamagedChunk, also where the record has no payload.
        """
        record, _ = self.read_own(ordinal)
        if record.kind in _WITHOUT_BYTES:
            raise self._damaged(ordinal, _BYTES_GONE)
        entry = self.entry(ordinal)
        offset = entry.offset if entry is not None else -1
        if offset < 0 or self._header_at(offset) != record:
            found = self._find(ordinal)
            offset = found.offset if found is not None else -1
        stored = read_at(self.fd, record.stored_length, offset + fmt.RECORD_HEADER_BYTES)
        if native.hashing.xxh3_64(stored) != record.checksum:
            raise self._damaged(ordinal, _BYTES_GONE)
        return record, stored

    def _is_at(self, entry: tbl.TableEntry, ordinal: int) -> bool:
        """Whether the record that an entry states lies where it says, with or without its bytes."""
        record = self._header_at(entry.offset)
        return record is not None and (
            (record.ordinal, record.stored_length, record.fingerprint)
            == (ordinal, entry.stored_length, entry.fingerprint)
        )

    def _header_at(self, offset: int) -> fmt.Record | None:
        return fmt.unpack_record(read_at(self.fd, fmt.RECORD_HEADER_BYTES, offset), 0, self.seed)

    def _find(self, ordinal: int) -> ScannedRecord | None:
        """Look for a record in the container itself; keeps the results of the scan."""
        with self._lock:
            self._forget_cut_records()
            found = self._scanned.get(ordinal)
            size = os.fstat(self.fd).st_size
            if found is None and self._scanned_to < size:
                # What is believed of an old container depends on all of it.
                is_whole = self.header.is_forgeable
                start = fmt.FILE_HEADER_BYTES if is_whole else self._scanned_to
                items = scan(self.fd, self.seed, start, size)
                for item in believed(self.fd, self.header, items, self.bases):
                    if isinstance(item, ScannedRecord):
                        self._note(item)
                        self._scanned_to = size if is_whole else item.end
                found = self._scanned.get(ordinal)
            return found

    def _note(self, item: ScannedRecord) -> None:
        """Keep a record that a scan found; a run of tombstones under each of its ordinals."""
        if not item.is_implied:
            self._last_scanned = item
        for ordinal in item.ordinals():
            self._scanned[ordinal] = item

    def _forget_cut_records(self) -> None:
        """Begin the scan again where the end of the container was cut since, and perhaps written
        again, by a writer on a full disk or by a recovery: then its last record is not there."""
        last = self._last_scanned
        if last is None:
            return
        if self._header_at(last.offset) != last.record:
            self._scanned.clear()
            self._scanned_to, self._last_scanned = fmt.FILE_HEADER_BYTES, None
