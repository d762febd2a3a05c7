"""Compaction of one container: live records move to a new generation, and ids stay.

docs/design/format.md, "Compaction". The entries say which records are garbage. The job that holds
the lock has made sure that nothing refers to a record that is dropped.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

from dedupd_core import native
from dedupd_core.errors import DamagedChunk, NoSpace
from dedupd_core.failpoint import define, reach
from dedupd_core.format import container as fmt
from dedupd_core.format import table as tbl
from dedupd_core.format.ids import make_id, show_id
from dedupd_core.format.table_columns import PackedEntries
from dedupd_core.store.container.container import NEW, data_name, forward, table_name
from dedupd_core.store.container.directory import ContainerDirectory
from dedupd_core.store.container.files import remains
from dedupd_core.store.container.punching import count_punch
from dedupd_core.store.container.record_states import set_entries, tell_punched
from dedupd_core.store.container.recovery import entry_of
from dedupd_core.store.container.scan import WINDOW_BYTES, ScannedRecord, SequentialReader
from dedupd_core.store.container.table_file import Recovered
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import opened

_COPIED = define("compact.copied", "the new container is durable, its table not written")
_WRITTEN = define("compact.written", "the new container and its table are durable")
_DATA_SWITCHED = define("compact.data-switched", "the new container has its name, its table not")
_SWITCHED = define("compact.switched", "the new container and its table have their names")
_COLLECTED = define("compact.collected", "a dead container's table records that all is collected")
_RELEASED = define("compact.released", "a dead container has no blocks, only its table")
_DATA_REMOVED = define("compact.data-removed", "a dead container is deleted, its table is not")
_TABLE_REMOVED = define("compact.table-removed", "a dead container no longer has a table")
_REMOVED = define("compact.removed", "a dead container and its table are deleted")

_DEAD = frozenset((tbl.State.ORPHANED, tbl.State.TOMBSTONE))


Kept = Iterator[tuple[fmt.Record, memoryview]]
"""Records of a container in order, with their payloads, each valid until the next one comes."""


def compact(
    directory: ContainerDirectory,
    state: Recovered,
    progress: Callable[[int], None] = lambda _: None,
    given: Callable[[Kept], Kept] = iter,
) -> int:
    """Put a new generation in the place of a container; returns its size in bytes.

    ``progress`` is told the bytes written, now and then, and may raise to stop. ``given`` may put
    other payloads in the place of those of the records that it is shown. Readers of the old
    file go on with it. Raises DamagedChunk where a record that is needed is not intact, and
    NoSpace; then, and after a crash at any point, the container is the old one or the new.
    """
    dir_fd, disk = directory.fd, directory.disk
    number = state.header.container
    generation = state.header.generation + 1
    seed = directory.new_seed(number, generation)
    header = replace(state.header, generation=generation, punches=0, seed=seed)
    names = data_name(number) + NEW, table_name(number) + NEW
    for name in names:
        with suppress(FileNotFoundError):
            disk.unlink(dir_fd, name)
    try:
        with opened(disk.create(dir_fd, names[0])) as new_fd:
            copy = _Copy(new_fd, header, state.reconciled, disk, progress)
            with opened(os.open(data_name(number), os.O_RDONLY, dir_fd=dir_fd)) as old_fd:
                for record, payload in given(_kept(old_fd, state)):
                    copy.add(record, payload)
            copy.flush()
            disk.sync_file(new_fd)
        reach(_COPIED)
        with opened(disk.create(dir_fd, names[1])) as table_fd:
            disk.write_at(table_fd, copy.table(), 0)
            disk.sync_file(table_fd)
        disk.sync_dir(dir_fd)
    except BaseException:
        for name in names:
            with suppress(FileNotFoundError):
                disk.unlink(dir_fd, name)
        raise
    reach(_WRITTEN)
    disk.rename(dir_fd, names[0], dir_fd, data_name(number))
    disk.sync_dir(dir_fd)
    reach(_DATA_SWITCHED)
    disk.rename(dir_fd, names[1], dir_fd, table_name(number))
    disk.sync_dir(dir_fd)
    reach(_SWITCHED)
    return copy.end


def remove(directory: ContainerDirectory, state: Recovered) -> None:
    """Remove a container in which nothing is needed; that takes no space. It must not be the one of
    the highest number, which would be given out again.

    Its table says first of every record that it was collected, and so does not tell of a loss where
    it is found alone. Where a file system has no block for that (btrfs), the table goes first: a
    crash leaves records then that no table calls garbage, until the next gc.
    """
    disk, number = directory.disk, state.header.container
    names = data_name(number), table_name(number)
    try:
        _collect(directory, state, set_entries)
        point = _DATA_REMOVED
    except NoSpace:
        names, point = names[::-1], _TABLE_REMOVED
    disk.unlink(directory.fd, names[0])
    disk.sync_dir(directory.fd)
    reach(point)
    disk.unlink(directory.fd, names[1])
    disk.sync_dir(directory.fd)
    reach(_REMOVED)


def _collect(
    directory: ContainerDirectory,
    state: Recovered,
    tell: Callable[[ContainerDirectory, fmt.FileHeader, dict[int, tbl.TableEntry]], None],
) -> list[tbl.TableEntry]:
    """Have the table of a dead container say that all of it is collected; returns the entries.

    From here on no job offers its records for duplicates. Raises DamagedTable, NoSpace.
    """
    entries = [
        entry._replace(state=tbl.State.TOMBSTONE, target=0) if entry.state in _DEAD else entry
        for entry in state.entries
    ]
    tell(directory, state.header, dict(enumerate(entries)))
    reach(_COLLECTED)
    return entries


def release(directory: ContainerDirectory, state: Recovered) -> Recovered:
    """Give the blocks of a container back in which nothing is needed, without any new ones: room
    for its compaction. Returns it as it is then. Raises DamagedTable, NoSpace.
    """
    # The highest count there is stays: the compaction that follows begins a new one.
    header = replace(state.header, punches=min(state.header.punches, fmt.PUNCHES_MAX - 1))
    entries = _collect(directory, replace(state, header=header), tell_punched)
    disk, start = directory.disk, fmt.FILE_HEADER_BYTES
    with opened(disk.open_write(directory.fd, data_name(state.header.container))) as fd:
        count_punch(disk, fd, header)
        disk.punch(fd, start, state.end - start)
        disk.sync_file(fd)
    reach(_RELEASED)
    return replace(state, entries=PackedEntries.of(entries, fmt.seed_of(state.header)))


def remove_remains(directory: ContainerDirectory) -> None:
    """Remove the tables of containers that were removed."""
    disk, numbers = directory.disk, remains(directory.fd)
    for number in numbers:
        disk.unlink(directory.fd, table_name(number))
    if numbers:
        disk.sync_dir(directory.fd)


def _kept(fd: int, state: Recovered) -> Kept:
    """The records of the new generation, in order, with their payloads, verified.

    A payload is valid until the next record is asked for. Raises DamagedChunk.
    """
    number = state.header.container
    source = SequentialReader(fd, fmt.seed_of(state.header))
    nothing = memoryview(b"")
    run = 0
    with source:
        for ordinal, entry in enumerate(state.entries):
            if entry.state in _DEAD:
                run += 1
                continue
            if run > fmt.COLLECTED_MAX:
                yield fmt.tombstone(ordinal - run, run), nothing
                run = 0
            before, run = run, 0
            if entry.state == tbl.State.MERGED:
                yield forward(ordinal, entry, before), nothing
                continue
            found = source.read(ordinal, entry) if entry.state == tbl.State.LIVE else None
            if found is None:
                record_id = make_id(number, ordinal)
                raise DamagedChunk(
                    f"{data_name(number).decode()}: skipped: record {show_id(record_id)} is"
                    " damaged; run `dedupd run scrub`",
                    record_id,
                )
            record, payload = found
            yield (
                replace(record, collected=before) if before != record.collected else record,
                payload,
            )
    if run:
        yield fmt.tombstone(len(state.entries) - run, run), nothing


class _Copy:
    """The new generation: appends records, and keeps the entries of its table."""

    def __init__(
        self,
        fd: int,
        header: fmt.FileHeader,
        reconciled: int,
        disk: Disk,
        progress: Callable[[int], None],
    ) -> None:
        self._fd = fd
        self._header = header
        self._reconciled = reconciled
        self._disk = disk
        self._progress = progress
        self._seed = fmt.seed_of(header)
        self._buffer = bytearray(WINDOW_BYTES)
        self._view = memoryview(self._buffer)
        self._entries = bytearray()
        self._without_entry: list[tuple[int, int]] = []
        self._count = 0
        self._written = 0
        head = fmt.encode_file_header(header)
        self._view[: len(head)] = head
        self._fill = len(head)

    @property
    def end(self) -> int:
        return self._written + self._fill

    def add(self, record: fmt.Record, payload: memoryview) -> None:
        size = fmt.record_size(record.stored_length)
        if self._fill + size > len(self._view):
            self.flush()
        if record.collected:
            self._without_entry.append((self._count, self._count + record.collected))
            self._count += record.collected
        count = record.next_ordinal - record.ordinal
        entry = entry_of(ScannedRecord(self.end, record))
        self._entries += tbl.encode_entry(entry, self._seed) * count
        self._count += count
        start = self._fill + fmt.RECORD_HEADER_BYTES
        end = start + len(payload)
        fmt.pack_record_into(self._view, self._fill, record, self._seed)
        self._view[start:end] = payload
        self._fill += size
        self._view[end : self._fill] = bytes(self._fill - end)

    def flush(self) -> None:
        """Write the buffer."""
        self._disk.write_out(self._fd, self._view[: self._fill], self._written)
        self._written += self._fill
        self._fill = 0
        self._progress(self._written)

    def table(self) -> list[bytes | bytearray]:
        """The table of all records that were added, all of them marked."""
        lines = native.store.TableMap.without(self._without_entry, self._seed).lines()
        map_lines = len(lines) // tbl.MAP_LINE_BYTES
        mark = tbl.TableHeader.of(
            self._header, self.end, self._count, self._reconciled, map_lines=map_lines
        )
        return [tbl.encode_header(mark), lines, self._entries]
