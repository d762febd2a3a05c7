"""The files of a tree, as a study takes them in."""

from collections.abc import Sequence

from typing_extensions import Buffer

class FileColumns:
    """Regular files that a :class:`TreeWalk` found: parallel arrays, one element per file."""

    def __new__(cls) -> FileColumns:
        """None at all."""
    def with_content(self) -> tuple[bytes, bytes, bytes, bytes]:
        """Those that have something to read: parallel columns.

        u32 numbers, which count all files from 0 on; paths relative to the root, each with a NUL
        byte after it; u64 ends of the paths; u64 inode, size, mtime and ctime in ns.
        """
    @property
    def failures(self) -> list[tuple[bytes, int]]:
        """Paths of directories that could not be listed, and the error's number."""
    def __len__(self) -> int: ...
    def write(self, path: str, dataset: int, first_file: int) -> None:
        """Write the files as a part of the study's table, numbered from ``first_file`` on.

        Columns dataset, file, path, directory, type (:func:`file_type`), inode, size_bytes,
        modified_ns, changed_ns, links, allocated_bytes. Raises OSError.

        Durable effect: a new file, a report.
        """

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

def file_type(name: bytes) -> str:
    """The type of a file: its extension in small letters, or ``""``.

    Versions after it are no type. They are numbers, parts that begin with a digit and have more than
    letters and digits, and all behind ``.so.`` and a number that begins with a digit:
    ``libc.so.6``, ``libLLVM.so.22.1-rust-1.95.0-stable`` and ``libssl.so.1.0.2k`` are ``so``.
    """

def write_parquet(path: str, columns: Sequence[tuple[str, str, Buffer]], rows: int) -> None:
    """Write a table, compressed with zstandard, at a new path or over an old one.

    Each column is its name, its kind, and its items, little-endian: ``u16``, ``u32``, ``u64`` or
    ``i64``; ``bytes`` and ``text`` (UTF-8) have the u32 length of each item in front of it.
    Raises OSError, and ValueError where a column has not ``rows`` items.

    Durable effect: a new file, a report.
    """

def read_packed(
    root_fd: int, paths: Buffer, identities: Buffer, out: Buffer, offset: int, threads: int
) -> int:
    """Read whole files into ``out``, one after the other from ``offset`` on, past the page cache.

    ``paths`` are relative, each with a NUL byte after it; ``identities`` u64 inode, size, mtime
    and ctime in ns of each. Stops at the first file that is another one or cannot be read, and
    returns the number of those before it. Raises ValueError where ``out`` is short.
    """
