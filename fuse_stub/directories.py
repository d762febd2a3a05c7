"""Directory streams that survive changes."""

import os
from collections.abc import Iterator

PART_NAMES = 32
"""Names that are looked up at a time. The kernel takes some 200 in one go, and what it has no room
for was looked up in vain."""


class DirectoryStream:
    """A listing as it was when it began, or was last rewound.

    An offset is the position in that listing. So a name is never reported twice nor passed over,
    whatever is made or removed meanwhile; what is new shows after a rewind, as POSIX has it.
    """

    __slots__ = ("_names", "fd")

    def __init__(self, fd: int) -> None:
        """``fd`` is a directory open for reading; it is the stream's from now on."""
        self.fd = fd
        self._names: list[bytes] = []

    def names(self, start: int) -> Iterator[tuple[int, list[bytes]]]:
        """Names from position ``start`` on, in parts, each with the position of its first."""
        if start == 0:
            os.lseek(self.fd, 0, os.SEEK_SET)
            self._names = [b".", b"..", *(os.fsencode(name) for name in os.listdir(self.fd))]
        for at in range(start, len(self._names), PART_NAMES):
            yield at, self._names[at : at + PART_NAMES]

    def close(self) -> None:
        os.close(self.fd)
