"""Finding the files of a study, whose number has no bound: they go to disk, not to memory."""

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from analysis.connection import connect
from analysis.log import Dataset, Log, PartWriter, objects, quoted
from dedupd import native
from dedupd.errors import UsageError
from dedupd.fsutil import opened

ENTRIES_PER_PART = 50_000
_NO_ATTRIBUTE = b"user.dedupd-analyze"
"""The listing brings an extended attribute along; the study wants none."""

_MEMORY_MB = 160


Listed = tuple[bytes, tuple[int, int, int, int], int, int, bytes | None]
"""A file as the kernel module lists it: name; inode, size, mtime, ctime; links; allocated bytes."""


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
    """The type of a file, as the policy has it: its extension in small letters, or ``''``."""
    name = path.rpartition(b"/")[2].decode("utf-8", "backslashreplace")
    stem, dot, extension = name.rpartition(".")
    return extension.lower() if dot and stem else ""


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
            for directory, files in walk(dataset, root, (own.st_dev, own.st_ino), failures):
                if entries.add(dataset, directory, files):
                    check()
                    found(entries.number)
        entries.flush()
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
    """Files found, on their way to the disk."""

    def __init__(self, log: Log) -> None:
        self.writer = PartWriter(log.path)
        self.number = 0
        self.linked = False
        self.sums = ScanSums(0, 0)
        self._part = 0
        self._datasets: list[int] = []
        self._directories: list[bytes] = []
        self._files: list[Listed] = []

    def add(self, dataset: int, directory: bytes, files: list[Listed]) -> bool:
        """Take in files of a directory; True where that made a part."""
        self._datasets += [dataset] * len(files)
        self._directories += [directory] * len(files)
        self._files += files
        if len(self._files) < ENTRIES_PER_PART:
            return False
        self.flush()
        return True

    def flush(self) -> None:
        files = self._files
        first = self.number
        paths = [
            directory + b"/" + file[0] if directory else file[0]
            for directory, file in zip(self._directories, files, strict=True)
        ]
        shown = {name: name.decode("utf-8", "backslashreplace") for name in set(self._directories)}
        sizes = [file[1][1] for file in files]
        self._part += 1
        self.writer.write(
            ("files",),
            self._part,
            {
                "dataset": np.array(self._datasets, np.uint16),
                "file": np.arange(first, first + len(files), dtype=np.uint32),
                "path": objects(paths),
                "directory": objects([shown[name] for name in self._directories]),
                "type": objects([file_type(file[0]) for file in files]),
                "inode": np.array([file[1][0] for file in files], np.uint64),
                "size_bytes": np.array(sizes, np.uint64),
                "modified_ns": np.array([file[1][2] for file in files], np.int64),
                "changed_ns": np.array([file[1][3] for file in files], np.int64),
                "links": np.array([file[2] for file in files], np.uint32),
                "allocated_bytes": np.array([file[3] for file in files], np.uint64),
            },
        )
        self.number += len(files)
        self.linked = self.linked or any(file[2] > 1 for file in files)
        self.sums = ScanSums(
            self.sums.files + sum(size > 0 for size in sizes), self.sums.size_bytes + sum(sizes)
        )
        self._datasets, self._directories, self._files = [], [], []


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


def walk(
    dataset: int, root: bytes, left_out: tuple[int, int], failures: list[Failure]
) -> Iterator[tuple[bytes, list[Listed]]]:
    """Every regular file below ``root``, or ``root`` itself, as (directory, files in it).

    Never enters other file systems, and follows no link. The directory ``left_out`` (device,
    inode) is passed over, and so is what vanishes meanwhile; what cannot be read is added to
    ``failures``. Files of a directory are in the order of their inodes: that of the disk, mostly.
    """
    try:
        status = os.stat(root)
    except OSError as error:
        failures.append(Failure(dataset, b"", error.strerror or "cannot be read"))
        return
    if stat.S_ISREG(status.st_mode):
        identity = status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
        yield b"", [(os.path.basename(root), identity, 1, status.st_blocks * 512, None)]
        return
    pending = [b""]
    while pending:
        directory = pending.pop()
        try:
            names, files = _list(os.path.join(root, directory), left_out)
        except FileNotFoundError:
            continue
        except OSError as error:
            failures.append(Failure(dataset, directory, error.strerror or "cannot be read"))
            continue
        files.sort(key=_inode)
        yield directory, files
        prefix = directory + b"/" if directory else b""
        pending.extend(prefix + name for name in sorted(names, reverse=True))


def _list(directory: bytes, left_out: tuple[int, int]) -> tuple[list[bytes], list[Listed]]:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    with opened(os.open(directory, flags)) as fd:
        status = os.fstat(fd)
        if (status.st_dev, status.st_ino) == left_out:
            return [], []
        return native.scan_directory(fd, _NO_ATTRIBUTE)


def _inode(file: Listed) -> int:
    return file[1][0]
