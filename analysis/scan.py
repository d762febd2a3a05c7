"""Finding the files of a study, whose number has no bound: they go to disk, not to memory."""

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import duckdb
import numpy as np

from analysis.log import Dataset, Log, PartWriter, objects, quoted
from dedupd.errors import UsageError

ENTRIES_PER_PART = 50_000
_SORTED_TOGETHER = 4096
"""Files of a directory that are put in the order of their inodes: that of the disk, mostly."""

_MEMORY = "160MB"


@dataclass(frozen=True, slots=True)
class Entry:
    """A regular file. ``path`` is relative to the dataset; times in nanoseconds."""

    dataset: int
    path: bytes
    status: os.stat_result


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
    """Write ``files.parquet``: every regular file once, numbered in the order of reading.

    The directory ``left_out`` is passed over. ``check`` may raise to stop; ``found`` is told the
    number of files so far.
    """
    entries = os.path.join(log.path, "entries")
    writer = PartWriter(log.path)
    try:
        number = part = 0
        failures: list[Failure] = []
        batch: list[Entry] = []
        for entry in _walk_all(log, left_out, failures):
            batch.append(entry)
            if len(batch) == ENTRIES_PER_PART:
                check()
                part += 1
                _write_entries(writer, part, number, batch)
                number += len(batch)
                found(number)
                batch = []
        part += 1
        _write_entries(writer, part, number, batch)
        if failures:
            write_failures(writer, 1, failures)
    finally:
        writer.close()
    sums = _without_second_names(log, entries)
    for name in os.listdir(entries):
        os.unlink(os.path.join(entries, name))
    os.rmdir(entries)
    return sums


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


def _write_entries(writer: PartWriter, part: int, first: int, batch: list[Entry]) -> None:
    states = [entry.status for entry in batch]
    writer.write(
        ("entries",),
        part,
        {
            "dataset": np.array([entry.dataset for entry in batch], np.uint16),
            "file": np.arange(first, first + len(batch), dtype=np.uint32),
            "path": objects([entry.path for entry in batch]),
            "directory": objects([_directory(entry.path) for entry in batch]),
            "type": objects([file_type(entry.path) for entry in batch]),
            "size_bytes": np.array([s.st_size for s in states], np.uint64),
            "allocated_bytes": np.array([s.st_blocks * 512 for s in states], np.uint64),
            "changed_ns": np.array([max(s.st_mtime_ns, s.st_ctime_ns) for s in states], np.int64),
            "modified_ns": np.array([s.st_mtime_ns for s in states], np.int64),
            "device": np.array([s.st_dev for s in states], np.uint64),
            "inode": np.array([s.st_ino for s in states], np.uint64),
            "links": np.array([s.st_nlink for s in states], np.uint32),
        },
    )


def _directory(path: bytes) -> str:
    return path.rpartition(b"/")[0].decode("utf-8", "backslashreplace")


def _without_second_names(log: Log, entries: str) -> ScanSums:
    """Keep one name of each file with hard links. In the database, since they may be many."""
    source = f"read_parquet('{quoted(entries)}/part-*.parquet')"
    target = quoted(log.files_path())
    temporary = os.path.join(log.path, "temporary")
    database = duckdb.connect(
        config={"threads": 1, "memory_limit": _MEMORY, "temp_directory": temporary}
    )
    with database:
        database.execute(
            f"""
            COPY (
                SELECT * EXCLUDE (device, inode, links, type),
                       coalesce(type, '') AS type
                FROM {source} AS entry
                WHERE links = 1 OR file IN (
                    SELECT min(file) FROM {source} WHERE links > 1 GROUP BY dataset, device, inode)
                ORDER BY file
            ) TO '{target}' (FORMAT parquet, COMPRESSION zstd)
            """
        )
        row = database.execute(
            f"SELECT count(*), coalesce(sum(size_bytes), 0)"
            f" FROM read_parquet('{target}') WHERE size_bytes > 0"
        ).fetchone()
    assert row is not None
    return ScanSums(int(row[0]), int(row[1]))


def _walk_all(log: Log, left_out: str, failures: list[Failure]) -> Iterator[Entry]:
    own = os.stat(left_out)
    for number, dataset in enumerate(log.spec.datasets):
        yield from walk(number, os.fsencode(dataset.path), (own.st_dev, own.st_ino), failures)


def walk(
    dataset: int, root: bytes, left_out: tuple[int, int], failures: list[Failure]
) -> Iterator[Entry]:
    """Every regular file below ``root``, or ``root`` itself; other file systems never.

    Follows no link but ``root``. The directory ``left_out`` (device, inode) is passed over, and so
    is what vanishes meanwhile; what cannot be read is added to ``failures``.
    """
    root = os.path.realpath(root)
    try:
        status = os.stat(root)
    except OSError as error:
        failures.append(Failure(dataset, b"", error.strerror or "cannot be read"))
        return
    if stat.S_ISREG(status.st_mode):
        yield Entry(dataset, os.path.basename(root), status)
        return
    pending = [b""]
    while pending:
        directory = pending.pop()
        below: list[bytes] = []
        try:
            with os.scandir(os.path.join(root, directory)) as entries:
                yield from _walk_directory(
                    dataset, directory, entries, (status.st_dev, left_out), below
                )
        except FileNotFoundError:
            continue
        except OSError as error:
            failures.append(Failure(dataset, directory, error.strerror or "cannot be read"))
        pending.extend(sorted(below, reverse=True))


def _walk_directory(
    dataset: int,
    directory: bytes,
    entries: Iterator[os.DirEntry[bytes]],
    bounds: tuple[int, tuple[int, int]],
    below: list[bytes],
) -> Iterator[Entry]:
    device, left_out = bounds
    prefix = directory + b"/" if directory else b""
    found: list[Entry] = []
    for entry in entries:
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        if status.st_dev != device:
            continue
        if stat.S_ISDIR(status.st_mode) and (status.st_dev, status.st_ino) != left_out:
            below.append(prefix + entry.name)
        elif stat.S_ISREG(status.st_mode):
            found.append(Entry(dataset, prefix + entry.name, status))
            if len(found) == _SORTED_TOGETHER:
                yield from sorted(found, key=_inode)
                found = []
    yield from sorted(found, key=_inode)


def _inode(entry: Entry) -> int:
    return entry.status.st_ino
