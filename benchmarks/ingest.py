"""Ingest against borg and restic: the same data, in one run, on the same file system.

    python -m benchmarks.ingest [--runs N] [--cold] [--json FILE] DATASET

For each program: the data set is taken in (first ingest), then a second copy of every file that
lies beside it (all duplicates). Each program sees files of its own names and inodes, so none can
skip a file because it knows it. dedupd works on a copy, because it punches the files.

Policy: every file is taken, however young and small, as the others do. What dedupd still leaves
plain is counted in full beside its store. Needs root, and about six times the data set in space.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dedupd.units import MIB, format_size

BORG_OPTIONS = ("--compression", "zstd,3", "--chunker-params", "buzhash,15,17,16,4095")
"""Chunks of 32 to 128 KiB and zstd 3, as dedupd's default."""

FIRST, SECOND = "first", "second"


@dataclass(frozen=True, slots=True)
class Measured:
    """One command, as the kernel accounts for it (all threads, largest process)."""

    wall_s: float
    cpu_s: float
    memory_bytes_peak: int


@dataclass(frozen=True, slots=True)
class Ingest:
    """One program's way through the data set. Sizes are in bytes on the disk."""

    first: Measured
    second: Measured
    stored_bytes: int
    """After the first ingest: the store, and what is left beside it."""
    plain_bytes: int
    """Part of ``stored_bytes`` that no program's store holds: files that stay as they are."""
    grown_bytes: int
    """What the duplicates added."""
    details: dict[str, Any] = field(default_factory=dict)


class Failed(Exception):
    """A program did not do what it was asked; the message has its output."""


