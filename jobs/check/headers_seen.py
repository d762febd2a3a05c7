"""The containers in which every record was seen where its entry says that it is.

gc punches the payloads of what is dead. Before that it reads the header of each, because after a
write that went astray another record may lie there, intact. Where all headers were seen and nothing
was written to the container since, no such write can have been one of ours, and a record of any
other container is of no use in this one: headers have the seed of theirs. What was appended since
is looked at alone: where that is in its place as well, it did not go astray.

A note is a digest of the places of the first records of a container, in their order, and of the
seed. It is of no account as soon as one of these was moved or entered otherwise, nor for a copy of
the container, which somebody else has written (docs/design/crash-safety.md). A job that writes a
record never notes it for that: only the disk tells where the record lies.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from dedupd_core import native
from dedupd_core.errors import Damaged
from dedupd_core.format.container import Kind
from dedupd_core.format.table_columns import UncheckedEntries
from dedupd_core.store.container.directory import ContainerDirectory
from dedupd_core.store.container.table_file import load_table, synced_count
from dedupd_core.system.files import opened
from dedupd_core.volume.hints import HintKey
from dedupd_core.volume.volume import Volume
from jobs.frame.run import JobRun

_PER_SAFE_POINT = 1024
"""Headers that are looked at without a pause: the work of some tens of milliseconds."""

_LOOKS = 32
"""Headers read side by side, as for the dead ones (dedupd_core/store/container/punching.py)."""

_LOOKS_BESIDE = 4
"""The same, in a job that is to leave the disk to users."""


class _Note(NamedTuple):
    """The first ``records`` of the file ``inode``, so many."""

    inode: int
    records: int
    digest: int


class HeadersSeen:
    """The notes of a store. Needs a lock of its jobs; where two jobs that append leave notes at
    once, some are lost."""

    def __init__(self, volume: Volume) -> None:
        self._hints = volume.store_hints
        self._known: dict[Kind, dict[int, _Note]] = {}
        self._changed = set[Kind]()

    def count(
        self, directory: ContainerDirectory, number: int, entries: UncheckedEntries
    ) -> int | None:
        """How many records, from the first one on, were seen where ``entries`` say. None where not
        all can be: one is in quarantine, or its entry damaged."""
        digest = native.store.places_digest(entries.data, entries.seed)
        if digest is None:
            return None
        noted = self._of(directory.kind).get(number)
        if noted is None or noted.inode != directory.stat(number).st_ino:
            return 0
        if len(entries) < noted.records:
            return 0  # some that were seen are gone
        if len(entries) > noted.records:
            digest = native.store.places_digest(entries[: noted.records].data, entries.seed)
        return noted.records if digest == noted.digest else 0

    def seems_to_have(self, directory: ContainerDirectory, number: int, count: int) -> bool:
        """Whether there is a note of so many records of a container, of whatever digest."""
        noted = self._of(directory.kind).get(number)
        return noted is not None and noted[:2] == (directory.stat(number).st_ino, count)

    def note(
        self,
        directory: ContainerDirectory,
        number: int,
        entries: UncheckedEntries,
        *,
        is_seen: bool,
    ) -> None:
        """All records of a container were looked at; ``is_seen``: and are where they should be."""
        digest = native.store.places_digest(entries.data, entries.seed) if is_seen else None
        noted = None
        if digest is not None:
            noted = _Note(directory.stat(number).st_ino, len(entries), digest)
        known = self._of(directory.kind)
        if known.get(number) != noted:
            self._changed.add(directory.kind)
            known.pop(number, None)
            if noted is not None:
                known[number] = noted

    def look(
        self,
        directory: ContainerDirectory,
        number: int,
        entries: UncheckedEntries,
        safe_point: Callable[[], None],
        looks: int = _LOOKS,
    ) -> bool:
        """Look on the disk at the records that were not seen yet, and note it; returns whether all
        are where ``entries`` say. The records must be durable. Raises Cancelled, OSError."""
        seen, count, seed = self.count(directory, number, entries), len(entries), entries.seed
        if seen is None:
            return False
        if seen == count:
            return True
        with opened(directory.open_data(number)) as fd:
            for first in range(seen, count, _PER_SAFE_POINT):
                safe_point()
                part = entries[first : first + _PER_SAFE_POINT].data
                if not native.store.headers_agree(fd, part, seed=seed, first=first, threads=looks):
                    return False
        self.note(directory, number, entries, is_seen=True)
        return True

    def keep(self, directory: ContainerDirectory) -> None:
        """Keep the notes of a kind, and none of containers that are gone."""
        kind = directory.kind
        known, there = self._of(kind), set(directory.numbers())
        if kind in self._changed or not known.keys() <= there:
            rows = [[number, *note] for number, note in known.items() if number in there]
            self._hints.put(HintKey.HEADERS_SEEN.of(kind.name.lower()), rows)
            self._changed.discard(kind)

    def _of(self, kind: Kind) -> dict[int, _Note]:
        if kind not in self._known:
            rows = self._hints.get(HintKey.HEADERS_SEEN.of(kind.name.lower()))
            whole = rows if isinstance(rows, list) else []
            self._known[kind] = {
                row[0]: _Note(*row[1:])
                for row in whole
                if isinstance(row, list)
                and [type(part) for part in row] == [int] * 4
                and row[2] >= 0
            }
        return self._known[kind]


def verify_new_headers(volume: Volume, run: JobRun) -> None:
    """Look at the records that nothing has looked at yet, after the work of a job, so that gc need
    not. Needs a lock of the store's jobs. What cannot be read is left to scrub. Raises Cancelled.
    """
    seen = HeadersSeen(volume)
    for kind in Kind:
        with volume.containers(kind) as directory:
            phase = f"checking new {kind.name.lower()}"
            try:
                for number in run.each(phase, directory.numbers()):
                    with suppress(Damaged, OSError):  # scrub says what is wrong
                        _verify_container(directory, number, seen, run)
            finally:
                seen.keep(directory)


def _verify_container(
    directory: ContainerDirectory, number: int, seen: HeadersSeen, run: JobRun
) -> None:
    if directory.neighbours.theirs(directory.kind, number) is not None:
        return
    header = directory.header(number)
    if seen.seems_to_have(directory, number, synced_count(directory.fd, header)):
        return  # else every table would be read after every job
    table, entries = load_table(directory.fd, header)
    # What is not durable may be taken back, and its ordinals given to others.
    durable = entries[: table.synced_count]
    seen.look(directory, number, durable, run.safe_point, _LOOKS_BESIDE)
