"""The files of a tree, as input of a study."""

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
    """All regular files of a tree. It follows no link, and enters no other file system.

    Depth first; the files of a directory mostly in the order of their inodes. Further names of
    files with hard links are skipped, at least for the first ``names_max`` such files.
    """

    def __new__(cls, root: bytes, left_out: tuple[int, int], names_max: int) -> TreeWalk:
        """Walk a directory, or a single file.

        ``left_out`` is a directory to skip (device, inode). Raises OSError.
        """
    def state(self) -> bytes:
        """Return the position of the walk, for :meth:`resume`. Raises OSError."""
    def resume(self, state: Buffer) -> None:
        """Continue at the position of another walk of the same tree, even within a directory.

        Further names of files that it has found are found again. Raises ValueError if ``state`` is
        not of a walk.
        """
    @property
    def beyond_names(self) -> bool:
        """Whether there were more than ``names_max``: then some files were found again."""
    def next(self, files_min: int) -> FileColumns | None:
        """Return at least ``files_min`` more files, fewer only at the end, and None after it."""

def read_packed(
    root_fd: int, paths: Buffer, identities: Buffer, out: Buffer, offset: int, threads: int
) -> int:
    """Read entire files into ``out``, in order, from ``offset`` on, without the page cache.

    ``paths`` are relative, each with a NUL byte after it; ``identities`` u64 inode, size, mtime and
    ctime in ns of each. Stops at the first file that was replaced or cannot be read, and returns
    the number of files before it. Raises ValueError if ``out`` is too small.
    """
