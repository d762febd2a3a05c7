"""Collections for the tests of the study, in a line."""

from collections.abc import Sequence
from pathlib import Path

from analysis.collection.chunk_log import Dataset, Log, Spec
from analysis.collection.chunkings import ALL
from analysis.collection.collector import collect
from analysis.study import Study, run_study


def spec_of(
    datasets: dict[str, Path],
    chunkings: Sequence[str] = ALL,
    sample: float = 1.0,
    salt: int = 0,
    level: int = 3,
) -> Spec:
    trees = tuple(Dataset(label, str(path)) for label, path in datasets.items())
    return Spec(trees, tuple(chunkings), sample, salt, level)


def collected(out: Path, spec: Spec) -> Log:
    """A complete log in ``out / "log"``."""
    out.mkdir(parents=True, exist_ok=True)
    log = Log.create(str(out / "log"), spec)
    collect(log, str(out))
    return log


def study_of(log: Log, *more: Log) -> Study:
    return run_study([log, *more], log.path + "/../database")
