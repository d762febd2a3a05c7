"""How time and memory of optimizing grow, with the bytes and with the number of files.

    python -m benchmarks.scale [--gigabytes N,…] [--files N,…] [--json FILE] DIRECTORY

Below DIRECTORY, for each step: a data set (``analysis.dataset``) of that many gigabytes, or that
many files of 2 to 6 KiB, three in four of them distinct, is made, taken in by a new volume, then
looked at again when nothing has changed. CPU seconds count all threads; they say what the wall
clock would on a machine that has other things to do.
"""

import argparse
import random
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.measure import (
    DEDUPD,
    Measured,
    allocated_bytes,
    enabling,
    keep,
    logical_bytes,
    measure,
    paths_of,
    prepare,
)

FILES_PER_DIRECTORY = 1000


@dataclass(frozen=True, slots=True)
class Step:
    """What one size took. ``quiet`` is the run that finds nothing to do."""

    size_bytes: int
    files: int
    stored_bytes: int
    first: Measured
    quiet: Measured


def small_files(root: Path, count: int) -> None:
    """Files as of a mail server: small, a quarter of them copies."""
    rng = random.Random(count)
    line = b"Received: from host by host with ESMTPS id %016x; this line is like many others\n"
    for number in range(count):
        original = rng.randrange(number) if number and rng.random() < 0.25 else number
        content = random.Random(original)
        lines = [line % content.getrandbits(64) for _ in range(content.randrange(25, 75))]
        directory = root / f"{number // FILES_PER_DIRECTORY:04}"
        if number % FILES_PER_DIRECTORY == 0:
            directory.mkdir(parents=True)
        (directory / f"{number}.eml").write_bytes(b"".join(lines))


def step(directory: Path, make: list[str]) -> Step:
    """Make a data set with the module ``make``, take it in, and clear it away."""
    volume, log = directory / "volume", directory / "log"
    try:
        volume.mkdir()
        subprocess.run([sys.executable, "-m", *make, str(volume / "tree")], check=True)
        size_bytes, files = logical_bytes(volume), sum(1 for _ in paths_of(volume))
        subprocess.run(enabling(volume), check=True, stdout=subprocess.DEVNULL)
        prepare(volume / ".dedupd/data", cold=False)
        command = [*DEDUPD, "run", "optimize", str(volume), "--json"]
        first = measure(command, {}, log)
        stored = allocated_bytes(volume / ".dedupd/store")
        return Step(size_bytes, files, stored, first, measure(command, {}, log))
    finally:
        shutil.rmtree(volume, ignore_errors=True)


def table(steps: list[Step]) -> str:
    lines = [
        "| GB | files | stored GB | s | CPU s | CPU s per GB | CPU µs per file | peak MB"
        " | quiet run, s | peak MB |",
        "| ---: " * 10 + "|",
    ]
    for one in steps:
        gigabytes = one.size_bytes / 1e9
        figures = [
            f"{gigabytes:.2f}",
            f"{one.files:,}",
            f"{one.stored_bytes / 1e9:.2f}",
            f"{one.first.wall_s:.1f}",
            f"{one.first.cpu_s:.1f}",
            f"{one.first.cpu_s / gigabytes:.2f}",
            f"{one.first.cpu_s / one.files * 1e6:.0f}",
            f"{one.first.memory_bytes_peak / 1e6:.0f}",
            f"{one.quiet.wall_s:.2f}",
            f"{one.quiet.memory_bytes_peak / 1e6:.0f}",
        ]
        lines.append(f"| {' | '.join(figures)} |")
    return "\n".join(lines)


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--gigabytes", type=numbers, default=[1, 2, 4, 8])
    parser.add_argument("--files", type=numbers, default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--make", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.make is not None:
        small_files(options.directory, options.make)
        return
    # In processes of their own: what this one takes would count as memory of those it starts.
    makers = [
        *(["analysis.dataset", "--size", f"{size * 10**9}"] for size in options.gigabytes),
        *(["benchmarks.scale", "--make", f"{count}"] for count in options.files),
    ]
    steps = []
    for make in makers:
        steps.append(step(options.directory, make))
        print(table(steps[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    print(table(steps))
    keep([asdict(one) for one in steps], options.json)


if __name__ == "__main__":
    main()
