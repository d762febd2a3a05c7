"""How many entries the containers of a directory have, by headers and sizes: none is read."""

import os
from collections.abc import Iterator
from typing import NamedTuple

from dedupd.errors import DamagedContainer, UnknownFormat
from dedupd.format import table as tbl
from dedupd.store.container.container import data_name, header_of, table_name
from dedupd.store.container.files import container_numbers
from dedupd.system.files import open_to_read, opened


class Counted(NamedTuple):
    """One container: its number, its partition, and about how many entries its table has."""

    number: int
    partition: int
    entries: int


def census(dir_fd: int) -> Iterator[Counted]:
    """All containers with a valid header, by number."""
    for number in container_numbers(dir_fd):
        try:
            name = data_name(number)
            with opened(open_to_read(dir_fd, name)) as fd:
                header = header_of(fd, name.decode())
        except (FileNotFoundError, DamagedContainer, UnknownFormat):
            continue
        yield Counted(number, header.partition, entries_in(dir_fd, number))


def entries_by_partition(dir_fd: int) -> dict[int, int]:
    """About how many entries the tables of each partition have."""
    entries: dict[int, int] = {}
    for one in census(dir_fd):
        entries[one.partition] = entries.get(one.partition, 0) + one.entries
    return entries


def entries_in(dir_fd: int, number: int) -> int:
    """About how many entries the table of a container has: as many as its size has room for."""
    try:
        size = os.stat(table_name(number), dir_fd=dir_fd, follow_symlinks=False).st_size
    except FileNotFoundError:
        return 0
    return max(0, size - tbl.HEADER_BYTES) // tbl.ENTRY_BYTES
