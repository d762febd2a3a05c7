"""The files of a tree, as a study takes them in."""

from typing import Final, final

from typing_extensions import Buffer

@final
class FileColumns:
    """Regular files that a :class:`TreeWalk` found: parallel columns."""

    paths: Final[bytes]
    """Relative to the root, each with a NUL byte after it."""

    statuses: Final[bytes]
    """i64 inode, size, mtime and ctime in ns, links, allocated bytes of each."""

    failures: Final[list[tuple[bytes, int]]]
    """Paths of directories that could not be listed, and the error's number."""

@final
class TreeWalk:
    """All regular files of a tree: no link is followed, no other file system entered.

    Depth first; the files of a directory mostly in the order of their inodes. Second names of
    files with hard links are passed over, those of the first ``names_max`` such files at least.
    """

    def __new__(cls, root: bytes, left_out: tuple[int, int], names_max: int) -> TreeWalk:
        """Of a directory, or of a single file.

        ``left_out`` is a directory to pass over (device, inode). Raises OSError.
        """
    def state(self) -> bytes:
        """Where the walk is, for :meth:`resume`. Raises OSError."""
    def resume(self, state: Buffer) -> None:
        """Go on where another walk of the same tree was, also in the middle of a directory.

        Second names of files that it has found are found again. Raises ValueError where ``state``
        is not of a walk.
        """
    @property
    def beyond_names(self) -> bool:
        """Whether there were more than ``names_max``: then some files were found again."""
    def next(self, files_min: int) -> FileColumns | None:
        """At least so many more files, less only before the end; None there."""

def read_packed(
    root_fd: int, paths: Buffer, identities: Buffer, out: Buffer, offset: int, threads: int
) -> int:
    """Read whole files into ``out``, one after the other from ``offset`` on, past the page cache.

    ``paths`` are relative, each with a NUL byte after it; ``identities`` u64 inode, size, mtime
    and ctime in ns of each. Stops at the first file that is another one or cannot be read, and
    returns the number of those before it. Raises ValueError where ``out`` is short.
    """
