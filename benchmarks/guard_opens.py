"""What the guard below a mount costs programs that open files of the same file system.

    python -m benchmarks.guard_opens WORK [--files 500] [--rounds 40]

WORK is a directory on the file system; needs root and a kernel with permission events of fanotify.
One process opens small files in memory, reads and closes them, in turns without a guard, with one
that has the mount exempt, with one that has not, and in another mount of the same file system.
Prints JSON: the fastest round of each, in microseconds per file of wall and of processor time.
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dedupd_core import native

TURNS = 20
"""Times that a round opens each file: a round takes some 20 ms."""

NOBODY = b"00:00:0"
"""A lock that no process holds."""


@contextmanager
def guarded(directory: Path, *, exempt: bool) -> Iterator[None]:
    """Guard the file system of a directory."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        guard = native.system.OpenGuard(fd, [fd] if exempt else [], NOBODY)
        yield
        assert guard.is_open
        del guard
    finally:
        os.close(fd)


def round_us(directory: Path, files: int) -> tuple[float, float]:
    """Open, read and close all files, several times. Returns wall and processor time per file."""
    names = [f"{directory}/{number}" for number in range(files)]
    start_s, start_cpu_s = time.perf_counter(), time.thread_time()
    for _ in range(TURNS):
        for name in names:
            fd = os.open(name, os.O_RDONLY)
            os.read(fd, 4096)
            os.close(fd)
    wall_s, cpu_s = time.perf_counter() - start_s, time.thread_time() - start_cpu_s
    return wall_s / files / TURNS * 1e6, cpu_s / files / TURNS * 1e6


def measured(work: Path, beside: Path, files: int, rounds: int) -> dict[str, tuple[float, float]]:
    """Return the fastest round of each way."""
    found: dict[str, list[tuple[float, float]]] = {}
    for _ in range(rounds):
        found.setdefault("no guard", []).append(round_us(work, files))
        with guarded(work, exempt=True):
            found.setdefault("exempt mount", []).append(round_us(work, files))
            found.setdefault("other mount", []).append(round_us(beside, files))
        time.sleep(0.3)  # The threads of the guard end.
    with guarded(work, exempt=False):
        found["no mount exempt"] = [round_us(work, files) for _ in range(rounds)]
    return {way: (min(w for w, _ in all_), min(c for _, c in all_)) for way, all_ in found.items()}


def main() -> None:
    """Measure, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("--files", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=40)
    asked = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(dir=asked.work) as work,
        tempfile.TemporaryDirectory() as beside,
    ):
        for number in range(asked.files):
            Path(work, str(number)).write_bytes(b"small")
        subprocess.run(["mount", "--bind", work, beside], check=True)
        try:
            found = measured(Path(work), Path(beside), asked.files, asked.rounds)
        finally:
            subprocess.run(["umount", beside], check=True)
    rows = {way: {"wall_us": round(w, 2), "cpu_us": round(c, 2)} for way, (w, c) in found.items()}
    print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
