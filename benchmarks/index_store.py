"""The indexes in a real store of small chunks: whole optimize runs, the same files, in turns.

    python -m benchmarks.index_store [--preset 4k] [--work DIR] [--rounds N] TREE [LATER]

For each index a volume is made of TREE and optimized; then come copies of TREE's files, or those of
LATER, and it is optimized again. Prints, for each run, the rate by CPU time and by the clock, what
the index counted, and how the CPU time compares with that of the table.
"""

import argparse
import json
import os
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.volumes import new_volume, optimize
from dedupd_core.config.policy import IndexChoice
from dedupd_core.format.volume_parameters import PRESETS


@dataclass(frozen=True, slots=True)
class Run:
    """One optimize run: CPU and wall seconds of all of it, and what it met."""

    megabytes: float
    chunks: int
    new_chunks: int
    cpu_s: float
    wall_s: float
    reads_per_lookup: float
    index_bytes_per_chunk: float


def measured(root: Path) -> Run:
    os.sync()
    cpu, wall = time.process_time(), time.perf_counter()
    report = optimize(root)
    sums, index = report.sums, report.index
    return Run(
        megabytes=round(sums.raw_bytes / 1e6, 1),
        chunks=sums.chunks,
        new_chunks=sums.new_chunks,
        cpu_s=round(time.process_time() - cpu, 2),
        wall_s=round(time.perf_counter() - wall, 2),
        reads_per_lookup=round(index.disk_reads / max(1, index.lookups), 4),
        index_bytes_per_chunk=round(index.memory_bytes / max(1, report.index_entries), 1),
    )


def runs(choice: IndexChoice, preset: str, work: Path, first: Path, later: Path) -> list[Run]:
    """The first run over a tree, and the second one."""
    with tempfile.TemporaryDirectory(dir=work, prefix="index-store-") as name:
        root = Path(name)
        shutil.copytree(first, root / "first", symlinks=True)
        data = new_volume(root, preset, min_size="1", index=choice.value)
        found = [measured(root)]
        shutil.copytree(later, data / "later", symlinks=True)
        return [*found, measured(root)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trees", type=Path, nargs="+")
    parser.add_argument("--preset", default="4k", choices=PRESETS)
    parser.add_argument("--work", type=Path, default=Path("."))
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    taken: dict[IndexChoice, list[list[Run]]] = {choice: [] for choice in IndexChoice}
    for _ in range(options.rounds):
        for choice, found in taken.items():
            trees = options.trees[0], options.trees[-1]
            found.append(runs(choice, options.preset, options.work, *trees))
    result = {}
    best = {
        choice: [min(rounds, key=lambda run: run.cpu_s) for rounds in zip(*found, strict=True)]
        for choice, found in taken.items()
    }
    for choice, runs_of in best.items():
        result[choice.value] = [
            {**asdict(run), "rate_of_the_table": round(other.cpu_s / run.cpu_s, 3)}
            for run, other in zip(runs_of, best[IndexChoice.TABLE], strict=True)
        ]
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
