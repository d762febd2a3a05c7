"""Making a container that has lost its file, its header or its end one that can be opened again.

Lost records stay lost: their entries say so, keep their ordinals, and are not offered. From then on
the entry of each can say where its bytes are found instead. Bytes that are still there are never
touched; only a damaged header is written again.
"""

import os
import time
from dataclasses import replace

from dedupd_core import native
from dedupd_core.errors import DamagedContainer, DamagedTable
from dedupd_core.failpoint import define, reach
from dedupd_core.format import container as fmt
from dedupd_core.format import domain as domains
from dedupd_core.format import table as tbl
from dedupd_core.store.container.container import data_name, header_of, table_name
from dedupd_core.store.container.directory import ContainerDirectory
from dedupd_core.store.container.recovery import completed, is_unfinished
from dedupd_core.store.container.table_file import LOST, load_table, table_header_at
from dedupd_core.store.container.table_totals import census
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import BLOCK_BYTES, is_readable, opened, read_readable

_CREATED = define("mend.created", "an empty container replaces a lost container")
_HEADER = define(
    "mend.header-written", "a container has a valid header again, its table is not updated"
)
_TABLE = define("mend.table-written", "the table records which records of a container are lost")

GENERATIONS_MAX = 64
"""How many compactions of one container are tried where nothing says how many there were."""

READS = 5
READ_PAUSE_S = 2.0
"""Attempts at a block, and the time between two, until it is given up and written over: a disk may
fail for a moment, and many a weak sector can be read at last."""


def mend(directory: ContainerDirectory, number: int, count_min: int = 0) -> list[str]:
    """Make a container openable, with at least ``count_min`` entries; returns what was wrong.

    Needs the job lock, and no open writer. Idempotent; interrupted anywhere, the next call
    finishes. A container that was never finished is left to recovery. Raises DamagedContainer where
    the file is another container, UnknownFormat, NoSpace, OSError.
    """
    wrong: list[str] = []
    dir_fd, disk = directory.fd, directory.disk
    if _is_missing(dir_fd, number):
        wrong.append("the container is missing")
        _create(directory, number)
    elif count_min == 0 and is_unfinished(dir_fd, number):
        return []
    name = data_name(number)
    with opened(os.open(name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=dir_fd)) as fd:
        try:
            header = header_of(fd, name.decode())
        except DamagedContainer:
            wrong.append("the container has no valid header")
            generation, seed = _generation(fd, directory, number)
            header = _new_header(directory, number, generation, seed)
            _write_header(fd, header, disk)
            reach(_HEADER)
        if not directory.owns(header, number):
            raise DamagedContainer(f"{name.decode()}: this file is another container")
        return wrong + _mend_table(directory, fd, header, count_min)


def _write_header(fd: int, header: fmt.FileHeader, disk: Disk) -> None:
    """Durably. A block that cannot be read can't be written in part: then all of it is."""
    data = fmt.encode_file_header(header)
    if not _can_be_read(fd, 0, BLOCK_BYTES):
        data += read_readable(fd, BLOCK_BYTES, 0)[len(data) :]
    disk.write_at(fd, [data], 0)
    disk.sync_data(fd)


def _can_be_read(fd: int, start: int, end: int) -> bool:
    """Whether the disk gives a range, if not at once."""
    for attempt in range(READS):
        if attempt:
            time.sleep(READ_PAUSE_S)
        if is_readable(fd, start, end):
            return True
    return False


def _is_missing(dir_fd: int, number: int) -> bool:
    try:
        os.stat(data_name(number), dir_fd=dir_fd)
    except FileNotFoundError:
        return True
    return False


def _create(directory: ContainerDirectory, number: int) -> None:
    mark = _table_header(directory.fd, number)
    if mark is None:
        header = _new_header(directory, number, 1, directory.new_seed(number, 1))
    else:
        header = _new_header(directory, number, mark.generation, mark.seed)
    if mark is None:
        # First of all, so that the new file is not taken for one that was never finished.
        blank = tbl.TableHeader.of(header, fmt.FILE_HEADER_BYTES, 1)
        directory.write_table(header, blank, [LOST])
    data = fmt.encode_file_header(header)
    directory.room.require(len(data), directory.where(number))
    directory.disk.replace_file(directory.fd, data_name(number), data)
    reach(_CREATED)


