"""Directory streams that survive changes."""

import os
import sys
from array import array
from collections.abc import Iterator
from contextlib import suppress

from dedupd import native

PART_NAMES = 32
"""Names that are looked up at a time. The kernel takes some 200 in one go, and what it has no room
for was looked up in vain."""

REST_NAMES = 1024
"""Names that are read at a time where a listing is gone on with that somebody else began: he may
take a part of them only, and begin with the next part anew."""


class DirectoryStream:
    """A listing as it was when it began, or was last rewound.

    So a name is never reported twice nor passed over, whatever is made or removed meanwhile; what
    is new shows after a rewind, as POSIX has it. An offset is the one that the file system below
    has for that place: an NFS server opens a directory anew for each part of a listing, and goes
    on from the offset that it has got before.
    """

    __slots__ = ("_ends", "_is_whole", "_names", "_place", "fd")

    def __init__(self, fd: int) -> None:
        """``fd`` is a directory open for reading; it is the stream's from now on."""
        self.fd = fd
        self._names: list[bytes] = []
        self._ends = array("q")
        self._is_whole = False
        self._place = 0

    def names(self, start: int) -> Iterator[tuple[list[bytes], "array[int]"]]:
        """Names from the offset ``start`` on, in parts, and the offset behind each.

        Raises OSError.
        """
        self._place = self._find(start)
        for at in range(self._place, len(self._names), PART_NAMES):
            yield self._names[at : at + PART_NAMES], self._ends[at : at + PART_NAMES]

    def _find(self, start: int) -> int:
        """The place of an offset in the listing, which is made anew where nothing is behind it."""
        if start != 0:
            # Mostly it is one of those that were told last.
            for place in (self._place, 0):
                with suppress(ValueError):
                    found = self._ends.index(start, place) + 1
                    if found < len(self._names) or self._is_whole:
                        return found
        self._is_whole = start == 0
        count = sys.maxsize if self._is_whole else REST_NAMES
        self._names, ends = native.system.list_names(self.fd, start, count)
        self._ends = array("q", ends)
        return 0

    def close(self) -> None:
        os.close(self.fd)
