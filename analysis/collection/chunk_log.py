"""The chunk log on disk: the results of a collection as Parquet files, and its progress.

    study.json                          the order: datasets, chunkings, sampling
    checkpoint.json                     the progress of the collection; replaced atomically
    files/part-00001.parquet            every file found, in the order of reading
    whole/part-00001.parquet            one row per file that was read: its length and fingerprint
    chunks/chunking=64k/part-00001.parquet   one row per chunk, in the order of the file
    failures/part-00001.parquet         files and directories that could not be read, and reasons

All tables number their parts alike. Parts with a number above that of the checkpoint are ignored
and written again. A fingerprint is stored as its first 128 bits, in two words. Rows of zeros have
the fingerprint (0, 0). Rows of holes, which occupy no space on the disk, have (0, 1). Both stand
for as many chunks as their length needs.
"""

import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import Any

import duckdb
from numpy.typing import NDArray

from analysis.collection.connection import connect
from dedupd_core.errors import Damaged, UnknownFormat, UsageError

FORMAT = 1
SPEC_FILE = "study.json"
CHECKPOINT_FILE = "checkpoint.json"
HOLE_MARK = 1
"""``fp_low`` of a hole's row; ``fp_high`` is 0."""

NOT_MEASURED = (1 << 32) - 1
"""``compressed_bytes`` of a chunk that is not in the sample for compression."""

_LOGGED_PER_MEASURED = 100
"""In a sample, this many chunks are logged per compressed chunk: all chunks from 1 % on. A row is
cheap compared with compression. The number of occurrences varies more than the compression, and a
few chunks with a hundred occurrences would distort a small sample."""

Columns = Mapping[str, NDArray[Any]]
"""A table: texts and bytes are objects."""

