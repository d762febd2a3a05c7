"""A container that a writer appends to, and moments of it."""

from dataclasses import dataclass

from dedupd_core import native
from dedupd_core.errors import DamagedTable
from dedupd_core.format import container as fmt
from dedupd_core.format import table as tbl
from dedupd_core.store.container.container import table_name
from dedupd_core.store.container.table_file import table_header
from dedupd_core.store.unkept_records import Position

NO_MAP = native.store.TableMap(b"", 0)
"""Of a table that has an entry for each record."""


@dataclass(slots=True)
class OpenContainer:
    """The container that grows."""

    number: int
    data_fd: int
    table_fd: int
    seed: int
    header: fmt.FileHeader
    end: int
    count: int
    reserved_count: int
    reserved_bytes: int
    table_map: native.store.TableMap = NO_MAP
    map_lines: int = 0

    @property
    def position(self) -> Position:
        """Behind its last record."""
        return Position(self.number, self.count, self.end)

    def mark(self) -> tbl.TableHeader:
        """The header of its table after the latest append; the reconciled set is left out."""
        return tbl.TableHeader.of(self.header, self.end, self.count, map_lines=self.map_lines)

    def reconciled(self) -> int:
        """How much of it is in the reconciled set, as its table says."""
        try:
            return table_header(self.table_fd, table_name(self.number), self.header).reconciled
        except DamagedTable:
            return 0


@dataclass(frozen=True, slots=True)
class SyncPoint:
    """A moment of a writer: containers appended to, their marks, and the full ones of them."""

    marks: list[tuple[OpenContainer, tbl.TableHeader]]
    full: list[OpenContainer]
