"""Finding the files of a study, whose number has no bound: they go to disk, not to memory."""

import os
import re
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from analysis.connection import connect
from analysis.log import Dataset, Log, PartWriter, objects, quoted
from dedupd import native
from dedupd.errors import UsageError

ENTRIES_PER_PART = 20_000
"""Listed while those before them are written."""

_MEMORY_MB = 160


@dataclass(frozen=True, slots=True)
class Failure:
    """Something that could not be read."""

    dataset: int
    path: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class ScanSums:
    """What a scan found: files with content, and their bytes."""

    files: int
    size_bytes: int


def file_type(path: bytes) -> str:
    """The type of a file: its extension in small letters, or ``''``.

    Versions behind it are no type. They are numbers, what begins with a digit and has more than
    letters and digits, and all behind ``.so.`` and a number that begins with a digit:
    ``libc.so.6``, ``libLLVM.so.22.1-rust-1.95.0-stable`` and ``libssl.so.1.0.2k`` are ``so``.
    """
    name = path.rpartition(b"/")[2]
    if library := _VERSIONED_LIBRARY.fullmatch(name):
        name = library[1]
    stem, dot, extension = name.rpartition(b".")
    while dot and stem and _VERSION.fullmatch(extension):
        stem, dot, extension = stem.rpartition(b".")
    return _shown_type(extension) if dot and stem else ""


_VERSION = re.compile(rb"[0-9]+|[0-9][^.]*[^.A-Za-z0-9][^.]*")
_VERSIONED_LIBRARY = re.compile(rb"(.+\.so)\.[0-9]+(\.[0-9][^.]*)*", re.DOTALL | re.IGNORECASE)


@lru_cache(maxsize=4096)
def _shown_type(extension: bytes) -> str:
    return extension.decode("utf-8", "backslashreplace").lower()


def check_datasets(datasets: tuple[Dataset, ...]) -> None:
    """Raises UsageError where a path does not exist, or bytes would be counted twice."""
    labels = [dataset.label for dataset in datasets]
    for label in labels:
        if not label or labels.count(label) > 1:
            raise UsageError(
                f"label {label!r}: give every path a name of its own (--label NAME=PATH)"
            )
    real = [os.path.realpath(dataset.path) for dataset in datasets]
    for at, path in enumerate(real):
        if not os.path.lexists(path):
            raise UsageError(f"{datasets[at].path}: no such file or directory")
        for other in real[:at]:
            if os.path.commonpath([path, other]) in (path, other):
                raise UsageError(f"{path} and {other}: one contains the other; name only one")


def scan(
    log: Log, left_out: str, check: Callable[[], None], found: Callable[[int], None]
) -> ScanSums:
    """Write the table ``files``: every regular file once, numbered in the order of reading.

    The directory ``left_out`` is passed over. ``check`` may raise to stop; ``found`` is told the
    number of files so far.
    """
    own = os.stat(left_out)
    failures: list[Failure] = []
    entries = _Entries(log)
    try:
        for dataset, tree in enumerate(log.spec.datasets):
            root = os.path.realpath(os.fsencode(tree.path))
            for portion in _walk(dataset, root, (own.st_dev, own.st_ino), failures):
                if portion.paths:
                    entries.add(dataset, portion)
                check()
                found(entries.number)
        if not entries.number:
            entries.add(0, _NOTHING)
        if failures:
            write_failures(entries.writer, 1, failures)
    finally:
        entries.writer.close()
    return _without_second_names(log) if entries.linked else entries.sums


def write_failures(writer: PartWriter, number: int, failures: list[Failure]) -> None:
    writer.write(
        ("failures",),
        number,
        {
            "dataset": np.array([f.dataset for f in failures], np.uint16),
            "path": objects([f.path for f in failures]),
            "reason": objects([f.reason for f in failures]),
        },
    )