_MEMORY_MB = 128
"""The memory of the database that writes parts, and also reads them, some rows at a time."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """One tree of the study, with its name in the report."""

    label: str
    path: str


@dataclass(frozen=True, slots=True)
class Spec:
    """The parameters of a collection.

    ``sample`` is the fraction of distinct chunks that are compressed, selected by ``salt``; the log
    has rows of the fraction ``logged_share(sample)``. With ``compression_level`` 0, no chunk is
    compressed.
    """

    datasets: tuple[Dataset, ...]
    chunkings: tuple[str, ...]
    sample: float = 1.0
    salt: int = 0
    compression_level: int = 3
    format: int = FORMAT

    def comparable(self) -> "Spec":
        """Return the parameters that must be equal in logs that are analysed together."""
        return replace(self, datasets=(), salt=0)


@dataclass(slots=True)
class Timing:
    """The time of one chunking in seconds of one core, and the number of its bytes."""

    chunk_s: float = 0.0
    chunk_bytes: int = 0
    compress_s: float = 0.0
    compress_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ScanState:
    """The progress of the search for files: those found are in the first ``parts`` of their table.

    ``found`` counts them, including empty files. ``walk`` is the position of the walk through the
    tree of ``dataset``: ``TreeWalk.state``, compressed, in base 64; empty if it has not started.
    """

    parts: int = 0
    found: int = 0
    dataset: int = 0
    walk: str = ""


@dataclass(slots=True)
class Checkpoint:
    """The progress of a collection: all data before ``position`` of ``file`` is in the valid parts.

    ``parts`` is their number. ``scanned``: all files are found; before that, ``scan`` has the
    progress of the search. ``second_names``: the table of files may have several names of the same
    file. ``consumed`` is the start of each chunking's next chunk in ``file``, and ``whole`` the
    state of that file's fingerprint; both are empty between files.
    """

    scanned: bool = False
    scan: ScanState = ScanState()
    second_names: bool = False
    complete: bool = False
    collected_s: float = 0.0
    files: int = 0
    total_bytes: int = 0
    done_bytes: int = 0
    wall_s: float = 0.0
    parts: int = 0
    file: int = 0
    position: int = 0
    consumed: dict[str, int] = field(default_factory=dict)
    whole: dict[str, Any] = field(default_factory=dict)
    timings: dict[str, Timing] = field(default_factory=dict)


class Log:
    """A chunk log in the directory ``path``."""

    def __init__(self, path: str, spec: Spec, checkpoint: Checkpoint) -> None:
        self.path = path
        self.spec = spec
        self.checkpoint = checkpoint

    @classmethod
    def create(cls, path: str, spec: Spec) -> "Log":
        """Create an empty log. The directory may exist, but must not contain a log."""
        os.makedirs(path, exist_ok=True)
        _write_json(os.path.join(path, SPEC_FILE), asdict(spec))
        log = cls(path, spec, Checkpoint())
        log.save()
        return log

    @classmethod
    def open(cls, path: str) -> "Log":
        """Open a log. Raises UsageError if there is no log, Damaged, UnknownFormat."""
        where = os.path.join(path, SPEC_FILE)
        try:
            fields = _read_json(where)
            if fields.get("format") != FORMAT:
                raise UnknownFormat.of(
                    where, "log format", fields.get("format"), FORMAT, "collect it again"
                )
            fields["datasets"] = tuple(Dataset(**dataset) for dataset in fields["datasets"])
            fields["chunkings"] = tuple(fields["chunkings"])
            spec = Spec(**fields)
            state = _read_json(os.path.join(path, CHECKPOINT_FILE))
            timings = {name: Timing(**timing) for name, timing in state.pop("timings").items()}
            scan = ScanState(**state.pop("scan", {}))
            return cls(path, spec, Checkpoint(**state, scan=scan, timings=timings))
        except FileNotFoundError:
            raise UsageError(f"{path}: has no chunk log; use the directory of a study") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Damaged(
                f"{path}: the chunk log cannot be decoded ({error}); collect it again"
            ) from error

    @staticmethod
    def exists(path: str) -> bool:
        return os.path.exists(os.path.join(path, SPEC_FILE))

    def save(self) -> None:
        """Replace the checkpoint by the current one."""
        _write_json(os.path.join(self.path, CHECKPOINT_FILE), asdict(self.checkpoint))

    def file_parts(self) -> list[str]:
        """Return the paths of the table of files; all of them are valid after the scan."""
        directory = os.path.join(self.path, "files")
        return [os.path.join(directory, name) for name in sorted(os.listdir(directory))]

    def parts(self, *table: str) -> list[str]:
        """Return the paths of the valid parts of a table, oldest first."""
        directory = os.path.join(self.path, *table)
        if not os.path.isdir(directory):
            return []
        valid = [name for name in os.listdir(directory) if _number(name) <= self.checkpoint.parts]
        return [os.path.join(directory, name) for name in sorted(valid)]

    def size_bytes(self) -> int:
        """Return the size of the log on disk."""
        return sum(
            os.stat(os.path.join(directory, name)).st_size
            for directory, _, names in os.walk(self.path)
            for name in names
        )

    def begin(self) -> None:
        """Continue from the last checkpoint: remove parts that were written after it."""
        state = self.checkpoint
        state.collected_s = state.collected_s or time.time()
        for directory, _, names in os.walk(self.path):
            last = state.parts
            if os.path.basename(directory) == "files":
                if state.scanned:
                    continue
                last = state.scan.parts
            for name in names:
                if name.startswith("part-") and _number(name) > last:
                    os.unlink(os.path.join(directory, name))

    def discard(self) -> None:
        """Remove all files of the log."""
        for name in os.listdir(self.path):
            path = os.path.join(self.path, name)
            if name in ("files", "whole", "chunks", "failures"):
                shutil.rmtree(path)
            elif name.endswith(".json"):
                os.unlink(path)


def write_part(log: str, table: Sequence[str], number: int, columns: Columns) -> None:
    """Write a part of a table of the log at that path. Raises OSError.

    The part is valid only after a checkpoint counts it.
    """
    # An empty column of paths has no type of its own.
    rows = "* REPLACE (path::BLOB AS path)" if "path" in columns else "*"
    try:
        with part_database().cursor() as database:
            database.register("part", dict(columns))
            database.execute(
                f"COPY (SELECT {rows} FROM part) TO '{quoted(part_path(log, table, number))}'"
                " (FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1, USE_TMP_FILE false)"
            )
    except duckdb.IOException as error:
        raise OSError(str(error)) from error


@cache
def part_database() -> duckdb.DuckDBPyConnection:
    """A database for parts; each thread uses a cursor. Opening it takes as long as writing ten
    thousand rows."""
    return connect(_MEMORY_MB, threads=1)


def part_path(log: str, table: Sequence[str], number: int) -> str:
    """Return the path of a part, and create its directory."""
    directory = os.path.join(log, *table)
    os.makedirs(directory, exist_ok=True)
    return os.path.join(directory, f"part-{number:05d}.parquet")


def logged_share(sample: float) -> float:
    """Return the fraction of distinct chunks that the log of a sampled collection has."""
    return min(1.0, _LOGGED_PER_MEASURED * sample)


def quoted(text: str) -> str:
    """Return the inside of an SQL string literal."""
    return text.replace("'", "''")


def _number(name: str) -> int:
    return int(name.removeprefix("part-").removesuffix(".parquet"))


def _read_json(path: str) -> dict[str, Any]:
    with open(path, encoding="utf-8") as file:
        value: dict[str, Any] = json.load(file)
    return value


def _write_json(path: str, value: dict[str, Any]) -> None:
    temporary = path + ".new"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
