"""Processes a merge log: redirects duplicate chunks to the chunk that stays.

The log is only a plan: a chunk is only redirected to a chunk whose bytes were just read and match
its fingerprint. So a log may be processed again, even after many later changes.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from dedupd_core.errors import Damaged
from dedupd_core.failpoint import define, reach
from dedupd_core.format import container as fmt
from dedupd_core.format import table as tbl
from dedupd_core.format.ids import container_of, ordinal_of, show_id
from dedupd_core.store.container.directory import OpenContainers
from dedupd_core.store.container.record_states import join_set, set_states
from dedupd_core.store.container.table_scan import RecordRange
from dedupd_core.store.merge_log import MergeLog
from dedupd_core.system.processes import cores
from dedupd_core.volume.volume import Volume
from jobs.frame.run import JobRun
from jobs.reconcile.forwarded_records import BytesCheck

_MERGED = define("reconcile.merged", "some chunks of the merge log lead to the remaining chunks")
_JOINED = define("reconcile.joined", "a round is merged, and its chunks are in the set")

CHUNKS_AT_ONCE = 64
"""Number of chunks to read between two safe points: half a second of a slow disk."""


@dataclass(slots=True)
class MergeResults:
    """The results of the pairs of a log.

    ``left`` counts chunks that were not merged, because the other chunk is ``damaged``, or differs
    from the log.
    """

    chunks: int = 0
    stored_bytes: int = 0
    raw_bytes: int = 0
    left: int = 0
    damaged: int = 0


class Merger:
    """Processes merge logs. Needs the job lock; the volume may be mounted."""

    def __init__(self, volume: Volume, run: JobRun, threads: int = 0) -> None:
        self._volume = volume
        self._run = run
        self._algorithm = volume.parameters.fingerprint
        self._directory = volume.containers(fmt.Kind.CHUNKS)
        self._containers = OpenContainers(self._directory)
        self._workers = ThreadPoolExecutor(threads or cores(), thread_name_prefix="check")
        self._left: dict[int, int] = {}
        self.merged = MergeResults()

    def close(self) -> None:
        self._workers.shutdown(wait=True, cancel_futures=True)
        self._directory.close()

    def carry_out(self, log: MergeLog) -> None:
        """Merge the pairs of a log. Raises Cancelled, NoSpace."""
        self._left.clear()
        self._run.update(phase="merging", done=0, total=log.header.pairs)
        for pairs in log.pairs():
            self._run.safe_point()
            self._merge(pairs)
            self._run.update(done=self._run.progress.done + len(pairs))

    def join_set(self, ranges: list[RecordRange]) -> list[RecordRange]:
        """Add compared records to the reconciled set, after their log was processed.

        A record that could not be merged is not added, nor are those after it in its container.
        Returns the ranges that were added.
        """
        joined = []
        for records in ranges:
            self._run.safe_point()
            end = min(records.end, self._left.get(records.container, records.end))
            if end > records.first and self._join(records.container, records.first, end):
                joined.append(records._replace(end=end))
        reach(_JOINED)
        return joined

    def _merge(self, pairs: list[tuple[int, int]]) -> None:
        """Redirect the first chunk of each pair to the second, after checks."""
        wanted = [self._turned(own, into) for own, into in pairs if self._are_equal(own, into)]
        intact = self._intact({into for _, into in wanted})
        changes: dict[int, tbl.TableEntry] = {}
        for own, into in wanted:
            entry = self._containers.entry(own)
            # Check again: an earlier pair may have merged the chunk that stays here.
            if into in intact and into not in changes and own not in changes and entry is not None:
                changes[own] = entry._replace(state=tbl.State.MERGED, target=into)
                self.merged.chunks += 1
                self.merged.stored_bytes += entry.stored_length
                self.merged.raw_bytes += entry.raw_length
        set_states(self._directory, changes)
        kept = {into for _, into in wanted if into in intact}
        for own, _ in pairs:
            if own not in changes and own not in kept and self._is_live(own):
                self.merged.left += 1
                number = container_of(own)
                self._left[number] = min(self._left.get(number, own), ordinal_of(own))
        reach(_MERGED)

    def _turned(self, own: int, into: int) -> tuple[int, int]:
        """Return the chunk of a pair to redirect, then its target. A chunk of a higher rank is
        redirected, because the other chunk may be a base. Then the other chunk replaces it in the
        reconciled set."""
        first, second = self._containers.entry(own), self._containers.entry(into)
        is_turned = first is not None and second is not None and second.rank > first.rank
        return (into, own) if is_turned else (own, into)

    def _is_live(self, record_id: int) -> bool:
        entry = self._containers.entry(record_id)
        return entry is None or entry.state == tbl.State.LIVE

    def _are_equal(self, own: int, into: int) -> bool:
        """Return whether both are live, and have equal domains and complete fingerprints."""
        first, second = self._containers.entry(own), self._containers.entry(into)
        return (
            own != into
            and self._domain(own) == self._domain(into)
            and first is not None
            and second is not None
            and first.state == second.state == tbl.State.LIVE
            and (first.fingerprint, first.raw_length) == (second.fingerprint, second.raw_length)
        )

    def _domain(self, record_id: int) -> bytes | None:
        container = self._containers.get(container_of(record_id))
        return None if container is None else container.header.domain

    def _intact(self, record_ids: set[int]) -> set[int]:
        """Return the records whose bytes match their fingerprint; report the others to scrub."""
        checks = []
        for record_id in sorted(record_ids):
            container = self._containers.get(container_of(record_id))
            entry = self._containers.entry(record_id)
            if container is not None and entry is not None:
                checks.append(BytesCheck(record_id, container, entry, self._algorithm))
        intact: set[int] = set()
        for first in range(0, len(checks), CHUNKS_AT_ONCE):
            self._run.safe_point()
            group = checks[first : first + CHUNKS_AT_ONCE]
            found = self._workers.map(BytesCheck.is_intact, group)
            intact |= {
                check.record_id for check, is_right in zip(group, found, strict=True) if is_right
            }
        for record_id in record_ids - intact:
            self.merged.damaged += 1
            self._volume.repairs.add(fmt.Kind.CHUNKS, record_id)
            self._run.findings.add(
                f"chunk {show_id(record_id)} is damaged; no chunk was merged into it; run `dedupd"
                " run scrub`"
            )
        return intact

    def _join(self, number: int, first: int, end: int) -> bool:
        try:
            header = self._directory.header(number)
            return join_set(self._directory, header, first, end)
        except (Damaged, OSError):
            return False  # missing, or quarantined by scrub: the rest is compared again
