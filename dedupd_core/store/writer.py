"""Appending records: ids in order, bytes in order, one sync for many of them."""

import mmap
import os
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import NamedTuple

from dedupd_core import native
from dedupd_core.errors import NoSpace
from dedupd_core.failpoint import define, reach
from dedupd_core.format import container as fmt
from dedupd_core.format import table as tbl
from dedupd_core.format.domain import FIRST, PartitionKey
from dedupd_core.format.ids import container_of, make_id, ordinal_of
from dedupd_core.store.container.container import data_name, table_name
from dedupd_core.store.container.directory import ContainerDirectory
from dedupd_core.store.container.files import last_number
from dedupd_core.store.container.record_states import revive
from dedupd_core.store.container.recovery import entry_of, recover, recover_sound
from dedupd_core.store.container.scan import ScannedRecord
from dedupd_core.store.container.table_file import Recovered, map_of, table_header
from dedupd_core.store.growing import OpenContainer, SyncPoint
from dedupd_core.store.unkept_records import BEGINNING, Position, UnkeptRecords
from dedupd_core.system.files import is_readable

_CREATED = define("writer.container-created", "a new container exists, not yet its table")
_READY = define("writer.container-ready", "a new container and its table are durable, and empty")
_APPENDED = define("writer.appended", "records are written, not yet their table entries")
_ENTERED = define("writer.entered", "records and table entries are written, not synced")
_SYNCED = define("writer.synced", "records are durable, the mark in the table is not yet moved")
_MARKED = define("writer.marked", "records are durable and the mark covers them")


REOPEN_ORDINALS_MAX = 1 << 16
"""A container that was compacted and has more does not grow on: its table keeps an entry for each
that was ever in it, 64 bytes, while the space of collected records comes back."""


class NewRecords(NamedTuple):
    """Columns for the headers of records to be appended, beside the payloads.

    ``fingerprints`` are 32 bytes each, ``raw_lengths`` and ``hints`` u32.
    """

    fingerprints: bytes
    raw_lengths: "bytes | array[int]"
    hints: "bytes | array[int]"


