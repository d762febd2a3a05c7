"""Finds merged records with the only remaining bytes: they are not garbage."""

from collections.abc import Iterable
from typing import NamedTuple

from dedupd_core import native
from dedupd_core.format import table as tbl
from dedupd_core.format.ids import container_of, make_id, ordinal_of
from dedupd_core.store.container.container import Container
from dedupd_core.store.container.directory import OpenContainers
from dedupd_core.store.container.table_file import Recovered
from dedupd_core.store.forwards import end_in
from jobs.frame.run import JobRun


class BytesCheck(NamedTuple):
    """A record whose bytes are to be read."""

    record_id: int
    container: Container
    entry: tbl.TableEntry
    algorithm: str

    def is_intact(self) -> bool:
        """Return whether the bytes exist, and have the fingerprint of the entry."""
        bases = self.container.bases
        return native.store.is_intact(
            self.container.fd,
            ordinal_of(self.record_id),
            tbl.encode_entry(self.entry, self.container.seed),
            seed=self.container.seed,
            algorithm=self.algorithm,
            bases=None if bases is None else bases.native,
        )


class MergedBytes:
    """Finds merged records of one kind whose own bytes are the only remaining ones."""

    def __init__(self, run: JobRun, containers: OpenContainers, algorithm: str) -> None:
        self._run = run
        self._containers = containers
        self._algorithm = algorithm

    def first_needed(self, state: Recovered) -> tuple[int, int] | None:
        """Return a merged record that still has its bytes, and its lost target, if there is one.
        Reads each of the other targets once. Raises Cancelled."""
        number = state.header.container
        merged = [
            (entry.target, make_id(number, ordinal), entry)
            for ordinal in state.entries.ordinals_in(tbl.State.MERGED)
            if (entry := state.entries[ordinal]).stored_length
        ]
        for target, own, entry in sorted(merged):  # in the order on disk
            self._run.safe_point()
            end = end_in(self._containers, target)
            if not self._is_given(entry, end) and self._is_intact(own, entry):
                return own, end
        return None

    def spareable(self, state: Recovered, ordinals: Iterable[int]) -> set[int]:
        """Return those of a container's merged records whose own bytes are no longer needed. Reads
        each of their targets once. Raises Cancelled."""
        found: set[int] = set()
        targets = sorted((state.entries[ordinal].target, ordinal) for ordinal in ordinals)
        for target, ordinal in targets:
            self._run.safe_point()
            if self._is_given(state.entries[ordinal], end_in(self._containers, target)):
                found.add(ordinal)
        return found

    def _is_given(self, merged: tbl.TableEntry, end: int) -> bool:
        """Return whether the final target has a merged record's bytes, or they are not needed."""
        entry = self._containers.entry(end)
        if entry is None:
            return False
        if entry.state in (tbl.State.ORPHANED, tbl.State.TOMBSTONE):
            return True  # an interrupted sweep has not reached the merged record
        is_same = (entry.fingerprint, entry.raw_length) == (merged.fingerprint, merged.raw_length)
        return entry.state == tbl.State.LIVE and is_same and self._is_intact(end, entry)

    def _is_intact(self, record_id: int, entry: tbl.TableEntry) -> bool:
        container = self._containers.get(container_of(record_id))
        return (
            container is not None
            and BytesCheck(record_id, container, entry, self._algorithm).is_intact()
        )