class _Entries:
    """Files found, on their way to the disk, one portion of a walk after the other."""

    def __init__(self, log: Log) -> None:
        self.writer = PartWriter(log.path)
        self.number = 0
        self.linked = False
        self.sums = ScanSums(0, 0)
        self._part = 0

    def add(self, dataset: int, portion: "_Portion") -> None:
        """Write a part of the table."""
        inodes, sizes, modified, changed, links, allocated = portion.statuses.T
        count = len(sizes)
        shown = [name.decode("utf-8", "backslashreplace") for name in portion.directories]
        self._part += 1
        self.writer.write(
            ("files",),
            self._part,
            {
                "dataset": np.full(count, dataset, np.uint16),
                "file": np.arange(self.number, self.number + count, dtype=np.uint32),
                "path": objects(portion.paths),
                "directory": np.repeat(objects(shown), portion.counts),
                "type": objects([file_type(path) for path in portion.paths]),
                "inode": inodes.view(np.uint64),
                "size_bytes": sizes.astype(np.uint64),
                "modified_ns": modified,
                "changed_ns": changed,
                "links": links.astype(np.uint32),
                "allocated_bytes": allocated.astype(np.uint64),
            },
        )
        self.number += count
        self.linked = self.linked or bool((links > 1).any())
        self.sums = ScanSums(
            self.sums.files + int(np.count_nonzero(sizes)), self.sums.size_bytes + int(sizes.sum())
        )


def _without_second_names(log: Log) -> ScanSums:
    """Keep one name of each file with hard links. In the database, since they may be many."""
    directory = os.path.join(log.path, "files")
    source = f"read_parquet('{quoted(directory)}/part-*.parquet')"
    once = os.path.join(directory, "once.parquet")
    database = connect(_MEMORY_MB, os.path.join(log.path, "temporary"), threads=1)
    with database:
        database.execute(
            f"""
            COPY (
                SELECT * FROM {source} AS entry
                WHERE links = 1 OR file IN (
                    SELECT min(file) FROM {source} WHERE links > 1 GROUP BY dataset, inode)
                ORDER BY file
            ) TO '{quoted(once)}' (FORMAT parquet, COMPRESSION zstd)
            """
        )
        row = database.execute(
            "SELECT count(*), coalesce(sum(size_bytes), 0) FROM read_parquet(?)"
            " WHERE size_bytes > 0",
            [once],
        ).fetchone()
    assert row is not None
    for name in os.listdir(directory):
        if name.startswith("part-"):
            os.unlink(os.path.join(directory, name))
    os.rename(once, os.path.join(directory, "part-00001.parquet"))
    return ScanSums(int(row[0]), int(row[1]))


@dataclass(frozen=True, slots=True)
class _Portion:
    """Files that a walk came upon: their paths, what ``stat`` says, and how many in a row are in
    which directory.

    Columns of ``statuses``: inode, size, mtime and ctime in ns, links, allocated bytes.
    """

    paths: list[bytes]
    statuses: NDArray[np.int64]
    directories: list[bytes]
    counts: NDArray[np.uint32]


_NOTHING = _Portion([], np.empty((0, 6), np.int64), [], np.empty(0, np.uint32))


def _walk(
    dataset: int, root: bytes, left_out: tuple[int, int], failures: list[Failure]
) -> Iterator[_Portion]:
    """Every regular file below ``root``, or ``root`` itself.

    Never enters other file systems, and follows no link. The directory ``left_out`` (device,
    inode) is passed over, and so is what vanishes meanwhile; what cannot be read is added to
    ``failures``.
    """
    try:
        status = os.stat(root)
        if stat.S_ISREG(status.st_mode):
            yield _single_file(root, status)
            return
        tree = native.TreeWalk(root, left_out)
    except OSError as error:
        failures.append(Failure(dataset, b"", error.strerror or "cannot be read"))
        return
    with ThreadPoolExecutor(1) as ahead:
        next_one = ahead.submit(tree.next, ENTRIES_PER_PART)
        while (found := next_one.result()) is not None:
            next_one = ahead.submit(tree.next, ENTRIES_PER_PART)
            failures += [
                Failure(dataset, path, os.strerror(errno)) for path, errno in found.failures
            ]
            yield _Portion(
                found.paths.split(b"\0")[:-1],
                np.frombuffer(found.statuses, np.int64).reshape(-1, 6),
                found.directories.split(b"\0")[:-1],
                np.frombuffer(found.counts, np.uint32),
            )


def _single_file(path: bytes, status: os.stat_result) -> _Portion:
    times = status.st_mtime_ns, status.st_ctime_ns
    fields = [status.st_ino, status.st_size, *times, status.st_nlink, status.st_blocks * 512]
    return _Portion(
        [os.path.basename(path)], np.array([fields], np.int64), [b""], np.ones(1, np.uint32)
    )
