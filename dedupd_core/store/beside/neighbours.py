"""Jobs that append to one store at the same time, each to containers of its own.

They divide the store by locks over ranges of one file, which end with the process that holds them:
one for each container that a job appends to, and one for a turn, the moment in which a job changes
what is not its own. The layout is in docs/design/format.md, "Shared stores".

What holds for each job:

* It appends to containers that it has claimed, and cuts back no others.
* Of a container that a neighbour has claimed it knows the records that were there before: these
  are durable, and nobody takes them back. What the neighbour has appended since, it may take back.
* A container without a claim is at rest, whatever has become of the job that made it.
* All other changes of the store are made in turns: a table's header and entries are read and
  written in one.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property

from dedupd_core.format.container import ORDINALS_MAX, Kind
from dedupd_core.system.files import lock_range, range_of_others, unlock_range

TURN, GATE, SAVED_INDEX = 0, 1, 2
"""Places in the file that stand for no container."""

_KIND_SHIFT, _NUMBER_SHIFT = 60, 28
_ALL = 1 << 63

assert ORDINALS_MAX < 1 << _NUMBER_SHIFT


class Neighbours:
    """Those of a job that is alone in its store."""

    is_alone = True
    """Whether nobody else makes containers while the job runs."""

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Change what may not be this job's own. Turns may be nested, and taken by any thread."""
        yield

    def claim(self, kind: Kind, number: int, records: int) -> None:
        """Append to a container from here on, which has so many records. Needs the turn in which
        it was seen that it is no neighbour's."""

    def theirs(self, kind: Kind, number: int) -> int | None:
        """How many records a container had when a neighbour claimed it; None where none has."""
        return None

    def claim_saved_index(self) -> bool:
        """Whether the files of the index are this job's from here on."""
        return True

    def release(self) -> None:
        """Give up all that was claimed."""

    def close(self) -> None:
        """Give up all."""


class LockedNeighbours(Neighbours):
    """Those of a job on a store that others may write to."""

    is_alone = False

    def __init__(self, open_file: Callable[[], int]) -> None:
        """``open_file``: opens the file of the locks, when the first one is asked for."""
        self._open_file = open_file
        self._thread_lock = threading.RLock()
        self._depth = 0
        self._own: set[int] = set()

    @cached_property
    def _fd(self) -> int:
        return self._open_file()

    @contextmanager
    def turn(self) -> Iterator[None]:
        with self._thread_lock:
            if self._depth == 0:
                lock_range(self._fd, TURN, 1, wait=True)
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if self._depth == 0:
                    unlock_range(self._fd, TURN, 1)

    def claim(self, kind: Kind, number: int, records: int) -> None:
        assert self._depth
        place = _place(kind, number)
        if place not in self._own:
            is_free = lock_range(self._fd, place, 1 + records, wait=False)
            assert is_free
            self._own.add(place)

    def theirs(self, kind: Kind, number: int) -> int | None:
        found = range_of_others(self._fd, _place(kind, number))
        return None if found is None else found[1] - 1

    def claim_saved_index(self) -> bool:
        return lock_range(self._fd, SAVED_INDEX, 1, wait=False)

    def release(self) -> None:
        if "_fd" in self.__dict__:
            unlock_range(self._fd, SAVED_INDEX, _ALL - 1 - SAVED_INDEX)
        self._own.clear()

    def close(self) -> None:
        if "_fd" in self.__dict__:
            os.close(self.__dict__.pop("_fd"))
        self._own.clear()


ALONE = Neighbours()


def _place(kind: Kind, number: int) -> int:
    """Where the claim of a container begins; it is one longer than the container had records."""
    return kind << _KIND_SHIFT | number << _NUMBER_SHIFT
