"""Listings of directories that survive changes."""

import os
import sys
from array import array
from collections.abc import Iterator
from contextlib import suppress

from dedupd import native

PART_NAMES = 32
"""Names that are looked up per native call. The kernel takes some 200 in one reply; names that do
not fit were looked up in vain."""

REST_NAMES = 1024
"""Names read per call when a handle continues a listing at an offset of another handle."""


class DirectoryListing:
    """The names of a directory as they were when the listing began, or was last rewound.

    So no name is reported twice or passed over, whatever is made or removed meanwhile; new names
    show after a rewind, as POSIX has it. Offsets are those of the file system below: an NFS server
    opens a directory again for each part of a listing, and goes on from the last offset.
    """

    __slots__ = ("_ends", "_is_whole", "_names", "_place", "fd")

    def __init__(self, fd: int) -> None:
        """``fd`` (taken over) is a directory open for reading."""
        self.fd = fd
        self._names: list[bytes] = []
        self._ends = array("q")
        self._is_whole = False
        self._place = 0

    def names(self, start: int) -> Iterator[tuple[list[bytes], "array[int]"]]:
        """Names from the offset ``start`` on, in parts, with the offset that follows each.

        Raises OSError.
        """
        self._place = self._find(start)
        for at in range(self._place, len(self._names), PART_NAMES):
            yield self._names[at : at + PART_NAMES], self._ends[at : at + PART_NAMES]

    def _find(self, start: int) -> int:
        """The place of an offset in the listing, which is read again where it ends there."""
        if start != 0:
            # Mostly it is one of those that were reported last.
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
