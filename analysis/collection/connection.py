"""Connections to DuckDB, with the limits that each has to keep."""

from typing import Any

import duckdb


def connect(
    memory_mb: int, spill: str | None = None, path: str = ":memory:", threads: int | None = None
) -> duckdb.DuckDBPyConnection:
    """A database in memory or at ``path``; data that does not fit goes to the directory ``spill``.

    ``threads`` None is one per core. Nothing is ever written to the terminal.
    """
    config: dict[str, Any] = {"memory_limit": f"{memory_mb}MB"}
    if spill is not None:
        config["temp_directory"] = spill
    if threads is not None:
        config["threads"] = threads
    connection = duckdb.connect(path, config=config)
    # It would draw into the program's own output, JSON or not, when a query takes long.
    connection.execute("SET enable_progress_bar = false")
    return connection
