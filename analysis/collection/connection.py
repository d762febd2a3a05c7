"""Connections to DuckDB with limits for memory and threads."""

from typing import Any

import duckdb


def connect(
    memory_mb: int, spill: str | None = None, path: str = ":memory:", threads: int | None = None
) -> duckdb.DuckDBPyConnection:
    """Open a database in memory or at ``path``; large data spills to the directory ``spill``.

    ``threads`` None means one per core. The connection never writes to the terminal.
    """
    config: dict[str, Any] = {"memory_limit": f"{memory_mb}MB"}
    if spill is not None:
        config["temp_directory"] = spill
    if threads is not None:
        config["threads"] = threads
    connection = duckdb.connect(path, config=config)
    # During long queries, it would write into the program's own output, including JSON.
    connection.execute("SET enable_progress_bar = false")
    return connection
