"""The logs as a database: DuckDB over the Parquet files, which spills to disk if memory is low."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import fields
from importlib import resources
from typing import Any, TypeVar

from analysis.collection.chunk_log import HOLE_MARK, NOT_MEASURED, Log, Spec, logged_share, quoted
from analysis.collection.chunkings import BASIC_SUFFIX, DEFAULT
from analysis.collection.connection import connect
from dedupd_core.errors import UsageError

EVERYTHING = "all datasets"
"""The name of the sum of all datasets."""

MEMORY_LIMIT_MB = 1200
"""The memory of the database; more data spills to disk. The program uses a few hundred MB more."""

Row = TypeVar("Row")


class Database:
    """The logs, opened together. All files that it makes are in ``directory``."""

    def __init__(self, logs: Sequence[Log], directory: str, saving_min: float) -> None:
        self.logs = logs
        self.spec = _common_spec(logs)
        self.labels = _labels(logs)
        names = self.spec.chunkings
        self.default_chunking = DEFAULT if DEFAULT in names else names[0]
        self._directory = directory
        shutil.rmtree(directory, ignore_errors=True)
        os.makedirs(directory)
        self._connection = connect(
            MEMORY_LIMIT_MB,
            os.path.join(directory, "spill"),
            os.path.join(directory, "study.duckdb"),
        )
        self._connection.execute("SET preserve_insertion_order = false")
        self.set(
            sample=logged_share(self.spec.sample),
            measured=self.spec.sample,
            saving_min=saving_min,
            everything=EVERYTHING,
            chunkings=list(names),
            default_chunking=self.default_chunking,
            collected_s=max(log.checkpoint.collected_s for log in logs),
        )
        self._open_logs()
        self.run("names")
        self.run("prepare")

    def close(self) -> None:
        self._connection.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def set(self, **variables: Any) -> None:
        """Set variables that queries read with ``getvariable``."""
        for name, value in variables.items():
            self._connection.execute(f"SET VARIABLE {name} = ?", [value])

    def choose(self, chunking: str) -> None:
        """Make the views ``chunks`` and ``files_in_chunks`` show that chunking."""
        self.set(chunking=chunking)
        self._view_chunks("chunks", [chunking], blank=False)
        self._view_chunks("blank_rows", [chunking], blank=True)
        self.run("files_in_chunks")

    def choose_fine(self, chunking: str) -> None:
        """Make the view ``fine_chunks`` show that chunking."""
        self._view_chunks("fine_chunks", [chunking], blank=False)

    def choose_both(self) -> None:
        """Make ``both_chunkings`` show the default chunking with and without regression."""
        names = [self.default_chunking, self.default_chunking + BASIC_SUFFIX]
        self._view_chunks("both_chunkings", names, blank=False)

    def run(self, query: str) -> None:
        """Execute the statements of ``queries/<query>.sql``."""
        self._connection.execute(query_text(query))

    def rows(self, query: str, row: type[Row]) -> list[Row]:
        """Return the rows of a query as objects of the class whose fields are its columns."""
        result = self._connection.execute(query_text(query))
        names = [column[0] for column in result.description or ()]
        expected = [field.name for field in fields(row)]  # type: ignore[arg-type]
        assert names == expected, f"{query}: columns {names}, not {expected}"
        return [row(*values) for values in result.fetchall()]

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Execute any other statement."""
        return self._connection.execute(sql, list(parameters)).fetchall()

    def _open_logs(self) -> None:
        labels = [label for of_log in self.labels for label in of_log]
        self._connection.execute("CREATE TABLE datasets (dataset USMALLINT, label VARCHAR)")
        for number, label in enumerate(labels):
            self._connection.execute("INSERT INTO datasets VALUES (?, ?)", [number, label])
        self._view(
            "raw_files",
            [
                f"{_keys(self, at)}, * EXCLUDE (dataset, file),"
                " greatest(modified_ns, changed_ns) / 1e9 AS changed_s"
                f" FROM {_files(log)}"
                for at, log in enumerate(self.logs)
            ],
        )
        self._view("raw_whole", self._selects("whole", "* EXCLUDE (dataset, file)") or [_NO_WHOLE])
        self._view("failures", self._failures() or [_NO_FAILURES])

    def _selects(self, table: str, columns: str) -> list[str]:
        return [
            f"{_keys(self, at)}, {columns} FROM {_parquet(parts)}"
            for at, log in enumerate(self.logs)
            if (parts := log.parts(table))
        ]

    def _failures(self) -> list[str]:
        return [
            f"(dataset + {self.first_dataset(at)})::USMALLINT AS dataset, path, reason"
            f" FROM {_parquet(parts)}"
            for at, log in enumerate(self.logs)
            if (parts := log.parts("failures"))
        ]

    def _view_chunks(self, name: str, chunkings: Sequence[str], *, blank: bool) -> None:
        """Create a view of chunks. Ignores rows of files that could not be read completely."""
        selects = [
            f"{_keys(self, at)}, '{quoted(chunking)}' AS chunking, offset_bytes, length_bytes,"
            f" nullif(compressed_bytes, {NOT_MEASURED}) AS compressed_bytes, fp_high, fp_low"
            f" FROM {_parquet(parts)}"
            f" WHERE {'' if blank else 'NOT'} (fp_high = 0 AND fp_low <= {HOLE_MARK})"
            + (
                f" AND (file + {at << 32}) IN (SELECT file FROM files)"
                if log.parts("failures") or log.checkpoint.second_names
                else ""
            )
            for at, log in enumerate(self.logs)
            for chunking in chunkings
            if (parts := log.parts("chunks", f"chunking={chunking}"))
        ]
        self._view(name, selects or [_NO_CHUNKS])

    def _view(self, name: str, selects: Sequence[str]) -> None:
        union = " UNION ALL ".join(f"SELECT {select}" for select in selects)
        self._connection.execute(f"CREATE OR REPLACE TEMPORARY VIEW {name} AS {union}")

    def first_dataset(self, log: int) -> int:
        """Return the number of a log's first dataset among those of all logs."""
        return sum(len(labels) for labels in self.labels[:log])


