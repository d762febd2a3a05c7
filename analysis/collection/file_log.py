"""The table of files, read in portions."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from analysis.collection.chunk_log import Columns, Log, part_database

_FETCHED = 50_000
"""Rows per portion; 10 MB."""

_STATUS = {
    "inode": np.uint64,
    "size_bytes": np.uint64,
    "modified_ns": np.int64,
    "changed_ns": np.int64,
    "links": np.uint32,
    "allocated_bytes": np.uint64,
}
"""Columns of the table, in the order of ``native.study.FileColumns.statuses``."""

_IDENTITY = list(_STATUS)[:4]


class FoundFile(NamedTuple):
    """A file as the scan found it."""

    file: int
    dataset: int
    path: bytes
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Files:
    """Files with content, in the order of reading, from the scan: parallel columns.

    ``paths`` has a NUL byte after each path; ``path_ends`` are the positions after these. Rows of
    ``identities``: inode, size, mtime and ctime in ns.
    """

    file: NDArray[np.uint32]
    dataset: NDArray[np.uint16]
    paths: bytes
    path_ends: NDArray[np.int64]
    identities: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.file)

    def __getitem__(self, at: int) -> FoundFile:
        path = self.paths_of(at, at + 1)[:-1]
        return FoundFile(int(self.file[at]), int(self.dataset[at]), path, int(self.sizes[at]))

    @property
    def nbytes(self) -> int:
        """The approximate size in memory."""
        return len(self.paths) + self.path_ends.nbytes + self.identities.nbytes

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The length of each file."""
        return self.identities[:, 1]

    def paths_of(self, first: int, end: int) -> bytes:
        """Return the paths of some of the files, in the form for ``native.study.read_packed``."""
        return self.paths[self.path_ends[first - 1] if first else 0 : self.path_ends[end - 1]]


def table_of(paths: bytes, statuses: bytes, dataset: int, first: int) -> Columns:
    """Make rows from the files that a scan has found, numbered from ``first`` on."""
    columns = np.frombuffer(statuses, np.int64).reshape(-1, len(_STATUS)).T
    count = columns.shape[1]
    return {
        "dataset": np.full(count, dataset, np.uint16),
        "file": np.arange(first, first + count, dtype=np.uint32),
        "path": np.array(paths.split(b"\0")[:-1], np.object_),
        **{name: of.astype(_STATUS[name]) for name, of in zip(_STATUS, columns, strict=True)},
    }


def files_of(table: Columns) -> Files:
    """Return the files with content in some rows of the table."""
    has_content = table["size_bytes"] > 0
    file, dataset, path, *identity = (
        np.asarray(table[name])[has_content] for name in ("file", "dataset", "path", *_IDENTITY)
    )
    paths = [*path, b""]
    ends = np.cumsum([len(path) + 1 for path in paths[:-1]], dtype=np.int64)
    columns = [column.astype(np.int64, copy=False) for column in identity]
    return Files(file, dataset, b"\0".join(paths), ends, np.stack(columns, axis=1))


def logged_files(log: Log, first: int) -> Iterator[Files]:
    """Yield the files of a log with a complete scan, from number ``first`` on."""
    for part in log.file_parts():
        yield from part_files(part, first)


def part_files(part: str, first: int) -> Iterator[Files]:
    """Yield the files of a part, which may have all files of a log, from number ``first`` on."""
    with part_database().cursor() as database:
        ((begin, last),) = database.execute(
            "SELECT coalesce(min(file), 0), coalesce(max(file), 0) FROM read_parquet(?)", [part]
        ).fetchall()
        for number in range(max(begin, first), last + 1, _FETCHED):
            yield files_of(
                database.execute(
                    "SELECT * FROM read_parquet(?) WHERE file >= ? AND file < ?",
                    [part, number, number + _FETCHED],
                ).fetchnumpy()
            )
