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

from dedupd.config.policy import IndexChoice
from dedupd.format.volume_parameters import PRESETS
from dedupd.system.disk import Disk
from dedupd.volume.enable import enable
from dedupd.volume.volume import Volume
from jobs.frame.run import JobRun
from jobs.optimize.job import Optimize


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


def optimize(root: Path) -> Run:
    os.sync()
    cpu, wall = time.process_time(), time.perf_counter()
    with Volume.open(str(root)) as volume, volume.job_lock():
        report = Optimize(volume, JobRun("optimize")).run()
    sums, index = report.sums, report.index
    return Run(
        megabytes=round(sums["raw_bytes"] / 1e6, 1),
        chunks=sums["chunks"],
        new_chunks=sums["new_chunks"],
        cpu_s=round(time.process_time() - cpu, 2),
        wall_s=round(time.perf_counter() - wall, 2),
        reads_per_lookup=round(index.disk_reads / max(1, index.lookups), 4),
        index_bytes_per_chunk=round(index.memory_bytes / max(1, report.index_entries), 1),
    )


def runs(choice: IndexChoice, preset: str, work: Path, first: Path, later: Path) -> list[Run]:
    """The first run over a tree, and the second one."""
    root = Path(tempfile.mkdtemp(dir=work, prefix="index-store-"))
    try:
        shutil.copytree(first, root / "first", symlinks=True)
        values = {"min_age": "0s", "min_size": "1", "index": choice.value}
        enable(
            str(root),
            chunk_size=preset,
            fingerprint="blake3",
            policy_values=values,
            force=True,
            disk=Disk(),
        )
        found = [optimize(root)]
        shutil.copytree(later, root / ".dedupd/data/later", symlinks=True)
        return [*found, optimize(root)]
    finally:
        shutil.rmtree(root)


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
    for choice, found in taken.items():
        best = [min(rounds, key=lambda run: run.cpu_s) for rounds in zip(*found, strict=True)]
        table = [
            min(rounds, key=lambda run: run.cpu_s)
            for rounds in zip(*taken[IndexChoice.TABLE], strict=True)
        ]
        result[choice.value] = [
            {**asdict(run), "rate_of_the_table": round(other.cpu_s / run.cpu_s, 3)}
            for run, other in zip(best, table, strict=True)
        ]
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
