"""Taking the last records of a container back, where nothing refers to them.

The inverse of appending, in the inverse order: first the table says that the records are not there,
then their bytes go. It needs no new space on file systems that write in place; where each write
takes new blocks (btrfs), the bytes that no sync has made durable go first, and make room.
"""

import os
from dataclasses import replace

from dedupd_core.errors import NoSpace
from dedupd_core.failpoint import define, reach
from dedupd_core.format import container as fmt
from dedupd_core.format import table as tbl
from dedupd_core.store.container.container import data_name, header_of, table_name
from dedupd_core.store.container.directory import ContainerDirectory
from dedupd_core.store.container.files import last_number
from dedupd_core.store.container.table_file import map_of, table_header
from dedupd_core.system.files import opened

_LOWERED = define("cut.lowered", "the mark of a table is rolled back, the records still exist")
_CUT = define("cut.cut", "records are removed from a container, their entries are in its table")
_REMOVED = define("cut.removed", "the table of an emptied container is deleted")


def cut_back(
    directory: ContainerDirectory, number: int, end: int, count: int
) -> tuple[int, int, int]:
    """Cut a container back to its first ``count`` records, ``end`` bytes; returns the bytes cut,
    and where it ends now: records that were synced stay where there is no space to write the mark.

    Nothing may refer to the others, on disk or in memory: their ids are given out again. A crash at
    any point leaves a container that holds them all, some of them or none, for recovery to put in
    order. Needs the job lock. Raises Damaged, OSError.
    """
    disk, name = directory.disk, table_name(number)
    with (
        directory.neighbours.turn(),
        opened(disk.open_write(directory.fd, data_name(number))) as data_fd,
        opened(disk.open_write(directory.fd, name)) as table_fd,
    ):
        size = os.fstat(data_fd).st_size
        mark = table_header(table_fd, name, header_of(data_fd, directory.where(number)))
        table_end = map_of(table_fd, mark).offset_below(count)
        if size > max(end, mark.synced_bytes):
            disk.truncate(data_fd, max(end, mark.synced_bytes))
        if mark.synced_bytes > end:
            lowered = replace(
                mark,
                synced_bytes=end,
                synced_count=count,
                reconciled=min(mark.reconciled, count),
            )
            try:
                disk.write_at(table_fd, [tbl.encode_header(lowered)], 0)
                # A container that is shorter than its mark counts as damaged.
                disk.sync_data(table_fd)
            except NoSpace:
                return size - mark.synced_bytes, mark.synced_bytes, mark.synced_count
            reach(_LOWERED)
            disk.truncate(data_fd, end)
        reach(_CUT)
        if os.fstat(table_fd).st_size > table_end:
            disk.truncate(table_fd, table_end)
        disk.sync_file(data_fd)
        disk.sync_file(table_fd)
    return max(0, size - end), end, count


def remove_empty(directory: ContainerDirectory, number: int) -> None:
    """Remove a container that was cut back to nothing, unless it has the highest number, which
    would be given out again. Needs the job lock."""
    with directory.neighbours.turn():
        if number >= last_number(directory.fd):
            return
        if directory.stat(number).st_size > fmt.FILE_HEADER_BYTES:
            return  # it could not be cut
        disk = directory.disk
        disk.unlink(directory.fd, table_name(number))
        disk.sync_dir(directory.fd)
        reach(_REMOVED)
        disk.unlink(directory.fd, data_name(number))
        disk.sync_dir(directory.fd)
