"""How many entries the containers of a directory have, by headers and sizes: none is read."""

import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dedupd_core.errors import DamagedContainer, UnknownFormat
from dedupd_core.format import table as tbl
from dedupd_core.format.domain import PartitionKey
from dedupd_core.store.container.container import data_name, header_of, table_name
from dedupd_core.store.container.files import container_numbers
from dedupd_core.system.files import open_to_read, opened


class ContainerCount(NamedTuple):
    """One container: its number, its partition, and about how many entries its table has."""

    number: int
    key: PartitionKey
    entries: int


def census(dir_fd: int, numbers: Iterable[int] | None = None) -> Iterator[ContainerCount]:
    """The containers of these numbers that have a valid header, or all of them, by number."""
    for number in container_numbers(dir_fd) if numbers is None else numbers:
        try:
            name = data_name(number)
            with opened(open_to_read(dir_fd, name)) as fd:
                header = header_of(fd, name.decode())
        except (FileNotFoundError, DamagedContainer, UnknownFormat):
            continue
        yield ContainerCount(number, header.partition_key, entries_in(dir_fd, number))


def entries_by_partition(
    dir_fd: int, numbers: Iterable[int] | None = None
) -> dict[PartitionKey, int]:
    """About how many entries the tables of each partition have, as far as these containers go."""
    entries: dict[PartitionKey, int] = {}
    for one in census(dir_fd, numbers):
        entries[one.key] = entries.get(one.key, 0) + one.entries
    return entries


def entries_in(dir_fd: int, number: int) -> int:
    """About how many entries the table of a container has: as many as its size has room for."""
    try:
        size = os.stat(table_name(number), dir_fd=dir_fd, follow_symlinks=False).st_size
    except FileNotFoundError:
        return 0
    return max(0, size - tbl.HEADER_BYTES) // tbl.ENTRY_BYTES
