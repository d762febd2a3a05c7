"""Ingest against other deduplicating programs: the same data, in one run, on one file system.

    python -m benchmarks.ingest [--runs N] [--cold] [--output DIRECTORY] DATASET

For each program: the data set is taken in (first ingest), then a second copy of every file that
lies beside it (all duplicates). Each program sees files of its own names and inodes, so none can
skip a file because it knows it. dedupd works on a copy, because it punches the files. The program
`mounted` is dedupd with the volume mounted during its runs.

Policy: every file is taken, however young and small, as the others do. What dedupd still leaves
plain is counted in full beside its store. Needs root, and about six times the data set in space.
"""

import argparse
import json
import shutil
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

from benchmarks.measure import Failed, copy, files_of, logical_bytes, machine, typical
from benchmarks.programs import FIRST, PROGRAMS, SECOND, Ingest, Setting
from dedupd_core.units import format_size


def median(runs: list[Ingest], value: Callable[[Ingest], float]) -> float:
    return statistics.median(value(run) for run in runs)


def markdown(results: Mapping[str, list[Ingest]], size_bytes: int) -> str:
    """A table of medians. MB are 10^6 bytes."""
    lines = [
        "| | first MB/s | CPU s | MB/s per CPU | peak MB | stored MB | of it plain MB"
        " | all-duplicate MB/s | CPU s | peak MB | grown MB |",
        "| --- " * 11 + "|",
    ]
    for name, runs in results.items():
        first = typical([run.first for run in runs])
        second = typical([run.second for run in runs])
        figures = [
            size_bytes / first.wall_s / 1e6,
            first.cpu_s,
            size_bytes / first.cpu_s / 1e6,
            first.memory_bytes_peak / 1e6,
            median(runs, lambda run: run.stored_bytes) / 1e6,
            median(runs, lambda run: run.plain_bytes) / 1e6,
            size_bytes / second.wall_s / 1e6,
            second.cpu_s,
            second.memory_bytes_peak / 1e6,
            median(runs, lambda run: run.grown_bytes) / 1e6,
        ]
        shown = [f"{figure:,.1f}" if figure < 100 else f"{figure:,.0f}" for figure in figures]
        lines.append(f"| {name} | {' | '.join(shown)} |")
    return "\n".join(lines)


def comparison(results: Mapping[str, list[Ingest]]) -> list[str]:
    """dedupd against each of the others, in a sentence."""
    if "dedupd" not in results:
        return []
    mine = results["dedupd"]
    return [
        f"dedupd against {name}:"
        f" first ingest {_ratio(runs, mine, lambda run: run.first.wall_s):.2f}× as fast,"
        f" duplicates {_ratio(runs, mine, lambda run: run.second.wall_s):.2f}× as fast,"
        f" stored {_ratio(mine, runs, lambda run: run.stored_bytes):.3f}× as much."
        for name, runs in results.items()
        if name != "dedupd"
    ]


def _ratio(one: list[Ingest], two: list[Ingest], value: Callable[[Ingest], float]) -> float:
    return median(one, value) / median(two, value)


def installed(wanted: list[str]) -> list[str]:
    """Those of the programs that this machine has."""
    found = [name for name in wanted if PROGRAMS[name].is_installed()]
    for name in wanted:
        if name not in found:
            print(f"{name} is not installed; going on without it", file=sys.stderr)
    return found


def compare(
    dataset: Path, work: Path, names: list[str], runs: int, cold: bool
) -> dict[str, list[Ingest]]:
    """All programs once, then all again: what else the machine does hits each of them.

    Raises Failed.
    """
    work.mkdir()
    try:
        sources = work / "sources"
        sources.mkdir()
        for which in (FIRST, SECOND):
            copy(dataset, sources / which)
        results: dict[str, list[Ingest]] = {name: [] for name in names}
        for number in range(runs):
            for name in names:
                print(f"run {number + 1} of {runs}: {name}", file=sys.stderr)
                scratch = work / name
                scratch.mkdir()
                ingest = PROGRAMS[name].ingest(Setting(scratch, sources, cold))
                results[name].append(ingest)
                for which, took in ((FIRST, ingest.first), (SECOND, ingest.second)):
                    print(
                        f"  {which}: {took.wall_s:.1f} s, CPU {took.cpu_s:.1f} s,"
                        f" {took.stolen:.0%} of the processors stolen",
                        file=sys.stderr,
                    )
                shutil.rmtree(scratch)
        return results
    finally:
        shutil.rmtree(work)


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare ingest with other programs.")
    parser.add_argument("dataset", type=Path, help="made by analysis.dataset")
    parser.add_argument("--work", type=Path, help="scratch directory (default: beside the data)")
    parser.add_argument("--runs", type=int, default=1, help="the table shows medians (default 1)")
    parser.add_argument("--cold", action="store_true", help="with an empty page cache")
    parser.add_argument("--programs", default=",".join(PROGRAMS), help="default: %(default)s")
    parser.add_argument("--output", type=Path, help="for ingest.md and ingest.json")
    arguments = parser.parse_args()
    wanted = [name for name in arguments.programs.split(",") if name]
    if unknown := [name for name in wanted if name not in PROGRAMS]:
        parser.error(f"--programs: {', '.join(unknown)}: not among {', '.join(PROGRAMS)}")
    dataset = arguments.dataset.resolve()
    size_bytes, count = logical_bytes(dataset), len(files_of(dataset))
    work: Path = arguments.work or dataset.with_name(f"{dataset.name}.benchmark")
    names = installed(wanted)
    try:
        results = compare(dataset, work, names, arguments.runs, arguments.cold)
    except Failed as error:
        print(error, file=sys.stderr)
        return 1
    summary = [
        f"{format_size(size_bytes)} in {count:,} files, page cache"
        f" {'cold' if arguments.cold else 'warm'}, runs: {arguments.runs}, {machine(dataset)};"
        f" {', '.join(PROGRAMS[name].tell_version() for name in names)}",
        "",
        markdown(results, size_bytes),
        "",
        *comparison(results),
    ]
    print("\n".join(summary))
    if arguments.output:
        output: Path = arguments.output
        output.mkdir(parents=True, exist_ok=True)
        report = {name: [asdict(run) for run in runs] for name, runs in results.items()}
        text = json.dumps({"bytes": size_bytes, "runs": report, "summary": summary}, indent=2)
        (output / "ingest.json").write_text(text + "\n")
        (output / "ingest.md").write_text("\n".join(summary) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
