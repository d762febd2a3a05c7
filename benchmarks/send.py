"""Sending a volume, beside reading its containers, through a pipe, in one run.

    sudo python -m benchmarks.send [--work DIR] [--rounds N] [--warm] [--json FILE] DATASET|SIZE

Makes a volume below DIR of a copy of DATASET, or of so many bytes that nothing compresses
("1G"), and optimizes it. Then, in turns, `cat` of all containers of chunks and `dedupd send`, each
into a pipe that `cat` reads. All pages are dropped before each, or all are in memory (``--warm``).
Both are processes of their own, and the time is from their start to the end of the pipe. Needs
root.
"""

import argparse
import os
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.measure import DEDUPD, copy, keep, prepare
from benchmarks.volumes import new_volume, optimize
from dedupd_core.units import MIB, format_size, parse_size

NOISE_FILE_BYTES = 64 * MIB


def build(what: str, root: Path) -> None:
    """A volume of a data set, or of noise."""
    if Path(what).exists():
        copy(Path(what), root / "data")
    else:
        (root / "data").mkdir()
        for number in range(max(1, parse_size(what) // NOISE_FILE_BYTES)):
            (root / f"data/{number}").write_bytes(os.urandom(NOISE_FILE_BYTES))
    new_volume(root, min_size="1", min_file_saving=0)
    optimize(root)


def through_pipe(command: list[str]) -> tuple[float, int]:
    """Seconds, and how many bytes came."""
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        count = ["sh", "-c", "cat | wc -c"]
        found = subprocess.run(count, stdin=process.stdout, stdout=subprocess.PIPE, check=True)
    spent_s = time.perf_counter() - began
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit status {process.returncode}")
    return spent_s, int(found.stdout)


def measure(root: Path, rounds: int, *, is_cold: bool) -> dict[str, list[tuple[float, int]]]:
    """What each turn of each program took, and gave."""
    containers = sorted(map(str, (root / ".dedupd/store/chunks").glob("*.dat")))
    commands = {
        "cat": ["cat", *containers],
        "send": [*DEDUPD, "send", str(root)],
    }
    found: dict[str, list[tuple[float, int]]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            prepare(root / ".dedupd/store", is_cold)
            # Not what is measured: the programs themselves.
            subprocess.run([*command[:3], "--help"], capture_output=True, check=True)
            found[name].append(through_pipe(command))
    return found


def table(found: dict[str, list[tuple[float, int]]]) -> str:
    """Markdown."""
    lines = [
        "| | bytes | min s | median s | MB/s at the median |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    rates: dict[str, tuple[float, float]] = {}
    for name, turns in found.items():
        times, size = [spent_s for spent_s, _ in turns], turns[0][1]
        best, middle = min(times), median(times)
        rates[name] = size / best, size / middle
        figures = f"{best:.2f} | {middle:.2f} | {rates[name][1] / 1e6:,.0f}"
        lines.append(f"| {name} | {format_size(size)} | {figures} |")
    best, middle = (one / two for one, two in zip(rates["send"], rates["cat"], strict=True))
    lines += ["", f"send gives {best:.2f} of cat by the best turns, {middle:.2f} by the medians."]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", metavar="DATASET|SIZE")
    parser.add_argument("--work", type=Path, default=Path("/var/tmp"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.work, prefix="send-") as root:
        build(options.what, Path(root))
        found = measure(Path(root), options.rounds, is_cold=not options.warm)
    print(table(found))
    keep(found, options.json)


if __name__ == "__main__":
    main()
