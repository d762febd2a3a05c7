"""What containers can give back without a copy: dead ones go, dead payloads are punched.

It needs no free space, and writes next to nothing. gc does it at its end, and compact before it
copies what is left. Both, and refine, keep a container that goes open until it is gone.
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
    """Where it is counted: ``removed`` containers, ``punched`` records, and the bytes of the blocks
    that came back."""

    removed: int
    punched: int
    freed_bytes: int


class SpaceReclaimer:
    """One pass over the containers of a volume. Needs the job lock; the volume may be mounted.

    Every container must have been brought into a known state by this job.
    """

    def __init__(self, volume: Volume, run: JobRun, report: FreedSpace) -> None:
        self._volume = volume
        self._run = run
        self._report = report
        self._is_durable = False
        self._seen = HeadersSeen(volume)

    def reclaim(self) -> None:
        """Go through all containers. Raises Cancelled."""
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
            return  # scrub must look at it first
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
        """Whether all records are known to be where the table says. Those that were appended since
        that was seen are looked at here, if they are fewer than the dead ones."""
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
        """Those payloads that nobody needs as the last ones: the record that a merged one leads to
        may have been lost since, and readers and scrub use its own bytes."""
        entries = state.entries
        ordinals = [payload.ordinal for payload in payloads]
        merged = [at for at in ordinals if entries[at].state == tbl.State.MERGED]
        if not merged:
            return payloads
        if not self._is_durable:
            # What they were merged into, and its entry, may be in memory only after a kill.
            self._volume.sync()
            self._is_durable = True
        algorithm = self._volume.parameters.fingerprint
        bytes_of = MergedBytes(self._run, OpenContainers(directory), algorithm)
        spareable = bytes_of.spareable(state, merged)
        needed = set(merged) - spareable
        return [payload for payload in payloads if payload.ordinal not in needed]


def notify_readers(volume: Volume, kind: Kind, number: int) -> None:
    """Have the processes of mounts let go of the old files of a container: as long as they hold
    them, their space is not free. They read on from the new ones without being told."""
    if kind not in COPIES_OF:
        return  # copies are opened for each read
    for member in (volume, *volume.fellows):
        member.records(kind).drop([number])
    for client in _mounts(volume):
        with client:
            try:
                client.call("reopen", kind=int(kind), containers=[number])
            except ServiceUnreachable:
                continue  # it is being unmounted, and lets go of everything


def _mounts(volume: Volume) -> Iterator[ControlClient]:
    """Connections to the mounts of a volume, and of all others of its store."""
    own = volume.mount_client()
    if own is not None:
        yield own
    for uuid in volume.sharing.members().keys() - {volume.parameters.uuid}:
        with suppress(ServiceUnreachable):
            yield ControlClient(socket_path(uuid))


@contextmanager
def kept_open(directory: ContainerDirectory, number: int) -> Iterator[int]:
    """The old file of a container that goes: the last to close it frees its blocks, which takes
    long, so that is the job, and not the mount."""
    with opened(directory.open_data(number)) as fd:
        yield fd


def keep_last_bytes(
    volume: Volume, run: JobRun, directory: ContainerDirectory, state: Recovered
) -> None:
    """Raises DamagedChunk where a merged record has the only bytes left: the record that it
    leads to was lost since, and readers and scrub use its own."""
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
