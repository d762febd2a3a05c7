"""Punching: payloads that nothing needs give their blocks back, inside their container.

docs/design/format.md, "Punching". Headers, offsets and ids stay, so readers and scans find all
other records where they were. No new blocks are needed. The job that holds the lock has made sure
that nothing refers to a record that is punched.
"""

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, replace

from dedupd_core import native
from dedupd_core.errors import NoSpace
from dedupd_core.failpoint import define, reach
from dedupd_core.format import container as fmt
from dedupd_core.format import table as tbl
from dedupd_core.store.container.container import data_name
from dedupd_core.store.container.directory import ContainerDirectory
from dedupd_core.store.container.record_states import tell_punched
from dedupd_core.store.container.table_file import Recovered
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import opened

_TOLD = define("punch.told", "a table records which records are collected, nothing is punched")
_COUNTED = define("punch.counted", "a container records that it is punched, all payloads exist")
_PUNCHED = define("punch.punched", "the dead payloads of a container have no blocks")

_PER_SAFE_POINT = 256

_LOOKS = 32
"""Headers that are looked at side by side: each is a wait for the disk, which takes as many at once
and in the order of their places. On a disk with a queue that took a third of the time of two."""

BLOCK_BYTES = 512
"""Of ``st_blocks``."""


@dataclass(frozen=True, slots=True)
class DeadPayload:
    """A record that nothing needs, and the whole blocks [start, end) inside its payload."""

    ordinal: int
    start: int
    end: int


def gives_back(fd: int) -> bool:
    """Whether punching a file gives its blocks back on its file system. Raises OSError."""
    return native.system.file_system_kind(fd).punching_frees


def dead_payloads(
    directory: ContainerDirectory, state: Recovered, *, is_seen: bool = False
) -> list[DeadPayload]:
    """The payloads of a container that nothing needs and that still have blocks of their own.

    Merged ones are among them. Left out are those whose header is not where the entry says; no
    orphan is looked at for that where ``is_seen``, as its container was since it was last written
    to. None where punching would free nothing. Raises OSError.
    """
    if state.header.punches >= fmt.PUNCHES_MAX or not gives_back(directory.fd):
        return []
    with opened(directory.open_data(state.header.container)) as fd:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        found = native.store.dead_payloads(
            fd,
            state.entries.data,
            seed=fmt.seed_of(state.header),
            block_bytes=os.fstatvfs(fd).f_frsize,
            threads=1 if is_seen else _LOOKS,
            is_seen=is_seen,
        )
    return [DeadPayload(*one) for one in found]


def punch(
    directory: ContainerDirectory,
    state: Recovered,
    payloads: list[DeadPayload],
    safe_point: Callable[[], None] = lambda: None,
) -> int:
    """Give the blocks of ``payloads`` back; returns how many bytes those were, by the blocks of the
    container. ``safe_point`` is called now and then, and may raise to stop.

    Orphans among them become tombstones first; what was merged stays so. After a crash at any
    point a payload is whole, or its record is durably known as one that nobody may name.
    Raises DamagedTable, NoSpace, OSError.
    """
    if not payloads:
        return 0
    disk, header = directory.disk, state.header
    collected = {
        one.ordinal: state.entries[one.ordinal]._replace(state=tbl.State.TOMBSTONE, target=0)
        for one in payloads
        if state.entries[one.ordinal].state == tbl.State.ORPHANED
    }
    # In any case, and synced: a job that was killed may have left entries in memory only.
    tell_punched(directory, header, collected)
    reach(_TOLD)
    with opened(disk.open_write(directory.fd, data_name(header.container))) as fd:
        before = os.fstat(fd).st_blocks
        count_punch(disk, fd, header)
        _punch_all(directory, state, fd, payloads, safe_point)
        reach(_PUNCHED)
        return max(0, before - os.fstat(fd).st_blocks) * BLOCK_BYTES


def count_punch(disk: Disk, fd: int, header: fmt.FileHeader) -> None:
    """Have a container say, durably, that it is punched once more. Its table knows already.

    From here on no older copy of the table counts, in which the records may be live.
    """
    counted = replace(header, punches=header.punches + 1)
    disk.write_at(fd, [fmt.encode_file_header(counted)], 0)
    disk.sync_data(fd)
    reach(_COUNTED)


def _punch_all(
    directory: ContainerDirectory,
    state: Recovered,
    fd: int,
    payloads: list[DeadPayload],
    safe_point: Callable[[], None],
) -> None:
    """Raises NoSpace where the file system wants blocks to take others back, and has none."""
    refused = 0
    for at, one in enumerate(payloads):
        if at % _PER_SAFE_POINT == 0:
            safe_point()
        try:
            directory.disk.punch(fd, one.start, one.end - one.start)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            refused += 1  # another one may make room for it
    if refused == len(payloads):
        name = directory.where(state.header.container)
        raise NoSpace(
            f"{name}: no space left to free garbage; delete a file, then run the job again"
        )


def allocated_bytes(status: os.stat_result) -> int:
    """What a container has on the disk, as far as it counts: below its end."""
    return min(status.st_size, status.st_blocks * BLOCK_BYTES)
