"""The redirection tables of a directory, read in blocks."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from dedupd_core.errors import Damaged
from dedupd_core.format import table as tbl
from dedupd_core.format.container import FileHeader, seed_of
from dedupd_core.format.ids import make_id
from dedupd_core.store.container.container import table_name
from dedupd_core.store.container.directory import ContainerDirectory
from dedupd_core.store.container.recovery import recover_sound
from dedupd_core.store.container.table_file import (
    Recovered,
    load_packed_table,
    map_of,
    table_header,
)
from dedupd_core.system.files import open_to_read, opened, read_into

BLOCK_ENTRIES = 1 << 16
"""Entries of a table in one block: 4 MiB, however long the table is."""

_STATE_BYTE = 60


class RecordRange(NamedTuple):
    """Records [first, end) of a container."""

    container: int
    first: int
    end: int


@dataclass(slots=True)
class TableShape:
    """A container: how many entries its table has, and how many of them are reconciled."""

    header: FileHeader
    count: int
    reconciled: int


class TableBlock(NamedTuple):
    """Consecutive entries as they lie in a table, from the ordinal ``first`` on."""

    header: FileHeader
    first: int
    entries: memoryview

    @property
    def end(self) -> int:
        """The ordinal after the last entry."""
        return self.first + len(self.entries) // tbl.ENTRY_BYTES

    @property
    def first_id(self) -> int:
        return make_id(self.header.container, self.first)

    def states(self) -> bytes:
        """The state of each entry."""
        return bytes(self.entries[_STATE_BYTE :: tbl.ENTRY_BYTES])

    def fingerprint(self, at: int) -> bytes:
        """The fingerprint of the entry at a place of the block."""
        return bytes(self.entries[at * tbl.ENTRY_BYTES :][: tbl.FINGERPRINT_BYTES])

    def entry(self, at: int) -> tbl.TableEntry | None:
        """The entry at a place of the block; None where it is not valid."""
        return tbl.decode_entry(self.entries[at * tbl.ENTRY_BYTES :], seed_of(self.header))


class TableScan:
    """The tables of all containers that can be opened, by number.

    The other containers are left to scrub. Needs the job lock.
    """

    def __init__(
        self,
        directory: ContainerDirectory,
        safe_point: Callable[[], None],
        read: Callable[[int, memoryview, int], int] = read_into,
    ) -> None:
        """Borrows ``directory``. ``read`` fills a block: through the page cache, for a job that
        goes through the tables several times, or past it."""
        self.directory = directory
        self.shapes: dict[int, TableShape] = {}
        self._safe_point = safe_point
        self._read = read

    def recover(self) -> Iterator[Recovered]:
        """Bring every container into a known state, and take note of its table."""
        for state in recover_sound(self.directory):
            shape = TableShape(state.header, len(state.entries), state.reconciled)
            self.shapes[state.header.container] = shape
            yield state

    def counts(self) -> dict[int, int]:
        """Container → how many ordinals it has."""
        return {number: shape.count for number, shape in self.shapes.items()}

    def whole(self, number: int) -> RecordRange:
        """All records of a container."""
        return RecordRange(number, 0, self.shapes[number].count)

    def blocks(self, ranges: Iterable[RecordRange] | None = None) -> Iterator[TableBlock]:
        """The entries of some records, or of all, in order, with a safe point before each block.

        A block is valid until the next one is asked for.
        """
        for one in map(self.whole, self.shapes) if ranges is None else ranges:
            for block in self.blocks_of(one):
                self._safe_point()
                yield block

    def blocks_of(self, one: RecordRange) -> Iterator[TableBlock]:
        """As :meth:`blocks`, of one range and without safe points."""
        header = self.shapes[one.container].header
        buffer = bytearray(min(BLOCK_ENTRIES, one.end - one.first) * tbl.ENTRY_BYTES)
        name = table_name(one.container)
        with opened(open_to_read(self.directory.fd, name)) as fd:
            table_map = map_of(fd, table_header(fd, name, header))
            for first in range(one.first, one.end, BLOCK_ENTRIES):
                end = min(first + BLOCK_ENTRIES, one.end)
                start = table_map.offset_below(first)
                view = memoryview(buffer)[: table_map.offset_below(end) - start]
                view = view[: self._read(fd, view, start)]
                if table_map.left_out:
                    view = memoryview(table_map.expand(view, first, end))
                yield TableBlock(header, first, view)


class LoadedTable(NamedTuple):
    """A container's header, its table's header, and the table's entries."""

    header: FileHeader
    mark: tbl.TableHeader
    entries: bytes


def loaded_tables(
    directory: ContainerDirectory, safe_point: Callable[[], None]
) -> Iterator[LoadedTable]:
    """The table of each container that can be opened, as it is: nothing is changed."""
    for number in directory.numbers():
        safe_point()
        try:
            header = directory.header(number)
            loaded = LoadedTable(header, *load_packed_table(directory.fd, header))
        except (Damaged, OSError):
            continue
        yield loaded