_NO_WHOLE = (
    "0::USMALLINT AS dataset, 0::UBIGINT AS file, 0::UBIGINT AS length_bytes,"
    " 0::UBIGINT AS zero_bytes, 0::UBIGINT AS hole_bytes, 0::UBIGINT AS fp_high,"
    " 0::UBIGINT AS fp_low WHERE false"
)
_NO_CHUNKS = (
    "0::USMALLINT AS dataset, 0::UBIGINT AS file, '' AS chunking, 0::UBIGINT AS offset_bytes,"
    " 0::UBIGINT AS length_bytes, 0::UINTEGER AS compressed_bytes, 0::UBIGINT AS fp_high,"
    " 0::UBIGINT AS fp_low WHERE false"
)
_NO_FAILURES = "0::USMALLINT AS dataset, ''::BLOB AS path, '' AS reason WHERE false"


def query_text(name: str) -> str:
    """Return the text of ``queries/<name>.sql``."""
    return (resources.files("analysis") / "queries" / f"{name}.sql").read_text("utf-8")


def _keys(database: Database, log: int) -> str:
    """Return SQL for numbers of datasets and files that are unique over all logs."""
    return (
        f"(dataset + {database.first_dataset(log)})::USMALLINT AS dataset,"
        f" (file + {log << 32})::UBIGINT AS file"
    )


def _parquet(paths: Sequence[str]) -> str:
    listed = ", ".join(f"'{quoted(path)}'" for path in paths)
    return f"read_parquet([{listed}], hive_partitioning = false)"


def _files(log: Log) -> str:
    """Return SQL for the table of files, each under the first name that was found."""
    table = _parquet(log.file_parts())
    if not log.checkpoint.second_names:
        return table
    first = f"SELECT min(file) FROM {table} WHERE links > 1 GROUP BY dataset, inode"
    return f"(FROM {table} WHERE links = 1 OR file IN ({first}))"


def _common_spec(logs: Sequence[Log]) -> Spec:
    """Return the parameters of all logs. Raises UsageError for different or incomplete logs."""
    first = logs[0]
    for log in logs:
        if not log.checkpoint.complete:
            raise UsageError(
                f"{log.path}: the collection is not complete; to continue it, run the command again"
            )
        if log.spec.comparable() != first.spec.comparable() or log.spec.salt != first.spec.salt:
            raise UsageError(
                f"{log.path}: collected with other chunkings or sampling than {first.path};"
                " analyze these logs separately"
            )
    return first.spec


def _labels(logs: Sequence[Log]) -> list[list[str]]:
    """Return the names of the datasets of each log; repeated names get a number."""
    seen: dict[str, int] = {}
    labels = []
    for log in logs:
        of_log = []
        for dataset in log.spec.datasets:
            count = seen[dataset.label] = seen.get(dataset.label, 0) + 1
            of_log.append(dataset.label if count == 1 else f"{dataset.label} ({count})")
        labels.append(of_log)
    return labels
