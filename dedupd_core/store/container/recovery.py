"""Bringing one container and its table into a known state before it is written or loaded.

Rule: bytes are cut from a container only where they were provably never synced, hence never
referenced. Everything else stays for scrub to judge.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from dedupd_core.errors import DamagedContainer, DamagedTable
from dedupd_core.failpoint import define, reach
from dedupd_core.format import container as fmt
from dedupd_core.format import table as tbl
from dedupd_core.format.table_columns import PackedEntries, UncheckedEntries
from dedupd_core.store.container.container import NEW, data_name, has_hole, header_of, table_name
from dedupd_core.store.container.directory import ContainerDirectory
from dedupd_core.store.container.scan import (
    Gap,
    ScannedRecord,
    believed,
    is_proved,
    payload_is_intact,
    scan,
    scan_inside,
)
from dedupd_core.store.container.table_file import (
    LOST,
    Recovered,
    load_packed_table,
    table_header_at,
)
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import is_readable, is_there, open_to_read, opened, read_readable

_CUT = define("recovery.cut", "a torn tail is removed from a container, but not from its table")
_SWITCHED = define("recovery.switched", "the table of an interrupted compaction has its name")


def entry_of(found: ScannedRecord) -> tbl.TableEntry:
    """The table entry that a record implies, for each of the ordinals that it stands for."""
    record = found.record
    states: dict[int, tbl.State] = {
        fmt.RecordKind.FORWARD: tbl.State.MERGED,
        fmt.RecordKind.TOMBSTONE: tbl.State.TOMBSTONE,
    }
    state = states.get(record.kind, tbl.State.LIVE)
    return tbl.TableEntry(
        fingerprint=record.fingerprint,
        offset=0 if found.is_implied else found.offset,
        target=0 if record.kind == fmt.RecordKind.TOMBSTONE else record.target,
        stored_length=record.stored_length,
        raw_length=record.raw_length,
        hint=record.hint,
        state=state,
        codec=record.codec,
    )


def recover(directory: ContainerDirectory, number: int) -> Recovered:
    """Cut a torn tail, and make the table complete. Raises DamagedContainer.

    Idempotent; interrupted anywhere, the next call finishes.
    """
    name = data_name(number)
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    with opened(os.open(name, flags, dir_fd=directory.fd)) as fd:
        header = header_of(fd, name.decode())
        if not directory.owns(header, number):
            raise DamagedContainer(f"{name.decode()}: this file is another container")
        _settle_switch(directory.fd, header, directory.disk)
        try:
            table, body = load_packed_table(directory.fd, header)
        except DamagedTable:
            return _rebuild(directory, fd, header)
        return _recover_tail(directory, fd, header, table, body)


def _settle_switch(dir_fd: int, header: fmt.FileHeader, disk: Disk) -> None:
    """Finish, or undo, the replacement of a container and its table by new files.

    A temporary table counts only where the container is of its generation and the table is not:
    a stale temporary table would miss later records.
    """
    number = header.container
    table = table_name(number)
    if is_there(dir_fd, table + NEW):
        if not _is_table_of(dir_fd, table, header) and _is_table_of(dir_fd, table + NEW, header):
            disk.rename(dir_fd, table + NEW, dir_fd, table)
            disk.sync_dir(dir_fd)
            reach(_SWITCHED)
        else:
            disk.unlink(dir_fd, table + NEW)
    if is_there(dir_fd, data_name(number) + NEW):
        disk.unlink(dir_fd, data_name(number) + NEW)


def _is_table_of(dir_fd: int, name: bytes, header: fmt.FileHeader) -> bool:
    found = table_header_at(dir_fd, name)
    return found is not None and tbl.belongs(found, header)


def is_unfinished(dir_fd: int, number: int) -> bool:
    """Whether a crash interrupted the creation of a container, so that it never held a record.

    A container gets its first record only after its header, its table and both names are durable.
    So it was never finished where it has no valid table and no room for a record, or where a valid
    table says that none was ever synced and yet there is no valid header.
    """
    with opened(open_to_read(dir_fd, data_name(number))) as fd:
        is_empty = os.fstat(fd).st_size <= fmt.FILE_HEADER_BYTES
        head = read_readable(fd, fmt.FILE_HEADER_BYTES, 0)
    mark = table_header_at(dir_fd, table_name(number))
    if mark is None:
        return is_empty
    try:
        fmt.decode_file_header(head, "the container")
    except DamagedContainer:
        return mark.container == number and mark.synced_count == 0
    return False


def recover_or_discard(directory: ContainerDirectory, number: int) -> Recovered | None:
    """As :func:`recover`; None where a crash had interrupted the making of the container, which is
    removed then. Raises DamagedContainer where it cannot be opened: scrub deals with that.
    """
    dir_fd, disk = directory.fd, directory.disk
    try:
        return recover(directory, number)
    except DamagedContainer:
        if not is_unfinished(dir_fd, number):
            raise
    with suppress(FileNotFoundError):
        disk.unlink(dir_fd, table_name(number))
    disk.unlink(dir_fd, data_name(number))
    disk.sync_dir(dir_fd)
    return None


def recover_sound(directory: ContainerDirectory) -> Iterator[Recovered]:
    """All containers of a directory that can be opened, ascending, each brought into a known state.

    The others are left for scrub. A container that a neighbour appends to is left as it is, and
    seen as it was before.
    """
    for number in directory.numbers():
        try:
            with directory.neighbours.turn():
                state = seen_of_theirs(directory, number) or recover_or_discard(directory, number)
        except DamagedContainer:
            continue
        except FileNotFoundError:
            if is_there(directory.fd, data_name(number)):
                raise
            continue  # a neighbour has just removed it: it was empty
        if state is not None:
            yield state


def seen_of_theirs(directory: ContainerDirectory, number: int) -> Recovered | None:
    """The records that a container had before a neighbour began to append to it; None where it is
    no neighbour's. Needs a turn. Raises DamagedContainer where the table does not tell of them."""
    count = directory.neighbours.theirs(directory.kind, number)
    if count is None:
        return None
    header = directory.header(number)
    where = directory.where(number)
    try:
        body = load_packed_table(directory.fd, header)[1]
    except DamagedTable as error:
        raise DamagedContainer(f"{where}: {error}") from error
    known = PackedEntries.checked(body[: count * tbl.ENTRY_BYTES], fmt.seed_of(header))
    if known is None or len(known) != count:
        raise DamagedContainer(f"{where}: its table is damaged; run `dedupd run scrub`")
    end = max((one.offset + fmt.record_size(one.stored_length) for one in known[-1:]), default=0)
    return Recovered(header, end, known, appendable=False, cut_bytes=0, is_theirs=True)