def _new_header(
    directory: ContainerDirectory, number: int, generation: int, seed: int
) -> fmt.FileHeader:
    mark = _table_header(directory.fd, number)
    partition, punches = (mark.partition, mark.punches) if mark is not None else (0, 0)
    kind, volume_id = directory.kind, directory.volume_id
    is_public = seed == fmt.public_seed(volume_id, number, generation)
    return fmt.FileHeader(
        *(kind, number, generation, partition, volume_id, time.time_ns(), punches),
        seed=0 if is_public else seed,
        domain=domains.of_lost(number) if _is_apart(directory, mark) else domains.VOLUME,
    )


def _is_apart(directory: ContainerDirectory, mark: tbl.TableHeader | None) -> bool:
    """Whether a container without a header may be of another domain than the volume's. Which one
    it was is not known any more: so nothing new may share its records."""
    if mark is not None:
        return mark.is_apart
    return any(not one.key.is_of_volume for one in census(directory.fd))


def _table_header(dir_fd: int, number: int) -> tbl.TableHeader | None:
    mark = table_header_at(dir_fd, table_name(number))
    return mark if mark is not None and mark.container == number else None


def _generation(fd: int, directory: ContainerDirectory, number: int) -> tuple[int, int]:
    """Generation and seed of a container without a header: those by which records are valid.

    A seed that users can know is tried only if the table or the damaged header says that the
    container has it: else a user's bytes could pass for the records of a container.
    """
    kind, volume_id = directory.kind, directory.volume_id
    mark = _table_header(directory.fd, number)
    head = read_readable(fd, fmt.FILE_HEADER_BYTES, 0)
    generations = list(range(1, GENERATIONS_MAX + 1))
    made = {
        seed: generation
        for generation in reversed(generations)
        for seed in directory.secret.seeds(kind, number, generation)
    }
    tried = {} if mark is None else {mark.seed: mark.generation}
    for seed in fmt.seeds_in(head):
        tried.setdefault(seed, made.get(seed, generations[0]))
    tried = {**made, **tried}
    if fmt.is_public(head):
        tried |= {fmt.public_seed(volume_id, number, one): one for one in generations}
    size = os.fstat(fd).st_size
    valid = native.store.valid_seed(fd, list(tried), fmt.FILE_HEADER_BYTES, size)
    if valid is not None:
        return tried[valid], valid
    if mark is not None:
        return mark.generation, mark.seed
    return generations[0], directory.new_seed(number, generations[0])


def _mend_table(
    directory: ContainerDirectory, fd: int, header: fmt.FileHeader, count_min: int
) -> list[str]:
    """Give the table the entries that it must have, with those of cut records quarantined."""
    wrong: list[str] = []
    try:
        mark, entries = load_table(directory.fd, header)
    except DamagedTable:
        return wrong  # recovery makes a new one, and marks damaged records
    size = os.fstat(fd).st_size
    count = max(mark.synced_count, count_min)
    if size >= mark.synced_bytes and count == mark.synced_count:
        return wrong
    if size < mark.synced_bytes:
        wrong.append(f"{mark.synced_bytes - size} bytes are missing at its end")
    mark = replace(mark, synced_bytes=min(size, mark.synced_bytes))
    kept = completed(directory, fd, header, mark, entries)
    kept += [LOST] * (count - len(kept))
    kept = [_as_far_as_there(entry, size) for entry in kept]
    directory.write_table(header, replace(mark, synced_count=len(kept), reconciled=0), kept)
    reach(_TABLE)
    return wrong


def _as_far_as_there(entry: tbl.TableEntry, size: int) -> tbl.TableEntry:
    end = entry.offset + fmt.RECORD_HEADER_BYTES + entry.stored_length
    if entry.state in tbl.USABLE and end > size:
        return entry._replace(state=tbl.State.QUARANTINED)
    return entry
