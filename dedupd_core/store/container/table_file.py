"""Redirection tables as they are read from their files."""

import os
from dataclasses import dataclass

from dedupd_core import native
from dedupd_core.errors import DamagedTable
from dedupd_core.format import container as fmt
from dedupd_core.format import table as tbl
from dedupd_core.format.table_columns import PackedEntries, UncheckedEntries
from dedupd_core.store.container.container import NEW, table_name
from dedupd_core.system.files import open_to_read, opened, read_readable

_ORDINALS = (1 << 32) - 1
"""More than a table has."""

LOST = tbl.TableEntry(state=tbl.State.QUARANTINED)
"""Stands in a table for an ordinal whose record was not found, so that one scan is enough."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """A container after recovery. ``appendable`` is False where it must not grow any more, also
    because a neighbour appends to it (``is_theirs``).

    ``entries`` is ``LOST`` for ordinals whose record was not found. Those below ``reconciled`` are
    in the reconciled set.
    """

    header: fmt.FileHeader
    end: int
    entries: PackedEntries
    appendable: bool
    cut_bytes: int
    reconciled: int = 0
    is_theirs: bool = False


def load_table(dir_fd: int, header: fmt.FileHeader) -> tuple[tbl.TableHeader, UncheckedEntries]:
    """Header and all entries of a container's table. Raises DamagedTable.

    Where a compaction was interrupted between its two renames, that is the table's temporary file.
    """
    table, body = load_packed_table(dir_fd, header)
    return table, UncheckedEntries(body, fmt.seed_of(header))


def load_packed_table(dir_fd: int, header: fmt.FileHeader) -> tuple[tbl.TableHeader, bytes]:
    """As :func:`load_table`, with the entries as they are in the file, unchecked."""
    name = table_name(header.container)
    try:
        return _load_table(dir_fd, name, header)
    except DamagedTable:
        try:
            return _load_table(dir_fd, name + NEW, header)
        except DamagedTable:
            pass
        raise


def _load_table(dir_fd: int, name: bytes, header: fmt.FileHeader) -> tuple[tbl.TableHeader, bytes]:
    try:
        fd = open_to_read(dir_fd, name)
    except FileNotFoundError:
        raise DamagedTable(f"{name.decode()}: the redirection table is missing") from None
    with opened(fd):
        table = table_header(fd, name, header)
        return table, read_entries(fd, table)


def read_entries(fd: int, table: tbl.TableHeader) -> bytes:
    """All entries of an open table with this header, and a tombstone for each record that has
    none. Raises DamagedTable."""
    table_map = map_of(fd, table)
    start = table_map.offset_below(0)
    body = read_readable(fd, max(0, os.fstat(fd).st_size - start), start)
    return table_map.expand(body, 0, _ORDINALS) if table_map.left_out else body


def synced_count(dir_fd: int, header: fmt.FileHeader) -> int:
    """How many records of a container are durable, by its table. Raises DamagedTable, OSError."""
    name = table_name(header.container)
    with opened(open_to_read(dir_fd, name)) as fd:
        return table_header(fd, name, header).synced_count


def map_of(fd: int, table: tbl.TableHeader) -> native.store.TableMap:
    """Which entries an open table with this header has. Raises DamagedTable."""
    lines = read_readable(fd, table.map_lines * tbl.MAP_LINE_BYTES, tbl.HEADER_BYTES)
    return tbl.decode_map(lines, table, table_name(table.container).decode())


def table_header_at(dir_fd: int, name: bytes) -> tbl.TableHeader | None:
    """The header of a redirection table, of whichever container; None where there is no valid
    one. Raises OSError."""
    try:
        with opened(open_to_read(dir_fd, name)) as fd:
            return tbl.decode_header(read_readable(fd, tbl.HEADER_BYTES, 0), name.decode())
    except (FileNotFoundError, DamagedTable):
        return None


def table_header(fd: int, name: bytes, header: fmt.FileHeader) -> tbl.TableHeader:
    """The header of an open redirection table, which is that of the container with ``header``.

    Raises DamagedTable.
    """
    table = tbl.decode_header(read_readable(fd, tbl.HEADER_BYTES, 0), name.decode())
    if not tbl.belongs(table, header):
        raise DamagedTable(f"{name.decode()}: the redirection table belongs to another container")
    return table
