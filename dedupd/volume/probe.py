"""Whether a file system can keep a volume: what stubs rely on, tried out in a file."""

import os
from collections.abc import Iterable

from dedupd.errors import UnsuitableFileSystem
from dedupd.system import mount_table
from dedupd.system.disk import Disk
from dedupd.system.files import data_ranges, opened
from dedupd.volume.volume import block_bytes_of


def probe(base_fd: int, where: str, disk: Disk) -> str:
    """The attribute name to use here. Raises UnsuitableFileSystem with what is missing.

    Checks what stubs rely on: extended attributes, punching, and that the extent map shows
    written blocks (zeros as well) as data and punched ones as holes, before and after a sync.
    """
    if "data=writeback" in mount_table.options_of(where):
        raise UnsuitableFileSystem(
            f"{where}: mounted with data=writeback, which after a power cut shows blocks that were"
            " never written as data; mount it with data=ordered"
        )
    name = b"probe"
    try:
        disk.unlink(base_fd, name)
    except FileNotFoundError:
        pass
    fd = disk.create(base_fd, name)
    try:
        with opened(fd):
            _probe_blocks(fd, where, disk)
            return _probe_attribute(fd, where)
    finally:
        disk.unlink(base_fd, name)


def _probe_blocks(fd: int, where: str, disk: Disk) -> None:
    block = block_bytes_of(fd)

    def expect(ranges: Iterable[tuple[int, int]], what: str) -> None:
        if list(data_ranges(fd, 0, 8 * block)) != list(ranges):
            raise UnsuitableFileSystem(f"{where}: this file system {what}")

    disk.write_at(fd, [os.urandom(8 * block - 100)], 0)
    try:
        disk.punch(fd, 0, 8 * block)
    except OSError as error:
        raise UnsuitableFileSystem(
            f"{where}: this file system cannot punch holes ({os.strerror(error.errno or 0)})"
        ) from error
    if os.fstat(fd).st_size != 8 * block - 100:
        raise UnsuitableFileSystem(f"{where}: punching changes a file's length here")
    expect([], "does not free a file that is punched whole")
    disk.write_at(fd, [bytes(block)], 2 * block)
    expect([(2 * block, 3 * block)], "does not show written blocks in its extent map")
    disk.sync_file(fd)
    expect([(2 * block, 3 * block)], "turns written zeros into holes")


def _probe_attribute(fd: int, where: str) -> str:
    for space in ("trusted", "user") if os.geteuid() == 0 else ("user",):
        try:
            os.setxattr(fd, f"{space}.dedupd", bytes(64))
        except OSError:
            continue
        return f"{space}.dedupd"
    raise UnsuitableFileSystem(f"{where}: this file system keeps no extended attributes")
