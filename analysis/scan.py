"""Finding the files of a study, whose number has no bound: they go to disk, not to memory."""

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np

from analysis.files import Files, files_of, part_files
from analysis.log import Columns, Dataset, Log, part_path, write_part
from dedupd import native
from dedupd.errors import UsageError
from dedupd.units import MIB

FILES_PER_PART_MAX = 20_000
FILES_PER_PART_MIN = 1_000
"""The first part is small, since the reading begins with it; then they grow."""

AHEAD_BYTES_MAX = 16 * MIB
"""Of what is found and not yet read, this much stays in memory; the reader takes the rest from the
table."""

NAMES_MAX = 3_500_000
"""Files with several names whose second ones are told apart while they are found; 40 MB. Others
are read again, and the queries leave them out."""


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


class Scan:
    """Writes the table ``files``: every regular file once, numbered in the order of reading.

    In a thread of its own, ahead of the reading. The directory ``left_out`` is passed over.
    """

    def __init__(self, log: Log, left_out: str) -> None:
        self._log = log
        status = os.stat(left_out)
        self._left_out = status.st_dev, status.st_ino
        self._changed = threading.Condition()
        self._ahead: dict[int, Files] = {}
        self._failures: list[Failure] = []
        self._parts = 0
        self._number = 0
        self._sums = ScanSums(0, 0)
        self._second_names = False
        self._ended = self._stop = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="scan", daemon=True)
        self._thread.start()

    @property
    def sums(self) -> ScanSums:
        """Of what was found until now."""
        return self._sums

    @property
    def complete(self) -> bool:
        return self._ended and self._error is None and not self._stop

    @property
    def second_names(self) -> bool:
        """Whether some files may be in the table under several of their names."""
        return self._second_names

    def take_failures(self) -> list[Failure]:
        """What could not be listed, since the last call."""
        with self._changed:
            failures, self._failures = self._failures, []
        return failures

    def files(self) -> Iterator[Files]:
        """All files with content, as they are found. Raises what the scan has failed with."""
        for part in count(1):
            with self._changed:
                while self._parts < part and not self._ended:
                    self._changed.wait()
                if self._error is not None:
                    raise self._error
                if self._parts < part:
                    return
                files = self._ahead.pop(part, None)
            if files is not None:
                yield files
            else:
                yield from part_files(part_path(self._log.path, ("files",), part))

    def close(self) -> None:
        """Stop finding files; safe at any time."""
        self._stop = True
        self._thread.join()

    def _run(self) -> None:
        try:
            for dataset, tree in enumerate(self._log.spec.datasets):
                self._walk(dataset, os.path.realpath(os.fsencode(tree.path)))
            if not self._parts:
                self._add(native.FoundFiles(), 0)
        except BaseException as error:
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _walk(self, dataset: int, root: bytes) -> None:
        try:
            tree = native.TreeWalk(root, self._left_out, NAMES_MAX)
        except OSError as error:
            with self._changed:
                self._failures.append(Failure(dataset, b"", error.strerror or "cannot be read"))
            return
        while not self._stop and (found := tree.next(self._next_count())) is not None:
            self._add(found, dataset)
        self._second_names |= tree.beyond_names

    def _next_count(self) -> int:
        return min(max(FILES_PER_PART_MIN, self._number), FILES_PER_PART_MAX)

    def _add(self, found: native.FoundFiles, dataset: int) -> None:
        """Write a part of the table, and tell the reader."""
        part = self._parts + 1
        found.write(part_path(self._log.path, ("files",), part), dataset, self._number)
        files = files_of(found, dataset, self._number)
        failures = [Failure(dataset, path, os.strerror(errno)) for path, errno in found.failures]
        with self._changed:
            if sum(one.nbytes for one in self._ahead.values()) < AHEAD_BYTES_MAX:
                self._ahead[part] = files
            self._parts = part
            self._number += len(found)
            self._sums = ScanSums(
                self._sums.files + len(files), self._sums.size_bytes + int(files.sizes.sum())
            )
            self._failures += failures
            self._changed.notify_all()


def write_failures(log: str, number: int, failures: list[Failure]) -> None:
    columns: Columns = {
        "dataset": np.array([f.dataset for f in failures], np.uint16),
        "path": [f.path for f in failures],
        "reason": [f.reason for f in failures],
    }
    write_part(log, ("failures",), number, columns)
