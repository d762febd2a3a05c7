"""Records that a writer has appended and that nothing refers to yet: they can be taken back."""

import threading
from dataclasses import dataclass

from dedupd_core.store.container.cutting import cut_back, remove_empty
from dedupd_core.store.container.directory import ContainerDirectory


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A place in the containers of a partition: behind so many records, and bytes, of one.

    All zeros before the first container."""

    number: int = 0
    records: int = 0
    end: int = 0


BEGINNING = Position()


class UnkeptRecords:
    """From where on, in each container, a writer's records are needed by nothing.

    May be used from several threads.
    """

    def __init__(self) -> None:
        self.cut_bytes = 0
        self._start: dict[int, Position] = {}
        self._lock = threading.Lock()

    def note(self, end: Position) -> None:
        """Take note that a record is about to be appended at the end of a container."""
        with self._lock:
            self._start.setdefault(end.number, end)

    def keep(self, to: Position | None) -> None:
        """Files, or an index, may refer to the records before ``to`` from here on; None stands for
        all. Later ones of other partitions have been kept already."""
        with self._lock:
            for number, start in list(self._start.items()):
                if to is None or number < to.number:
                    del self._start[number]
                elif number == to.number:
                    self._start[number] = max(start, to)

    def cut_back(
        self, directory: ContainerDirectory, behind: Position = BEGINNING
    ) -> dict[int, Position]:
        """Take those behind a position back; returns where each container ends now.

        Nothing may be on its way. Where not all can be cut, for want of space, the rest is garbage
        for the next gc. Needs the job lock. Raises Damaged, OSError.
        """
        ends: dict[int, Position] = {}
        with self._lock:
            for number, start in sorted(self._start.items()):
                if number < behind.number:
                    continue
                end = max(start, behind) if number == behind.number else start
                cut_bytes, at, records = cut_back(directory, number, end.end, end.records)
                self.cut_bytes += cut_bytes
                ends[number] = Position(number, records, at)
        return ends

    def remove_emptied(self, directory: ContainerDirectory) -> None:
        """Remove containers that were made for these records, after they were cut back."""
        with self._lock:
            for number, start in sorted(self._start.items()):
                if not start.records:
                    remove_empty(directory, number)