def measure(command: list[str], environment: Mapping[str, str], log: Path) -> Measured:
    """Run a command to its end. Raises Failed."""
    with open(log, "wb") as output:
        began = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **environment}
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        tail = log.read_text(errors="replace")[-2000:]
        raise Failed(f"{' '.join(command)}: exit status {process.returncode}\n{tail}")
    return Measured(wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def prepare(tree: Path, cold: bool) -> None:
    """Nothing waits to be written, and the tree's pages are all in memory, or none are."""
    os.sync()
    if cold:
        Path("/proc/sys/vm/drop_caches").write_text("3\n")
        return
    buffer = bytearray(4 * MIB)
    for directory, _names, files in os.walk(tree):
        for name in files:
            with open(os.path.join(directory, name), "rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass


def logical_bytes(tree: Path) -> int:
    return sum(os.lstat(path).st_size for path in _files(tree))


def allocated_bytes(tree: Path) -> int:
    return sum(os.lstat(path).st_blocks * 512 for path in _files(tree))


def _files(tree: Path) -> list[str]:
    return [
        os.path.join(directory, name) for directory, _, names in os.walk(tree) for name in names
    ]


def copy(dataset: Path, to: Path) -> None:
    """A copy that shares no block with the data set, also where the file system could."""
    subprocess.run(["cp", "-a", "--reflink=never", str(dataset), str(to)], check=True)


# --- the programs -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setting:
    """What a run works with: a scratch directory, two copies of the data set, the cache's state."""

    work: Path
    sources: Path
    cold: bool

    def take_in(
        self, which: str, command: list[str], environment: Mapping[str, str], tree: Path
    ) -> Measured:
        prepare(tree, self.cold)
        return measure(command, environment, self.work / f"{which}.log")


def dedupd(setting: Setting) -> Ingest:
    program = [sys.executable, "-m", "dedupd.cli.main"]
    volume = setting.work / "volume"
    volume.mkdir()
    for which in (FIRST, SECOND):
        copy(setting.sources / which, volume / which)
    setup = [*program, "enable", str(volume), "--min-age", "0s", "--min-size", "1"]
    measure(setup, {}, setting.work / "enable.log")

    def run(which: str) -> tuple[Measured, dict[str, Any]]:
        command = [*program, "run", "optimize", str(volume / which), "--json"]
        measured = setting.take_in(which, command, {}, volume / ".dedupd/data" / which)
        return measured, json.loads((setting.work / f"{which}.log").read_text())

    def occupied(which: str) -> tuple[int, int]:
        stored = allocated_bytes(volume / ".dedupd/store")
        return stored, allocated_bytes(volume / ".dedupd/data" / which)

    first, first_report = run(FIRST)
    stored, plain = occupied(FIRST)
    second, second_report = run(SECOND)
    stored_later, plain_later = occupied(SECOND)
    details = {"first": first_report, "second": second_report}
    grown = stored_later - stored + plain_later
    return Ingest(first, second, stored + plain, plain, grown, details)


def borg(setting: Setting) -> Ingest:
    repository = setting.work / "borg"
    environment = {
        "BORG_BASE_DIR": str(setting.work / "borg-home"),
        "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes",
    }
    setup = ["borg", "init", "--encryption", "none", str(repository)]
    return _backup(
        setting,
        repository,
        environment,
        setup,
        lambda which, tree: ["borg", "create", *BORG_OPTIONS, f"{repository}::{which}", tree],
    )


def restic(setting: Setting) -> Ingest:
    repository = setting.work / "restic"
    environment = {
        "RESTIC_REPOSITORY": str(repository),
        "RESTIC_PASSWORD": "benchmark",
        "RESTIC_CACHE_DIR": str(setting.work / "restic-cache"),
    }
    return _backup(
        setting,
        repository,
        environment,
        ["restic", "init"],
        lambda _which, tree: ["restic", "backup", "--quiet", "--compression", "auto", tree],
    )


def _backup(
    setting: Setting,
    repository: Path,
    environment: Mapping[str, str],
    setup: list[str],
    command: Callable[[str, str], list[str]],
) -> Ingest:
    """A backup program: everything that it stores is in its repository."""
    measure(setup, environment, setting.work / "setup.log")
    measured, sizes = [], [allocated_bytes(repository)]
    for which in (FIRST, SECOND):
        tree = setting.sources / which
        measured.append(setting.take_in(which, command(which, str(tree)), environment, tree))
        sizes.append(allocated_bytes(repository))
    return Ingest(measured[0], measured[1], sizes[1] - sizes[0], 0, sizes[2] - sizes[1])


PROGRAMS: dict[str, Callable[[Setting], Ingest]] = {
    "dedupd": dedupd,
    "borg": borg,
    "restic": restic,
}


# --- the report -------------------------------------------------------------------------------


def version(program: str) -> str:
    command = [program, "--version" if program == "borg" else "version"]
    if program == "dedupd":
        command = [sys.executable, "-m", "dedupd.cli.main", "--version"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return result.stdout.strip().splitlines()[0]


def machine(work: Path) -> str:
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    kind = subprocess.run(
        ["findmnt", "-no", "FSTYPE", "-T", str(work)], capture_output=True, text=True, check=False
    )
    return f"{os.cpu_count()} × {model}, Linux {platform.release()}, {kind.stdout.strip()}"


def median(runs: list[Ingest], value: Callable[[Ingest], float]) -> float:
    return statistics.median(value(run) for run in runs)


def typical(measured: list[Measured]) -> Measured:
    """The median of each figure."""
    return Measured(
        statistics.median(one.wall_s for one in measured),
        statistics.median(one.cpu_s for one in measured),
        int(statistics.median(one.memory_bytes_peak for one in measured)),
    )


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


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare ingest with borg and restic.")
    parser.add_argument("dataset", type=Path, help="made by benchmarks.dataset")
    parser.add_argument("--work", type=Path, help="scratch directory (default: beside the data)")
    parser.add_argument("--runs", type=int, default=1, help="the table shows medians (default 1)")
    parser.add_argument("--cold", action="store_true", help="with an empty page cache")
    parser.add_argument("--programs", default=",".join(PROGRAMS), help="default: %(default)s")
    parser.add_argument("--json", type=Path, help="write every figure of every run here")
    arguments = parser.parse_args()
    dataset = arguments.dataset.resolve()
    work: Path = arguments.work or dataset.with_name(f"{dataset.name}.benchmark")
    chosen = [name for name in arguments.programs.split(",") if name]
    for name in list(chosen):
        if name != "dedupd" and shutil.which(name) is None:
            print(f"{name} is not installed; going on without it", file=sys.stderr)
            chosen.remove(name)
    work.mkdir()
    try:
        size_bytes = logical_bytes(dataset)
        sources = work / "sources"
        sources.mkdir()
        for which in (FIRST, SECOND):
            copy(dataset, sources / which)
        results: dict[str, list[Ingest]] = {name: [] for name in chosen}
        for number in range(arguments.runs):
            for name in chosen:
                print(f"run {number + 1} of {arguments.runs}: {name}", file=sys.stderr)
                scratch = work / name
                scratch.mkdir()
                results[name].append(PROGRAMS[name](Setting(scratch, sources, arguments.cold)))
                shutil.rmtree(scratch)
        summary = [
            f"{format_size(size_bytes)} in {len(_files(dataset)):,} files, page cache"
            f" {'cold' if arguments.cold else 'warm'}, runs: {arguments.runs}, {machine(work)};"
            f" {', '.join(version(name) for name in chosen)}",
            "",
            markdown(results, size_bytes),
            "",
            *comparison(results),
        ]
    except Failed as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(work)
    print("\n".join(summary))
    if arguments.json:
        report = {name: [asdict(run) for run in runs] for name, runs in results.items()}
        text = json.dumps({"bytes": size_bytes, "runs": report, "summary": summary}, indent=2)
        arguments.json.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
