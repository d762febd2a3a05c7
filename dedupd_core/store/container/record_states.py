"""Changing the states of records in redirection tables."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace

from dedupd_core.errors import DamagedTable
from dedupd_core.failpoint import define, reach
from dedupd_core.format import container as fmt
from dedupd_core.format import table as tbl
from dedupd_core.format.ids import container_of, ordinal_of
from dedupd_core.store.container.container import table_name
from dedupd_core.store.container.directory import ContainerDirectory
from dedupd_core.store.container.table_file import map_of, table_header
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import opened

_WRITTEN = define("states.written", "entries of a table are changed, not yet synced")
_DURABLE = define("states.durable", "changed entries of a table are durable")


def set_states(directory: ContainerDirectory, changes: Mapping[int, tbl.TableEntry]) -> None:
    """Put entries, by id, in place of those that the tables have, durably. Raises Damaged."""
    by_container: dict[int, dict[int, tbl.TableEntry]] = {}
    for record_id, entry in changes.items():
        by_container.setdefault(container_of(record_id), {})[ordinal_of(record_id)] = entry
    for number, entries in sorted(by_container.items()):
        set_entries(directory, directory.header(number), entries)


def set_entries(
    directory: ContainerDirectory, header: fmt.FileHeader, entries: Mapping[int, tbl.TableEntry]
) -> None:
    """Put ``entries`` (by ordinal) in place of those in the table of a container, durably.

    ``header`` is the container's. An entry is 64 bytes at a multiple of 64, so no power cut tears
    one; one that is damaged all the same is taken from the container by the next recovery. A crash
    may leave any part of the changes done. Needs the job lock. Raises DamagedTable, NoSpace.

    A record that becomes live was not compared with the reconciled set. So it leaves the set first,
    together with the records after it in the container.
    """
    if not entries:
        return
    disk = directory.disk
    with _opened_table(directory, header) as (fd, table):
        live = [at for at, entry in entries.items() if entry.state == tbl.State.LIVE]
        reconciled = min([table.reconciled, *live])
        if reconciled < table.reconciled:
            _set_reconciled(disk, fd, table, reconciled)
        _write_entries(disk, fd, table, entries)
        reach(_WRITTEN)
        disk.sync_data(fd)
    reach(_DURABLE)


def tell_punched(
    directory: ContainerDirectory, header: fmt.FileHeader, entries: Mapping[int, tbl.TableEntry]
) -> None:
    """As :func:`set_entries`, and have the table know that its container is punched once more.

    All of the table is durable then, also what a job before this one has left in memory. None of
    ``entries`` is live. Raises DamagedTable, NoSpace.
    """
    disk = directory.disk
    with _opened_table(directory, header) as (fd, table):
        told = replace(table, punches=header.punches + 1)
        disk.write_at(fd, [tbl.encode_header(told)], 0)
        _write_entries(disk, fd, table, entries)
        reach(_WRITTEN)
        disk.sync_data(fd)
    reach(_DURABLE)


def _write_entries(
    disk: Disk, fd: int, table: tbl.TableHeader, entries: Mapping[int, tbl.TableEntry]
) -> None:
    """Not synced. Raises DamagedTable where the table is shorter, or where a record that was
    collected, and has no entry, should be in another state."""
    name = table_name(table.container).decode()
    table_map = map_of(fd, table)
    placed: dict[int, tbl.TableEntry] = {}
    for ordinal, entry in entries.items():
        offset = table_map.offset(ordinal)
        if offset is not None:
            placed[offset] = entry
        elif entry.state != tbl.State.TOMBSTONE:
            raise DamagedTable(f"{name}: record {ordinal} was collected, and has no entry")
    if os.fstat(fd).st_size < max(placed, default=0) + tbl.ENTRY_BYTES:
        raise DamagedTable(f"{name}: the redirection table is too short")
    for offset, run in _runs(placed):
        body = b"".join(tbl.encode_entry(entry, table.seed) for entry in run)
        disk.write_at(fd, [body], offset)


def join_set(directory: ContainerDirectory, header: fmt.FileHeader, first: int, end: int) -> bool:
    """Let records [first, end) of a container join the reconciled set, durably.

    They do where those before them are in it, and those themselves are there; says whether it was
    so. Needs the job lock. Raises DamagedTable, NoSpace.
    """
    with _opened_table(directory, header) as (fd, table):
        if not first <= table.reconciled < end <= table.synced_count:
            return False
        _set_reconciled(directory.disk, fd, table, end)
    return True


def _set_reconciled(disk: Disk, fd: int, table: tbl.TableHeader, count: int) -> None:
    disk.write_at(fd, [tbl.encode_header(replace(table, reconciled=count))], 0)
    disk.sync_data(fd)


@contextmanager
def _opened_table(
    directory: ContainerDirectory, header: fmt.FileHeader
) -> Iterator[tuple[int, tbl.TableHeader]]:
    """The table of a container, open for writing in a turn, and its header. Raises DamagedTable."""
    name = table_name(header.container)
    with directory.neighbours.turn():
        try:
            fd = directory.disk.open_write(directory.fd, name)
        except FileNotFoundError:
            raise DamagedTable(f"{name.decode()}: the redirection table is missing") from None
        with opened(fd):
            yield fd, table_header(fd, name, header)


def revive(directory: ContainerDirectory, number: int, ordinals: Sequence[int]) -> None:
    """Make orphans of a container live again, durably, so that files may name them.

    Needs the job lock. Raises Damaged where an entry cannot be read, or is of no orphan.
    """
    with directory.neighbours.turn(), closing(directory.open(number)) as container:
        changes: dict[int, tbl.TableEntry] = {}
        for ordinal in ordinals:
            entry = container.entry(ordinal)
            if entry is None or entry.state not in tbl.USABLE:
                raise DamagedTable(
                    f"{table_name(number).decode()}: entry {ordinal} changed after the job"
                    " started; run the job again"
                )
            # What it leans on, if anything, only its header still says.
            base = container.describe_own(ordinal).base if entry.leans else 0
            changes[ordinal] = entry._replace(state=tbl.State.LIVE, target=base)
        set_entries(directory, container.header, changes)


def _runs(placed: Mapping[int, tbl.TableEntry]) -> Iterator[tuple[int, list[tbl.TableEntry]]]:
    """Entries by their offsets that lie side by side, each run with the offset of its first."""
    first, run = 0, list[tbl.TableEntry]()
    for offset in sorted(placed):
        if run and offset != first + len(run) * tbl.ENTRY_BYTES:
            yield first, run
            run = []
        if not run:
            first = offset
        run.append(placed[offset])
    if run:
        yield first, run