class ContainerWriter:
    """Appends to the containers of one kind, guarded by the volume's lock, and beside neighbours
    to those that are not theirs.

    It appends to those of one partition at a time, which has one container that grows.

    ``reserve`` may run ahead of ``append``, so that ids are known while payloads are still being
    compressed; ``append`` must follow in the order of the reservations.
    """

    def __init__(
        self,
        directory: ContainerDirectory,
        *,
        partition: PartitionKey = FIRST,
        container_bytes_max: int = fmt.CONTAINER_BYTES_MAX,
        given_number: int = 0,
    ) -> None:
        """Takes over ``directory``, whose room is asked for before each append. ``given_number``:
        the highest that a container is known to have had, whether there is anything left of that
        or not.
        """
        self._directory = directory
        self._disk = directory.disk
        self._partition = partition
        self._bytes_max = container_bytes_max
        self._current: OpenContainer | None = None
        self._unsynced: list[OpenContainer] = []
        self.last_number = self._given_number = given_number
        """The highest number that was given out, as far as that is known."""
        self._growing: dict[PartitionKey, tuple[int, int]] = {}
        self.position = BEGINNING
        """Behind the record that was appended last in the partition in use."""
        self._unkept = UnkeptRecords()
        self.appended_bytes = 0

    def recover(self, visit: Callable[[Recovered], None]) -> None:
        """Put every container in order and go on in the last one where that is safe.

        ``visit`` is shown each container once: the entries of all of them need not fit into memory
        together. Containers that cannot be opened at all are left for scrub, unless a crash
        interrupted their creation. Must be called first.
        """
        self.last_number = max(self._given_number, last_number(self._directory.fd))
        for state in recover_sound(self._directory):
            visit(state)
            if state.is_theirs:
                continue
            self._growing.pop(state.header.partition_key, None)
            if self._may_reopen(state):
                last = state.header.container, len(state.entries)
                self._growing[state.header.partition_key] = last
        self._reopen()

    def use_partition(self, partition: PartitionKey) -> None:
        """Append to containers of this partition from here on. Nothing may be reserved."""
        current = self._current
        if partition == self._partition:
            return
        if current is not None:
            assert current.count == current.reserved_count
            self._growing[self._partition] = current.number, current.count
            if current not in self._unsynced:
                self._unsynced.append(current)  # so that the next sync closes it
        self._partition, self._current = partition, None
        self._reopen()

    def _may_reopen(self, state: Recovered) -> bool:
        header = state.header
        return (
            state.appendable
            and state.end < self._bytes_max
            and (header.generation == 1 or len(state.entries) <= REOPEN_ORDINALS_MAX)
        )

    def _reopen(self) -> None:
        """Go on in the last container of the partition, where that is safe."""
        self.position = BEGINNING
        number, count = self._growing.pop(self._partition, (0, 0))
        if not number:
            return
        for target in self._unsynced:
            if target.number == number:
                self._current = target
                self.position = target.position
                return
        with self._directory.neighbours.turn():
            self._reopen_at_rest(number, count)

    def _reopen_at_rest(self, number: int, count: int) -> None:
        """Go on in a container that had so many records when it was seen, unless a neighbour has
        done so. Needs a turn."""
        kind, neighbours = self._directory.kind, self._directory.neighbours
        if neighbours.theirs(kind, number) is not None:
            return
        state = recover(self._directory, number)
        if len(state.entries) != count:
            return
        header = state.header
        data_fd = self._disk.open_write(self._directory.fd, data_name(number))
        if not is_readable(data_fd, state.end & -mmap.PAGESIZE, state.end):
            # Appended bytes would share a page with bytes that the disk cannot read.
            os.close(data_fd)
            return
        neighbours.claim(kind, number, count)
        table_fd = self._disk.open_write(self._directory.fd, table_name(number))
        table = table_header(table_fd, table_name(number), header)
        self._current = OpenContainer(
            number,
            data_fd,
            table_fd,
            fmt.seed_of(header),
            header,
            state.end,
            len(state.entries),
            len(state.entries),
            state.end,
            map_of(table_fd, table),
            table.map_lines,
        )
        self.position = self._current.position

    def reserve(self, count: int, raw_bytes: int) -> int:
        """The id of the first of ``count`` consecutive records of ``raw_bytes`` in all."""
        need = raw_bytes + count * (fmt.RECORD_HEADER_BYTES + fmt.ALIGN_BYTES)
        current = self._current
        if current is None or (
            current.reserved_count > 0 and current.reserved_bytes + need > self._bytes_max
        ):
            current = self._start_container()
        first = make_id(current.number, current.reserved_count)
        current.reserved_count += count
        current.reserved_bytes += need
        return first

    def begin_container(self) -> None:
        """Append to a new container from here on. Nothing may be reserved. Raises NoSpace."""
        current = self._current
        assert current is None or current.count == current.reserved_count
        self._start_container()

    def cancel(self, first_id: int) -> None:
        """Give the last reservation back, which was not appended for want of space."""
        target = self._reserved(first_id)
        assert target is self._current
        target.reserved_count, target.reserved_bytes = target.count, target.end

    def has(self, record_id: int) -> bool:
        """Whether a record that an index names was appended, and not only reserved."""
        return all(
            target is None
            or target.number != container_of(record_id)
            or ordinal_of(record_id) < target.count
            for target in (*self._unsynced, self._current)
        )

    def _start_container(self) -> OpenContainer:
        with self._directory.neighbours.turn():
            opened = self._made_container()
        reach(_READY)
        self._unkept.note(opened.position)
        if self._current is not None and self._current not in self._unsynced:
            self._unsynced.append(self._current)
        self._current = opened
        self._unsynced.append(opened)
        return opened

    def _made_container(self) -> OpenContainer:
        """A new container, durable, and its table. Needs a turn: neighbours take numbers, too."""
        number = max(self.last_number, last_number(self._directory.fd)) + 1
        kind, volume_id = self._directory.kind, self._directory.volume_id
        header = fmt.FileHeader(
            *(kind, number, 1, self._partition.number, volume_id, time.time_ns()),
            seed=self._directory.new_seed(number, 1),
            domain=self._partition.domain,
        )
        need_bytes = fmt.FILE_HEADER_BYTES + tbl.HEADER_BYTES
        where = self._directory.where(number)
        self._directory.room.require(need_bytes, f"a new {where}", files=2)
        with ExitStack() as on_failure:
            data_fd = self._disk.create(self._directory.fd, data_name(number))
            on_failure.callback(os.close, data_fd)
            self.last_number = number
            self._disk.write_at(data_fd, [fmt.encode_file_header(header)], 0)
            reach(_CREATED)
            table_fd = self._disk.create(self._directory.fd, table_name(number))
            on_failure.callback(os.close, table_fd)
            seed = fmt.seed_of(header)
            start = fmt.FILE_HEADER_BYTES
            opened = OpenContainer(number, data_fd, table_fd, seed, header, start, 0, 0, start)
            self._disk.write_at(table_fd, [tbl.encode_header(opened.mark())], 0)
            # So that recovery can tell a container that holds something from one that never did.
            self._disk.sync_data(data_fd)
            self._disk.sync_data(table_fd)
            self._disk.sync_dir(self._directory.fd)
            self._directory.neighbours.claim(kind, number, 0)
            on_failure.pop_all()
        return opened

    def append(self, first_id: int, records: NewRecords, encoded: "native.codec.Encoded") -> int:
        """Write reserved records; returns their bytes in the container.

        Raises NoSpace with the container as it was before. Readers see the records at once.
        """
        target = self._reserved(first_id)
        raw_lengths = memoryview(records.raw_lengths).cast("B").cast("I")
        stored_lengths = memoryview(encoded.stored_lengths).cast("I")
        entries = native.store.seal(
            encoded,
            records.fingerprints,
            raw_lengths,
            records.hints,
            seed=target.seed,
            ordinal=target.count,
            offset=target.end,
        )
        return self._put(
            target,
            len(raw_lengths),
            memoryview(encoded),
            entries,
            sum(raw_lengths) - sum(stored_lengths),
        )

    def append_copies(
        self,
        first_id: int,
        records: Sequence[tuple[fmt.Record, bytes]],
        kind: fmt.RecordKind = fmt.RecordKind.COPY,
    ) -> int:
        """Write reserved records, each with its payload: by default those that repeat others, each
        its ``target``. Their own kind and ordinal do not matter. For the rest as :meth:`append`.
        """
        target = self._reserved(first_id)
        buffer = bytearray(sum(fmt.record_size(len(payload)) for _, payload in records))
        view, entries, at, saved = memoryview(buffer), bytearray(), 0, 0
        for number, (given, payload) in enumerate(records):
            record = replace(given, kind=kind, ordinal=target.count + number, collected=0)
            fmt.pack_record_into(view, at, record, target.seed)
            start = at + fmt.RECORD_HEADER_BYTES
            view[start : start + len(payload)] = payload
            entry = entry_of(ScannedRecord(target.end + at, record))
            entries += tbl.encode_entry(entry, target.seed)
            at += fmt.record_size(len(payload))
            saved += record.raw_length - record.stored_length
        return self._put(target, len(records), view, bytes(entries), saved)

    def _put(
        self, target: OpenContainer, count: int, data: memoryview, entries: bytes, saved_bytes: int
    ) -> int:
        """Write sealed records and their entries; ``saved_bytes`` were reserved and not needed."""
        table_offset = target.table_map.offset_below(target.count)
        need_bytes = len(data) + len(entries)
        where = self._directory.where(target.number)
        self._directory.room.require(need_bytes, f"new records of {where}")
        self._unkept.note(target.position)
        try:
            self._disk.write_out(target.data_fd, data, target.end)
            reach(_APPENDED)
            self._disk.write_at(target.table_fd, [entries], table_offset)
            reach(_ENTERED)
        except NoSpace:
            self._disk.truncate(target.data_fd, target.end)
            self._disk.truncate(target.table_fd, table_offset)
            raise
        size = len(data)
        target.end += size
        target.count += count
        target.reserved_bytes -= saved_bytes
        self.appended_bytes += size
        self.position = target.position
        if target not in self._unsynced:
            self._unsynced.append(target)
        return size

    def _reserved(self, first_id: int) -> OpenContainer:
        """The container that a reservation lies in, checked for order."""
        for candidate in (*self._unsynced, self._current):
            if candidate is not None and make_id(candidate.number, candidate.count) == first_id:
                assert ordinal_of(first_id) < candidate.reserved_count
                return candidate
        raise AssertionError(f"append of {first_id:#x} out of the order of reservations")

    def sync(self) -> None:
        """Make everything appended so far durable."""
        self.finish_sync(self.begin_sync())

    def begin_sync(self) -> SyncPoint:
        """Take note of all that is appended now, for :meth:`finish_sync` to make durable."""
        full = [t for t in self._unsynced if t is not self._current and t.count == t.reserved_count]
        marks = [(t, t.mark()) for t in self._unsynced]
        point = SyncPoint(marks, full)
        self._unsynced = [
            t for t in self._unsynced if t is not self._current and t.count < t.reserved_count
        ]
        return point

    def finish_sync(self, point: SyncPoint) -> None:
        """Make everything up to ``point`` durable. May run while another thread appends."""
        for target, _ in point.marks:
            self._disk.sync_data(target.data_fd)
        reach(_SYNCED)
        with self._directory.neighbours.turn():
            for target, mark in point.marks:
                # Asked for now: records revived since the mark was noted have left the set.
                current = replace(mark, reconciled=target.reconciled())
                self._disk.write_at(target.table_fd, [tbl.encode_header(current)], 0)
        for target in point.full:
            # Its table is made durable once, and never written again.
            self._disk.sync_data(target.table_fd)
            os.close(target.data_fd)
            os.close(target.table_fd)
        reach(_MARKED)

    def keep(self, to: Position | None = None) -> None:
        """Take note that files, or an index, may refer to the records before ``to`` from here on;
        None stands for all. May run while another thread appends.

        ``to`` is a former :attr:`position`, in the partition in use.
        """
        self._unkept.keep(to)

    def cut_back(self, behind: Position = BEGINNING) -> None:
        """Take the records behind a position back that were appended and not kept.

        From here on nothing may be appended. No sync may be on its way. Raises Damaged, OSError.
        """
        ends = self._unkept.cut_back(self._directory, behind)
        for target in (*self._unsynced, self._current):
            if target is not None and target.number in ends:
                end = ends[target.number]
                target.count, target.end = end.records, end.end
                target.reserved_count, target.reserved_bytes = end.records, end.end

    def remove_emptied(self) -> None:
        """Remove new containers that were cut back to nothing; the last call but :meth:`close`."""
        self._unkept.remove_emptied(self._directory)

    @property
    def cut_bytes(self) -> int:
        """How much was cut back."""
        return self._unkept.cut_bytes

    def revive(self, ids: Iterable[int]) -> None:
        """Make orphans live again, durably. May run while another thread appends.

        Raises Damaged where one of them is not an orphan any more.
        """
        by_container: dict[int, list[int]] = {}
        for one in ids:
            by_container.setdefault(container_of(one), []).append(ordinal_of(one))
        for number, ordinals in by_container.items():
            revive(self._directory, number, ordinals)

    def close(self) -> None:
        """Release the files. Does not sync: the next recovery may cut records that are not."""
        for target in {id(t): t for t in (*self._unsynced, self._current) if t}.values():
            os.close(target.data_fd)
            os.close(target.table_fd)
        self._unsynced.clear()
        self._current = None
        self._directory.close()
