"""Samples of a complete log: what a collection with ``--sample`` would have logged.

For measuring how good estimates are, over many salts, without reading anything again.
"""

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace

from analysis.collection.chunk_log import HOLE_MARK, NOT_MEASURED, Log, write_part
from analysis.collection.connection import connect
from analysis.collection.log_lanes import Selection

_MEMORY_MB = 512


def resample(
    log: Log, path: str, sample: float, salt: int, chunkings: Sequence[str] | None = None
) -> Log:
    """A new log at ``path`` with a sample of the chunks of a complete, unsampled log."""
    assert log.checkpoint.complete and log.spec.sample == 1
    names = tuple(chunkings or log.spec.chunkings)
    spec = replace(log.spec, sample=sample, salt=salt, chunkings=names)
    new = Log.create(path, spec)
    new.checkpoint = replace(log.checkpoint)
    new.save()
    for table in ("files", "whole", "failures"):
        if os.path.isdir(os.path.join(log.path, table)):
            shutil.copytree(os.path.join(log.path, table), os.path.join(path, table))
    for name in names:
        _sample_chunks(log, path, name, Selection(sample, salt))
    return new


def _sample_chunks(log: Log, path: str, chunking: str, selection: Selection) -> None:
    table = ("chunks", f"chunking={chunking}")
    for number, part in enumerate(log.parts(*table), 1):
        with connect(_MEMORY_MB, threads=1) as database:
            columns = database.execute(
                "SELECT * FROM read_parquet(?, hive_partitioning = false)", [part]
            ).fetchnumpy()
        blank = (columns["fp_high"] == 0) & (columns["fp_low"] <= HOLE_MARK)
        keep = selection.logged(columns["fp_low"]) | blank
        measured = selection.measured(columns["fp_low"]) | blank
        if log.spec.compression_level:
            columns["compressed_bytes"][~measured] = NOT_MEASURED
        kept = {name: values[keep] for name, values in columns.items()}
        write_part(path, table, number, kept)
