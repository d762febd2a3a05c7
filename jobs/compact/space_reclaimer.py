"""Frees space in containers without a copy: deletes dead containers, and punches dead payloads.

It needs no free space, and writes very little. gc does it at its end, and compact before it copies
the remainder. Both, and refine, keep a container open until it is deleted.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from dedupd_core.errors import (
    DamagedChunk,
    DamagedContainer,
    DamagedTable,
    NoSpace,
    ServiceUnreachable,
)
from dedupd_core.format import table as tbl
from dedupd_core.format.container import COPIES_OF, Kind, seed_of
from dedupd_core.format.ids import show_id
from dedupd_core.format.table_columns import UncheckedEntries
from dedupd_core.store.container.compaction import remove
from dedupd_core.store.container.container import data_name
from dedupd_core.store.container.directory import ContainerDirectory, OpenContainers
from dedupd_core.store.container.files import last_number
from dedupd_core.store.container.punching import DeadPayload, allocated_bytes, dead_payloads, punch
from dedupd_core.store.container.recovery import recover_or_discard
from dedupd_core.store.container.table_file import Recovered
from dedupd_core.store.garbage import weigh
from dedupd_core.system.control_socket import ControlClient, socket_path
from dedupd_core.system.files import opened
from dedupd_core.volume.volume import Volume
from jobs.check.headers_seen import HeadersSeen
from jobs.frame.run import JobRun
from jobs.reconcile.forwarded_records import MergedBytes


class FreedSpace(Protocol):
    """Counts the result: ``removed`` containers, ``punched`` records, and the bytes of freed
    blocks."""

    removed: int
    punched: int
    freed_bytes: int


class SpaceReclaimer:
    """Processes the containers of a volume once. Needs the job lock; the volume may be mounted.

    This job must have brought every container into a known state before.
    """

    def __init__(self, volume: Volume, run: JobRun, report: FreedSpace) -> None:
        self._volume = volume
        self._run = run
        self._report = report
        self._is_durable = False
        self._seen = HeadersSeen(volume)

    def reclaim(self) -> None:
        """Process all containers. Raises Cancelled."""
        for kind in Kind:
            with self._volume.containers_to_empty(kind) as directory:
                phase = f"freeing space of {kind.name.lower()}"
                try:
                    for number in self._run.each(phase, directory.numbers()):
                        try:
                            self._reclaim_from(directory, number)
                        except (DamagedTable, NoSpace) as error:
                            self._run.findings.add(f"{kind.name.lower()}: {error}")
                finally:
                    self._seen.keep(directory)

    def _reclaim_from(self, directory: ContainerDirectory, number: int) -> None:
        try:
            state = recover_or_discard(directory, number)
        except DamagedContainer:
            return  # scrub must check it first
        if state is None:
            return
        weight = weigh(state.entries.data, seed_of(state.header), state.end)
        if weight.is_dead and number < last_number(directory.fd):
            self._remove(directory, state)
            return
        is_seen = self._are_headers_seen(directory, state, weight.orphaned)
        payloads = dead_payloads(directory, state, is_seen=is_seen)
        payloads = self._spareable(directory, state, payloads)
        self._report.freed_bytes += punch(directory, state, payloads, self._run.safe_point)
        self._report.punched += len(payloads)

    def _are_headers_seen(
        self, directory: ContainerDirectory, state: Recovered, orphaned: int
    ) -> bool:
        """Return whether all records are at the places in the table. Records that were appended
        since the last check are checked here if they are fewer than the dead ones."""
        number = state.header.container
        entries = UncheckedEntries(state.entries.data, seed_of(state.header))
        seen = self._seen.count(directory, number, entries)
        if seen is None or len(entries) - seen > orphaned:
            return False
        return self._seen.look(directory, number, entries, self._run.safe_point)

    def _remove(self, directory: ContainerDirectory, state: Recovered) -> None:
        number = state.header.container
        with kept_open(directory, number) as old_fd:
            remove(directory, state)
            self._report.freed_bytes += allocated_bytes(os.fstat(old_fd))
            notify_readers(self._volume, directory.kind, number)
        self._report.removed += 1

    def _spareable(
        self, directory: ContainerDirectory, state: Recovered, payloads: list[DeadPayload]
    ) -> list[DeadPayload]:
        """Return the payloads that are not the last copy. The record that a merged one was
        redirected to may be lost; then readers and scrub use the merged record's own bytes."""
        entries = state.entries
        ordinals = [payload.ordinal for payload in payloads]
        merged = [at for at in ordinals if entries[at].state == tbl.State.MERGED]
        if not merged:
            return payloads
        if not self._is_durable:
            # After a kill, the target of a merge and its entry may exist only in memory.
            self._volume.sync()
            self._is_durable = True
        algorithm = self._volume.parameters.fingerprint
        bytes_of = MergedBytes(self._run, OpenContainers(directory), algorithm)
        spareable = bytes_of.spareable(state, merged)
        needed = set(merged) - spareable
        return [payload for payload in payloads if payload.ordinal not in needed]


def notify_readers(volume: Volume, kind: Kind, number: int) -> None:
    """Make mount processes close the old files of a container, which keep its space allocated. They
    continue to read from the new files automatically."""
    if kind not in COPIES_OF:
        return  # copies are opened for each read
    for member in (volume, *volume.fellows):
        member.records(kind).drop([number])
    for client in _mounts(volume):
        with client:
            try:
                client.call("reopen", kind=int(kind), containers=[number])
            except ServiceUnreachable:
                continue  # it is unmounting, and closes all files


def _mounts(volume: Volume) -> Iterator[ControlClient]:
    """Yield connections to the mounts of a volume, and of all other members of its store."""
    own = volume.mount_client()
    if own is not None:
        yield own
    for uuid in volume.sharing.members().keys() - {volume.parameters.uuid}:
        with suppress(ServiceUnreachable):
            yield ControlClient(socket_path(uuid))


@contextmanager
def kept_open(directory: ContainerDirectory, number: int) -> Iterator[int]:
    """Keep the old file of a container open. The last process to close it frees its blocks, which
    is slow; so the job should be the last, not the mount."""
    with opened(directory.open_data(number)) as fd:
        yield fd


def keep_last_bytes(
    volume: Volume, run: JobRun, directory: ContainerDirectory, state: Recovered
) -> None:
    """Raise DamagedChunk if a merged record has the only remaining bytes: its target was lost, so
    readers and scrub use the merged record's own bytes."""
    number, algorithm = state.header.container, volume.parameters.fingerprint
    merged = MergedBytes(run, OpenContainers(directory), algorithm)
    found = merged.first_needed(state)
    if found is not None:
        needed, lost = found
        raise DamagedChunk(
            f"{data_name(number).decode()}: skipped: the record that {show_id(needed)} was merged"
            " into is damaged; run `dedupd run scrub`",
            lost,
        )
