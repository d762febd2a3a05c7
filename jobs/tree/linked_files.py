"""Files of several names, in a walk for candidates: one name of each is judged."""

import os
from collections.abc import Iterator, Sequence

from dedupd_core.native.tree import FileEntry
from dedupd_core.system.files import opened
from dedupd_core.system.paths import open_beneath
from jobs.frame.run import checked
from jobs.tree.walk import FirstNames, SafePoint


class LinkedFiles:
    """A stub is judged under its first name; a plain file under its last.

    A plain file becomes no stub before all its names are known to lie in the tree: a name elsewhere
    would show the blocks alone, and those of a stub are gone.
    """

    def __init__(self, data_fd: int, safe_point: SafePoint) -> None:
        self._data_fd = data_fd
        self._safe_point = safe_point
        self._stubs = FirstNames()
        self._names: dict[tuple[int, int], int] = {}
        """Names found of each plain file, by inode and change time. Renaming a file gives it a new
        change time, and its names are counted from the start."""
        self._directories: set[int] = set()
        """Where these names are."""
        self._incomplete: dict[int, int] = {}
        """Plain files of more names than were found: their sizes, by inode."""

    @property
    def incomplete_sizes(self) -> list[int]:
        """Sizes of the plain files that have names elsewhere."""
        return list(self._incomplete.values())

    def judged(self, directory: bytes, files: Sequence[FileEntry]) -> Iterator[FileEntry]:
        """The files of a directory that are to be judged now, those of one name among them."""
        counting: set[bytes] | None = None
        for file in checked(files, self._safe_point):
            if file.links > 1 and counting is None:
                counting = self._counting(directory, files)
            if file.links == 1 or self._is_judged(
                file, counting is not None and file.name in counting
            ):
                yield file

    def _counting(self, directory: bytes, files: Sequence[FileEntry]) -> set[bytes]:
        """The names that count: those in a directory that the walk did not meet before.

        A directory that is moved during the walk would be found twice, with all its names. Another
        directory may have its path by now: its names were not found.
        """
        try:
            with opened(open_beneath(self._data_fd, directory, os.O_PATH)) as fd:
                inode = os.fstat(fd).st_ino
                if inode in self._directories:
                    return set()
                self._directories.add(inode)
                return {
                    file.name
                    for file in checked(files, self._safe_point)
                    if file.links > 1 and _is_at(fd, file.name, file.identity[0])
                }
        except OSError:
            return set()  # it is elsewhere by now

    def _is_judged(self, file: FileEntry, counts: bool) -> bool:
        """A name that does not count may be one that was found before."""
        if file.attribute is not None:
            return self._stubs.has(file)
        inode, size_bytes, _, ctime_ns = file.identity
        key = inode, ctime_ns
        found = self._names[key] = self._names.get(key, 0) + counts
        if found == file.links and counts:
            self._incomplete.pop(inode, None)
            return True
        if found < file.links:
            self._incomplete[inode] = size_bytes
        return False


def _is_at(dir_fd: int, name: bytes, inode: int) -> bool:
    """Whether a name is that of an inode."""
    try:
        return os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_ino == inode
    except OSError:
        return False
