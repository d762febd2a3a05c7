"""Listings of directories that survive changes, in bounded memory."""

import os
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise

from dedupd import native
from dedupd.units import MIB

PART_NAMES = 32
"""Names that are looked up per native call. The kernel takes some 200 in one reply; names that do
not fit were looked up in vain."""

PAGE_NAMES = 256
"""Names read for one reply where a listing is not held."""

NAMES_MAX = 4096
"""The longest listing that is held: reading it takes 5 ms, and it has a megabyte at most."""

LISTINGS_BYTES_MAX = 64 * MIB
USER_BYTES_MAX = 8 * MIB
"""All listings that are held, and those that one user has caused."""

SETTLED_NS = 20_000_000
"""Times of directories go by ticks of 10 ms at most: a directory that has not changed for two of
them before it is listed shows by its times whether it has changed since."""

CLOCK_OF_FILES = 5
"""``CLOCK_REALTIME_COARSE`` of Linux, from which the times of files come; Python lacks its name."""

Part = tuple[list[bytes], "array[int]"]


class Names:
    """Names of a directory in their order, and the position that follows each."""

    __slots__ = ("_ends", "_joined", "_positions")

    def __init__(self, names: Sequence[bytes], positions: bytes) -> None:
        self._joined = b"".join(names)
        self._ends = array("I", [0])
        for name in names:
            self._ends.append(self._ends[-1] + len(name))
        self._positions = array("q", positions)

    def __len__(self) -> int:
        return len(self._positions)

    @property
    def size_bytes(self) -> int:
        return len(self._joined) + 12 * len(self)

    def place_after(self, position: int, near: int) -> int | None:
        """The place behind a position of the listing; mostly it is not far after ``near``."""
        for place in (near, 0):
            with suppress(ValueError):
                return self._positions.index(position, place) + 1
        return None

    def parts(self, place: int) -> Iterator[Part]:
        for start in range(place, len(self), PART_NAMES):
            ends = self._ends[start : start + PART_NAMES + 1]
            names = [self._joined[first:end] for first, end in pairwise(ends)]
            yield names, self._positions[start : start + PART_NAMES]


class _Held:
    """A listing that is held for some handles. ``times`` are those of the directory before it was
    listed, or None where they do not show a change."""

    __slots__ = ("ino", "names", "times", "uid", "users")

    def __init__(self, names: Names, ino: int, times: tuple[int, int] | None, uid: int) -> None:
        self.names = names
        self.ino = ino
        self.times = times
        self.uid = uid
        self.users = 1


class HeldListings:
    """All listings that are held. Handles of one directory share one while nothing changes there.

    Used by the thread of the event loop.
    """

    def __init__(self) -> None:
        self._by_directory: dict[int, _Held] = {}
        self.used_bytes = 0
        self._of_user: dict[int, int] = {}

    def hold(self, fd: int, uid: int) -> _Held | Names:
        """The names of a directory as they are now: all, held until :meth:`let_go`; or some, from
        the first one on, where they are too many or too much is held. Raises OSError."""
        # The clock is read first: what changes after that gets another time.
        now_ns = time.clock_gettime_ns(CLOCK_OF_FILES)
        status = os.fstat(fd)
        times = status.st_mtime_ns, status.st_ctime_ns
        shared = self._by_directory.get(status.st_ino)
        if shared is not None and shared.times == times:
            shared.users += 1
            return shared
        names, positions = native.system.list_names(fd, 0, NAMES_MAX)
        found = Names(names, positions)
        if len(found) >= NAMES_MAX or not self._has_room(uid, found.size_bytes):
            return found
        is_settled = max(times) + SETTLED_NS < now_ns
        held = _Held(found, status.st_ino, times if is_settled else None, uid)
        self._count(held, found.size_bytes)
        if is_settled:
            self._by_directory[held.ino] = held
        return held

    def let_go(self, held: _Held) -> None:
        """One handle less; the last one lets the memory go."""
        held.users -= 1
        if held.users == 0:
            self._count(held, -held.names.size_bytes)
            if self._by_directory.get(held.ino) is held:
                del self._by_directory[held.ino]

    def _has_room(self, uid: int, size_bytes: int) -> bool:
        of_user = self._of_user.get(uid, 0)
        return (
            self.used_bytes + size_bytes <= LISTINGS_BYTES_MAX
            and of_user + size_bytes <= USER_BYTES_MAX
        )

    def _count(self, held: _Held, size_bytes: int) -> None:
        self.used_bytes += size_bytes
        of_user = self._of_user.get(held.uid, 0) + size_bytes
        if of_user:
            self._of_user[held.uid] = of_user
        else:
            del self._of_user[held.uid]


class DirectoryListing:
    """The names of a directory as they were when the listing began, or was last rewound.

    So no name is reported twice or passed over, whatever is made or removed meanwhile; new names
    show after a rewind, as POSIX has it. Where a listing is not held, because it is long or much is
    held already, each part is read when it is asked for, and the file system below sees to that:
    then names that are made or removed meanwhile may show or not.

    Offsets are those of the file system below: an NFS server opens a directory again for each part
    of a listing, and goes on from the last offset.
    """

    __slots__ = ("_held", "_listings", "_place", "fd", "uid")

    def __init__(self, fd: int, uid: int, listings: HeldListings) -> None:
        """``fd`` (taken over) is a directory open for reading, by the user ``uid``."""
        self.fd = fd
        self.uid = uid
        self._listings = listings
        self._held: _Held | None = None
        self._place = 0

    def names(self, start: int) -> Iterator[Part]:
        """Names from the offset ``start`` on, in parts, with the offset that follows each: all, or
        as many as a reply takes.

        Raises OSError.
        """
        if start == 0:
            yield from self._from_the_first()
            return
        if self._held is not None:
            place = self._held.names.place_after(start, self._place)
            if place is not None:
                self._place = place
                yield from self._held.names.parts(place)
                return
        yield from Names(*native.system.list_names(self.fd, start, PAGE_NAMES)).parts(0)

    def _from_the_first(self) -> Iterator[Part]:
        self._let_go()
        found = self._listings.hold(self.fd, self.uid)
        if isinstance(found, _Held):
            self._held = found
            found = found.names
        yield from found.parts(0)

    def _let_go(self) -> None:
        if self._held is not None:
            self._listings.let_go(self._held)
        self._held, self._place = None, 0

    def close(self) -> None:
        self._let_go()
        os.close(self.fd)
