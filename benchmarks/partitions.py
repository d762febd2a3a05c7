"""Ingest with a small index, with partitions, and with both, on a store that is filled already.

Table 5 of seed 003 in our own program: for the table and for the filters, each with one partition
and with three. Half of a data set fills the store; what is measured
is the ingest of the other half together with a second copy of the first, and the reconciliation
after it.

    python -m benchmarks.partitions [--runs 3] [--ends] DATASET WORK

On a virtual machine whose host gives its processors to others now and then, only runs count in
which it did not. DATASET is made by ``analysis.dataset``; WORK must not exist, on the file system
to measure.
"""

import argparse
import os
import shutil
import statistics
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import STOLEN_MAX, processor_ticks, report_of, stolen_since
from benchmarks.volumes import new_volume
from dedupd_core.config.profiles import PROFILES

CONFIGURATIONS = (("table", 1), ("bloom", 1), ("table", 3), ("bloom", 3))


@dataclass(frozen=True, slots=True)
class Figures:
    """One measured ingest."""

    ingest_s: float
    reconcile_s: float
    cpu_s: float
    logical_bytes: int
    index_bytes: int
    peak_bytes: int
    stored_before_bytes: int
    """Before the reconciliation."""
    stored_bytes: int
    merged_chunks: int
    stolen: float
    """The share of the processors' time that a virtual machine's host gave to others meanwhile."""

    @property
    def rate(self) -> float:
        """MB/s, reconciliation included; MB are 10^6 bytes."""
        return self.logical_bytes / (self.ingest_s + self.reconcile_s) / 1e6

    @property
    def rate_by_cpu(self) -> float:
        """MB for each second of processor time, which a busy machine doesn't change as much."""
        return self.logical_bytes / self.cpu_s / 1e6


def files_of(dataset: Path) -> list[Path]:
    return sorted(p for p in dataset.rglob("*") if p.is_file() and not p.is_symlink())


def is_first_half(path: Path) -> bool:
    return zlib.crc32(os.fsencode(path)) % 2 == 0


def put(files: list[Path], dataset: Path, target: Path) -> None:
    for path in files:
        place = target / path.relative_to(dataset)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)


def measure(dataset: Path, work: Path, chunk_size: str, index: str, partitions: int) -> Figures:
    """Fill a store, then measure an ingest into it."""
    root = work / "volume"
    policy = {**PROFILES["general"], "min_size": "1", "index": index, "partitions": partitions}
    data = new_volume(root, chunk_size, **policy)
    files = files_of(dataset)
    first = [path for path in files if is_first_half(path.relative_to(dataset))]
    second = [path for path in files if not is_first_half(path.relative_to(dataset))]
    put(first, dataset, data / "first")
    report_of("run", "optimize", root)
    put(first, dataset, data / "again")
    put(second, dataset, data / "second")
    os.sync()
    ticks = processor_ticks()
    optimized = report_of("run", "optimize", root)
    before = stored_bytes(root)
    reconciled = report_of("run", "reconcile", root) if partitions > 1 else None
    stolen = stolen_since(ticks)
    if reconciled is not None:
        report_of("run", "gc", root)
        report_of("run", "compact", root)
    stored = stored_bytes(root)
    shutil.rmtree(root)
    reports = [optimized, *([reconciled] if reconciled else [])]
    return Figures(
        optimized["resources"]["wall_s"],
        reconciled["resources"]["wall_s"] if reconciled else 0.0,
        sum(report["resources"]["cpu_s"] for report in reports),
        optimized["logical_bytes"],
        optimized["index"]["memory_bytes"],
        max(report["resources"]["memory_bytes_peak"] for report in reports),
        before,
        stored,
        reconciled["merged"]["chunks"] if reconciled else 0,
        stolen,
    )


def stored_bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in (root / ".dedupd/store").rglob("*.dat"))


def table(results: dict[tuple[str, int], list[Figures]]) -> str:
    """Medians, as Markdown."""
    base = results["table", 1]
    lines = [
        "| index | partitions | MB/s | of the first | MB per CPU second | of the first"
        " | reconciling, s | index MB | peak MB | stored MB | of the first | reconciled |",
        "| --- " * 12 + "|",
    ]
    notes: list[str] = []
    for (index, partitions), runs in results.items():
        rate = statistics.median(figures.rate for figures in runs)
        by_cpu = statistics.median(figures.rate_by_cpu for figures in runs)
        ratio = rate / statistics.median(one.rate for one in base)
        ratio_by_cpu = by_cpu / statistics.median(one.rate_by_cpu for one in base)
        last = runs[-1]
        reconcile_s = statistics.median(figures.reconcile_s for figures in runs)
        lines.append(
            f"| {index} | {partitions} | {rate:.0f} | {ratio:.2f} | {by_cpu:.0f} |"
            f" {ratio_by_cpu:.2f} | {reconcile_s:.2f} | {last.index_bytes / 1e6:.1f} |"
            f" {last.peak_bytes / 1e6:.0f} | {last.stored_before_bytes / 1e6:.0f} |"
            f" {last.stored_before_bytes / base[-1].stored_before_bytes:.4f} |"
            f" {last.stored_bytes / 1e6:.0f} |"
        )
        seen = (f"{one.rate:.0f} ({one.rate_by_cpu:.0f})" for one in runs)
        notes.append(f"{index}, {partitions}: {', '.join(seen)}")
    return "\n".join([*lines, "", "MB/s of each run, and MB per CPU second:", *notes])


def in_turns(
    measured: Callable[[tuple[str, int]], Figures],
    chosen: tuple[tuple[str, int], ...],
    rounds: int,
    stolen_max: float,
) -> dict[tuple[str, int], list[Figures]]:
    """``rounds`` figures of each, in turns. Those that the host has disturbed do not count: there
    are up to three times as many rounds to make up for them."""
    results: dict[tuple[str, int], list[Figures]] = {one: [] for one in chosen}
    for _ in range(3 * rounds):
        for one in chosen:
            if len(results[one]) < rounds:
                figures = measured(one)
                is_calm = figures.stolen <= stolen_max
                stored = f"{figures.stored_before_bytes / 1e6:.1f} MB stored"
                rates = f"{figures.rate:.0f} MB/s, {figures.rate_by_cpu:.0f} by CPU"
                print(*one, rates, stored, f"{figures.stolen:.1%} stolen", sep=", ", flush=True)
                results[one] += [figures] if is_calm else []
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--chunk-size", default="64k")
    parser.add_argument(
        "--ends", action="store_true", help="only what differs most: table with 1, bloom with 3"
    )
    parser.add_argument(
        "--stolen-max",
        type=float,
        default=STOLEN_MAX,
        help="count only runs with as little (%(default)s)",
    )
    options = parser.parse_args()
    options.work.mkdir()
    try:
        chosen = (CONFIGURATIONS[0], CONFIGURATIONS[-1]) if options.ends else CONFIGURATIONS
        results = in_turns(
            lambda one: measure(options.dataset, options.work, options.chunk_size, *one),
            chosen,
            options.runs,
            options.stolen_max,
        )
        print(table(results))
    finally:
        shutil.rmtree(options.work)


if __name__ == "__main__":
    main()
