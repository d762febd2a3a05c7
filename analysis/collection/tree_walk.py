"""Finds the files of a study. Their number is unlimited, so they are stored on disk."""

import base64
import os
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from analysis.collection.chunk_log import Columns, Dataset, Log, ScanState, part_path, write_part
from analysis.collection.file_log import Files, files_of, part_files, table_of
from dedupd_core import native
from dedupd_core.errors import UsageError
from dedupd_core.units import MIB

FILES_PER_PART_MAX = 20_000
FILES_PER_PART_MIN = 1_000
"""The first part is small, since the reading starts with it; later parts grow."""

AHEAD_BYTES_MAX = 16 * MIB
"""Unread files that stay in memory; the reader takes further files from the table."""

NAMES_MAX = 3_500_000
"""Files with several names that are counted once during the scan; 40 MB. Further such files are
read again, and the queries ignore their other names."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A file or directory that could not be read."""

    dataset: int
    path: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class Progress:
    """The number and bytes of files with content found so far."""

    files: int
    size_bytes: int
    second_names: bool
    state: ScanState


def check_datasets(datasets: tuple[Dataset, ...]) -> None:
    """Raise UsageError if a path does not exist, or datasets overlap."""
    labels = [dataset.label for dataset in datasets]
    for label in labels:
        if not label or labels.count(label) > 1:
            raise UsageError(
                f"label {label!r}: used twice; give each path its own name (--label NAME=PATH)"
            )
    real = [os.path.realpath(dataset.path) for dataset in datasets]
    for at, path in enumerate(real):
        if not os.path.lexists(path):
            raise UsageError(f"{datasets[at].path}: no such file or directory")
        for other in real[:at]:
            if os.path.commonpath([path, other]) in (path, other):
                raise UsageError(
                    f"{path} and {other}: one contains the other; use only one of them"
                )


class Scan:
    """Writes the table ``files``: every regular file once, numbered in the order of reading.

    It runs in a thread, ahead of the reading, and starts at the log's checkpoint. It skips the
    directory ``left_out``.
    """

    def __init__(self, log: Log, left_out: str) -> None:
        self._log = log
        status = os.stat(left_out)
        self._left_out = status.st_dev, status.st_ino
        self._changed = threading.Condition()
        self._ahead: dict[int, Files] = {}
        self._failures: list[Failure] = []
        begin = log.checkpoint
        # The names of files found before the checkpoint are no longer known.
        second_names = begin.second_names or begin.scan.found > 0
        self._progress = Progress(begin.files, begin.total_bytes, second_names, begin.scan)
        self._ended = self._stop = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="scan", daemon=True)
        self._thread.start()

    @property
    def complete(self) -> bool:
        return self._ended and self._error is None and not self._stop

    def take(self) -> tuple[Progress, list[Failure]]:
        """Return the progress, and the failures since the last call."""
        with self._changed:
            failures, self._failures = self._failures, []
            return self._progress, failures

    def files(self, first: int) -> Iterator[Files]:
        """Yield all files with content from number ``first`` on, as they are found.

        Raises the error of a failed scan.
        """
        for part in count(1):
            with self._changed:
                while self._progress.state.parts < part and not self._ended:
                    self._changed.wait()
                if self._error is not None:
                    raise self._error
                if self._progress.state.parts < part:
                    return
                files = self._ahead.pop(part, None)
            if files is not None:
                yield files
            else:
                yield from part_files(part_path(self._log.path, ("files",), part), first)

    def close(self) -> None:
        """Stop the scan; safe at any time."""
        self._stop = True
        self._thread.join()

    def _run(self) -> None:
        begin = self._progress.state
        try:
            for dataset, tree in enumerate(self._log.spec.datasets):
                if dataset >= begin.dataset:
                    walk = begin.walk if dataset == begin.dataset else ""
                    self._walk(dataset, os.path.realpath(os.fsencode(tree.path)), walk)
            if not self._progress.state.parts:
                self._add(table_of(b"", b"", 0, 0), [], ScanState(1), second_names=False)
        except BaseException as error:
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _walk(self, dataset: int, root: bytes, begin: str) -> None:
        try:
            tree = native.study.TreeWalk(root, self._left_out, NAMES_MAX)
        except OSError as error:
            with self._changed:
                self._failures.append(Failure(dataset, b"", error.strerror or "cannot be read"))
                done = replace(self._progress.state, dataset=dataset + 1, walk="")
                self._progress = replace(self._progress, state=done)
            return
        if begin:
            tree.resume(zlib.decompress(base64.b64decode(begin)))
        while not self._stop:
            before = self._progress.state
            found = tree.next(min(max(FILES_PER_PART_MIN, before.found), FILES_PER_PART_MAX))
            if found is None:
                return
            walk = base64.b64encode(zlib.compress(tree.state(), level=1)).decode()
            table = table_of(found.paths, found.statuses, dataset, before.found)
            after = ScanState(before.parts + 1, before.found + len(table["file"]), dataset, walk)
            failed = [Failure(dataset, path, os.strerror(errno)) for path, errno in found.failures]
            self._add(table, failed, after, second_names=tree.beyond_names)

    def _add(
        self, table: Columns, failures: list[Failure], after: ScanState, *, second_names: bool
    ) -> None:
        """Write a part of the table, and wake the reader."""
        progress = self._progress
        write_part(self._log.path, ("files",), after.parts, table)
        files = files_of(table)
        with self._changed:
            if sum(column.nbytes for column in self._ahead.values()) < AHEAD_BYTES_MAX:
                self._ahead[after.parts] = files
            self._failures += failures
            self._progress = Progress(
                progress.files + len(files),
                progress.size_bytes + int(files.sizes.sum()),
                progress.second_names or second_names,
                after,
            )
            self._changed.notify_all()


def write_failures(log: str, number: int, failures: list[Failure]) -> None:
    columns: Columns = {
        "dataset": np.array([f.dataset for f in failures], np.uint16),
        "path": np.array([f.path for f in failures], np.object_),
        "reason": np.array([f.reason for f in failures], np.object_),
    }
    write_part(log, ("failures",), number, columns)