def _recover_tail(
    directory: ContainerDirectory,
    fd: int,
    header: fmt.FileHeader,
    table: tbl.TableHeader,
    body: bytes,
) -> Recovered:
    """Keep intact records after the synced mark, cut the rest; fill in lost entries before it."""
    size = os.fstat(fd).st_size
    if size < table.synced_bytes:
        raise DamagedContainer(
            f"{data_name(header.container).decode()}: {table.synced_bytes - size} bytes are missing"
            " at its end; run `dedupd run scrub`"
        )
    count = table.synced_count
    known = PackedEntries.checked(body[: count * tbl.ENTRY_BYTES], fmt.seed_of(header))
    is_whole = known is not None and len(known) == count
    if is_whole and size == table.synced_bytes and len(body) // tbl.ENTRY_BYTES == count:
        assert known is not None
        reconciled = min(table.reconciled, count)
        return Recovered(header, size, known, _may_grow(known, size), 0, reconciled)
    _settle_pages(fd, directory.disk)
    if is_whole:
        assert known is not None
        kept, reconciled = list(known), min(table.reconciled, count)
    else:
        entries = UncheckedEntries(body, fmt.seed_of(header))
        kept = completed(directory, fd, header, table, entries)
        reconciled = 0  # a scan does not tell the state of a record
    end = table.synced_bytes
    _must_be_readable(fd, header, end, size)
    for item in scan(fd, fmt.seed_of(header), end, size):
        if isinstance(item, Gap) or not payload_is_intact(fd, item):
            break
        if item.record.ordinal != len(kept):
            break
        kept += [entry_of(item)] * len(item.ordinals())
        end = item.end
    if end < size:
        directory.disk.truncate(fd, end)
        directory.disk.sync_file(fd)
    reach(_CUT)
    mark = replace(table, synced_bytes=end, synced_count=len(kept), reconciled=reconciled)
    packed = directory.write_table(header, mark, kept)
    return Recovered(header, end, packed, _may_grow(kept, end), size - end, reconciled)


def completed(
    directory: ContainerDirectory,
    fd: int,
    header: fmt.FileHeader,
    table: tbl.TableHeader,
    entries: Sequence[tbl.TableEntry | None],
) -> list[tbl.TableEntry]:
    """The entries below the mark, those that the table lacks from the container.

    The others stay: they know of states that no record tells of.
    """
    said = list(entries[: table.synced_count])
    known = [entry for entry in said if entry is not None]
    if len(known) == table.synced_count:
        return known
    scanned = _entries_below(directory, fd, header, table.synced_bytes, table.synced_count)
    said += [None] * (len(scanned) - len(said))
    return [own or found for own, found in zip(said, scanned, strict=True)]


