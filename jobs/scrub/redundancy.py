"""Second copies: missing ones are written, needless ones are given up."""

from collections.abc import Collection
from dataclasses import replace
from itertools import chain
from typing import Protocol

from dedupd_core.errors import Damaged
from dedupd_core.failpoint import define, reach
from dedupd_core.format import container as fmt
from dedupd_core.format import table as tbl
from dedupd_core.store.container.record_states import set_states
from dedupd_core.store.second_copies import GROUP_BYTES, all_copies, append_copies
from dedupd_core.store.writer import ContainerWriter
from dedupd_core.volume.volume import Volume
from jobs.check.record_census import RecordCensus
from jobs.frame.pace import Throttle
from jobs.frame.run import JobRun

_DROPPED = define("redundancy.dropped", "unneeded copies are deleted")
_COPIED = define("redundancy.copied", "a group of second copies is durable")


class CopiesCounted(Protocol):
    """Counts of second copies; the ``missing`` ones could not be written, for want of space."""

    copies_written: int
    copies_written_bytes: int
    copies_dropped: int
    copies_missing: int


class Redundancy:
    """Writes and gives up second copies of one kind."""

    def __init__(
        self,
        volume: Volume,
        run: JobRun,
        throttle: Throttle,
        kind: fmt.Kind,
        writer: ContainerWriter,
        report: CopiesCounted,
    ) -> None:
        """``writer`` is that of the copies, and has recovered."""
        self._run = run
        self._throttle = throttle
        self._records = volume.records(kind)
        self._writer = writer
        self._uuid = volume.space.volume_id
        self._kind = fmt.COPIES_OF[kind]
        self._directory = volume.containers(self._kind)
        self._report = report

    def close(self) -> None:
        self._directory.close()

    def update(
        self,
        known: RecordCensus,
        references_min: int,
        always: Collection[int] = (),
        *,
        is_complete: bool,
    ) -> None:
        """Copy every record that is there and is referred to at least so often, or is one of
        ``always``.

        A copy is given up where the record that it repeats has no reference left, or has another
        copy; not where that record is lost: the copy may be the only one. Nor without
        references unless these ``is_complete``: what could not be read may have some. Raises
        Cancelled.
        """
        have: set[int] = set()
        dropped: dict[int, tbl.TableEntry] = {}
        for copy in self._run.checked(all_copies(self._directory.fd, self._kind, self._uuid)):
            target = copy.entry.target
            is_needed = known.is_primary(target) and known.references(target) > 0
            is_needed |= not is_complete or known.is_lost(known.end_of(target))
            if is_needed and target not in have:
                have.add(target)
            else:
                dropped[copy.copy_id] = copy.entry._replace(state=tbl.State.TOMBSTONE)
        set_states(self._directory, dropped)
        self._report.copies_dropped += len(dropped)
        reach(_DROPPED)
        group: list[tuple[fmt.Record, bytes]] = []
        size = 0
        often = chain(sorted(always), known.often_referred(references_min))
        for record_id in self._run.checked(often):
            if record_id in have:
                continue
            have.add(record_id)
            try:
                record, payload = self._records.read_alone(record_id)
            except Damaged:
                continue  # for the repair, which comes first, or for a full scrub to find
            self._throttle.take(len(payload))
            group.append((replace(record, target=record_id), payload))
            size += len(payload)
            if size >= GROUP_BYTES:
                self._append(group)
                group, size = [], 0
                self._run.safe_point()
        self._append(group)

    def _append(self, group: list[tuple[fmt.Record, bytes]]) -> None:
        written = append_copies(self._writer, group)
        if written:
            self._report.copies_written += written
            self._report.copies_written_bytes += sum(len(payload) for _, payload in group)
            reach(_COPIED)
        else:
            self._report.copies_missing += len(group)
