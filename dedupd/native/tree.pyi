"""Directories of a volume, many at once."""

from collections.abc import Callable, Sequence

from .upkeep import KnownRecords

class StubCounter:
    """Counts what the stubs of a tree refer to, where all of that is there."""

    def __new__(
        cls,
        chunks: KnownRecords,
        nodes: KnownRecords,
        streams: Sequence[tuple[int, int, int, int]],
        *,
        attribute: bytes,
        seed: int,
        tables: tuple[int, Sequence[tuple[int, bytes, int]]] | None,
    ) -> StubCounter:
        """``streams`` are containers of recipes: number, descriptors of data and table, seed; the
        caller keeps them open. ``seed`` is that of the attribute's checksum.

        ``tables`` are those of the containers of chunks: a directory, which the caller keeps open,
        and number, name and seed of each. With them, the chunk that a stub names is held against
        all that the stub keeps of its fingerprint, without them against what is known of chunks.
        """
    def look_at(
        self,
        root_fd: int,
        directories: Sequence[bytes],
        threads: int,
        check: Callable[[], None],
    ) -> list[
        tuple[
            list[bytes],
            list[tuple[bytes, tuple[int, int, int, int], int, int, bytes | None]],
            int,
            int,
            int,
        ]
        | int
    ]:
        """Of each directory (a path below ``root_fd``, over no link and into no other file system):
        the error's number, or the names of its directories, the files that are left, and how many
        stubs, plain files, and bytes of stubs were not.

        What is left is as :func:`scan_directory` has it, and nothing of it is counted: files of
        several names, and stubs of which anything is out of the ordinary: a transition, a recipe
        of several nodes, a record that is not there, or that leads to another one.

        ``check`` is called every 64 entries, by any of the threads; what it raises ends the call.
        """

_Passed = tuple[int, int]
CandidatesOf = tuple[
    list[bytes],
    list[tuple[bytes, tuple[int, int, int, int], int, int, bytes | None]],
    tuple[_Passed, _Passed, _Passed, _Passed],
    list[tuple[bytes, int, int, list[tuple[bytes, int]]]],
]
"""What an optimise job has to do with a directory: names of directories; files that are left, as
:func:`scan_directory` has them; what was passed over, in files and bytes: stubs with nothing to do
about them, empty files, small ones, young ones; and plain files for it, up to 4,096 at a time:
packed, their number, their bytes, and about how many chunks they have, by what follows the last dot
of their names.

Left are files of several names, and stubs of which anything is out of the ordinary.
"""

def find_candidates(
    root: int,
    directories: Sequence[bytes],
    attribute: bytes,
    threads: int,
    check: Callable[[], None],
    *,
    seed: int,
    size_min: int,
    newest_ns: int,
    chunk_bytes: int,
) -> list[CandidatesOf | int]:
    """Look for plain files of at least ``size_min`` bytes that did not change after ``newest_ns``;
    for each directory, as in :meth:`StubCounter.look_at`, also the error's number.

    ``seed`` is that of the attribute's checksum. ``check`` is called every 64 entries, by any of
    the threads; what it raises ends the call. Raises ValueError.
    """

def stub_sizes(
    root: int,
    directories: Sequence[bytes],
    attribute: bytes,
    threads: int,
    check: Callable[[], None],
) -> list[
    tuple[
        list[bytes],
        list[tuple[bytes, tuple[int, int, int, int], int, int, bytes | None]],
        list[tuple[bytes, int]],
    ]
    | int
]:
    """Of each directory, as in :meth:`StubCounter.look_at`: the error's number, or the names of its
    directories, its files of several names, and the bytes of all its other stubs, by what follows
    the last dot of their names.

    Empty where nothing follows, where there is none, or where it is the first byte. ``check`` is
    called every 64 entries, by any of the threads; what it raises ends the call.
    """

def scan_directory(
    fd: int, attribute: bytes, check: Callable[[], None] | None = None
) -> tuple[list[bytes], list[tuple[bytes, tuple[int, int, int, int], int, int, bytes | None]]]:
    """Names of directories, and regular files on the same file system, in the order of inodes.

    Of each file: name; inode, size, mtime and ctime in ns; links; allocated bytes; value of the
    attribute, None where it has none, empty where that cannot be told.

    No link is followed; what vanishes meanwhile is passed over. ``check`` is called every some
    thousand entries; what it raises ends the scan. Raises OSError.
    """