def _rebuild(directory: ContainerDirectory, fd: int, header: fmt.FileHeader) -> Recovered:
    """Build the table from the container alone. Nothing is cut: any record may be referenced."""
    _settle_pages(fd, directory.disk)
    size = os.fstat(fd).st_size
    entries = _entries_below(directory, fd, header, size, 0)
    if not _may_grow(entries, size):
        known = [entry.offset for entry in entries]
        _must_be_readable(fd, header, max(known, default=0), size)
    mark = tbl.TableHeader.of(header, size, len(entries))
    packed = directory.write_table(header, mark, entries)
    return Recovered(header, size, packed, _may_grow(entries, size), 0)


def _must_be_readable(fd: int, header: fmt.FileHeader, start: int, end: int) -> None:
    """Raises DamagedContainer where the disk cannot read the end of a container: it may read it
    another time, while records that were cut, or not counted, would be gone."""
    if not is_readable(fd, start, end):
        raise DamagedContainer(
            f"{data_name(header.container).decode()}: the disk cannot read its end; run"
            " `dedupd run scrub`"
        )


def _settle_pages(fd: int, disk: Disk) -> None:
    """Make sure that later reads come from the disk, not from the page cache.

    After a failed write the kernel keeps the page, calls it clean, and reports the next sync as
    done. By such a page, bytes would count as stored that no disk has.
    """
    disk.sync_file(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def _entries_below(
    directory: ContainerDirectory, fd: int, header: fmt.FileHeader, end: int, count_min: int
) -> list[tbl.TableEntry]:
    """The entries that the records below ``end`` imply, by ordinal; at least ``count_min``.

    A record whose bytes have changed is quarantined: a file that is still whole would lose its own
    bytes by becoming a duplicate of it. A record inside a damaged one is proved by its fingerprint,
    and takes the place of no other bytes: users choose what lies in payloads.
    """
    entries = [LOST] * count_min
    for item, is_intact in _scan_all(directory, fd, header, end):
        if item.record.ordinal > _ordinal_max(header, item.offset):
            continue
        ordinals = item.ordinals()
        entries += [LOST] * (ordinals.stop - len(entries))
        known = entries[ordinals.start]
        if item.is_inside and not (
            _may_replace(known, item.record) and is_proved(fd, item, directory.bases)
        ):
            continue
        entry = entry_of(item)
        if known != LOST and not is_intact:
            continue  # a write that went astray: the record itself lies before it
        if not is_intact:
            entry = entry._replace(state=tbl.State.QUARANTINED)
        entries[ordinals.start : ordinals.stop] = [entry] * len(ordinals)
    return entries


def _may_replace(known: tbl.TableEntry, record: fmt.Record) -> bool:
    """Whether a proved record may stand for an ordinal: nothing else does, or the same bytes do,
    and are damaged there."""
    is_damaged = known.state == tbl.State.QUARANTINED
    return known == LOST or (is_damaged and known.fingerprint == record.fingerprint)


def _scan_all(
    directory: ContainerDirectory, fd: int, header: fmt.FileHeader, end: int
) -> Iterator[tuple[ScannedRecord, bool]]:
    """All records below ``end``, and whether each is intact; last those inside damaged ones."""
    seed = fmt.seed_of(header)
    damaged: list[ScannedRecord] = []
    items = scan(fd, seed, fmt.FILE_HEADER_BYTES, end)
    for item in believed(fd, header, items, directory.bases):
        if isinstance(item, ScannedRecord):
            is_intact = payload_is_intact(fd, item)
            # What was punched is most likely garbage, and there may be many of that.
            is_punched = has_hole(fd, item.offset, item.record.stored_length)
            damaged += [] if is_intact or is_punched else [item]
            yield item, is_intact
    met: set[int] = set()
    while damaged:
        outer = damaged.pop()
        stop = outer.offset + fmt.record_size(outer.record.stored_length)
        for item in scan_inside(fd, seed, outer.offset, stop, end):
            if item.offset not in met:
                met.add(item.offset)
                is_intact = payload_is_intact(fd, item)
                damaged += [] if is_intact else [item]
                yield item, is_intact


def _ordinal_max(header: fmt.FileHeader, offset: int) -> int:
    """The highest ordinal that a record at ``offset`` can have; one beyond it is forged.

    Before the first compaction, every record before it still takes its place.
    """
    if header.generation == 1:
        return offset // fmt.RECORD_HEADER_BYTES
    return fmt.ORDINALS_MAX - 1


def _may_grow(entries: Sequence[tbl.TableEntry], end: int) -> bool:
    """Whether a container ends with a known record. Else a record may be lost after the last one
    that was found, and its ordinal must not be given out again."""
    if not entries:
        return end == fmt.FILE_HEADER_BYTES
    return entries[-1].offset + fmt.record_size(entries[-1].stored_length) == end
