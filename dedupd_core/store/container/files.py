"""The containers and tables that a directory holds, by their numbers."""

import os
import re
from collections.abc import Iterator

from dedupd_core import native
from dedupd_core.errors import DamagedTable
from dedupd_core.format import table as tbl
from dedupd_core.store.container.container import table_name
from dedupd_core.store.container.table_file import read_entries
from dedupd_core.system.files import open_to_read, opened, read_readable

_FILE_NAME = re.compile(r"([0-9]{8,10})\.(dat|dir)")


_NUMBERS = 1 << 32
"""How many there are: an id has 32 bits for them."""


def container_numbers(dir_fd: int) -> list[int]:
    """Numbers of all containers in a directory, ascending."""
    return sorted(number for number, suffix in _files(dir_fd) if suffix == "dat")


def table_numbers(dir_fd: int) -> list[int]:
    """Numbers of all redirection tables in a directory that tell of records, ascending.

    The others are :func:`remains`.
    """
    remaining = set(remains(dir_fd))
    numbers = {number for number, suffix in _files(dir_fd) if suffix == "dir"}
    return sorted(numbers - remaining)


def remains(dir_fd: int) -> list[int]:
    """Numbers of tables without a container in which nothing was needed any more: an interrupted
    removal leaves them."""
    tables = {number for number, suffix in _files(dir_fd) if suffix == "dir"}
    alone = tables - set(container_numbers(dir_fd))
    return sorted(number for number in alone if _is_all_collected(dir_fd, number))


def _is_all_collected(dir_fd: int, number: int) -> bool:
    name = table_name(number)
    try:
        with opened(open_to_read(dir_fd, name)) as fd:
            table = tbl.decode_header(read_readable(fd, tbl.HEADER_BYTES, 0), name.decode())
            entries = read_entries(fd, table)
    except DamagedTable:
        return False
    states = native.store.table_states(entries, table.seed)[: table.synced_count]
    return states == bytes([tbl.State.TOMBSTONE]) * table.synced_count


def last_number(dir_fd: int) -> int:
    """The highest number that a container has or had, as far as files tell; 0 where there is none.

    The table of a container that was lost still says that its number must not be given out again.
    """
    return max((number for number, _ in _files(dir_fd)), default=0)


def _files(dir_fd: int) -> Iterator[tuple[int, str]]:
    """Number and suffix of every container and table; files of other names are not ours."""
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=dir_fd)
    with opened(fd), os.scandir(fd) as entries:
        for entry in entries:
            match = _FILE_NAME.fullmatch(entry.name)
            number = int(match[1]) if match is not None else _NUMBERS
            if match is not None and number < _NUMBERS and f"{number:08d}" == match[1]:
                yield number, match[2]
