"""Optimizing a mounted volume against an unmounted one: the same files, in turns.

    python -m benchmarks.mounted [--runs N] [--tree DIRECTORY] [--files N] WORK

Takes ``--files`` files of 4 KiB (100,000), all different and compressible to a half (what saves
nothing would not be committed), or copies of the files of a tree.
Each run makes a volume anew below WORK, which should be on an ext4, XFS or btrfs of its own. Needs
root, and three times the data in space.
"""

import argparse
import random
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.measure import copy, dedupd, logical_bytes, machine, report_of
from benchmarks.volumes import new_volume

FILE_BYTES = 4096
DIRECTORY_FILES = 1000


def make_small_files(root: Path, count: int) -> None:
    rng = random.Random(5)
    for number in range(count):
        directory = root / f"d{number // DIRECTORY_FILES}"
        directory.mkdir(exist_ok=True)
        (directory / f"f{number}").write_text(rng.randbytes(FILE_BYTES // 2).hex())


def optimized(root: Path, is_mounted: bool) -> tuple[float, dict[str, float]]:
    """Seconds that a run took, and its sums."""
    subprocess.run(["sync", "--file-system", root], check=True)
    new_volume(root, min_size="1")
    if is_mounted:
        dedupd("mount", root)
    try:
        began = time.perf_counter()
        report = report_of("run", "optimize", root)
        return time.perf_counter() - began, report["sums"]
    finally:
        if is_mounted:
            dedupd("umount", root)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure optimizing under a mount.")
    parser.add_argument("work", type=Path, help="scratch directory, made and removed")
    parser.add_argument("--files", type=int, default=100_000, help="of 4 KiB (100000)")
    parser.add_argument("--tree", type=Path, help="take copies of these files instead")
    parser.add_argument("--runs", type=int, default=1, help="of each, in turns (1)")
    arguments = parser.parse_args()
    work: Path = arguments.work
    took: dict[bool, list[float]] = {False: [], True: []}
    size_bytes = 0
    work.mkdir()
    try:
        for _ in range(arguments.runs):
            for is_mounted, times in took.items():
                root = work / "volume"
                if arguments.tree:
                    copy(arguments.tree, root)
                else:
                    root.mkdir()
                    make_small_files(root, arguments.files)
                size_bytes = logical_bytes(root)
                wall_s, sums = optimized(root, is_mounted)
                times.append(wall_s)
                print(
                    f"{'mounted' if is_mounted else 'unmounted'}: {wall_s:.2f} s,"
                    f" {size_bytes / wall_s / 1e6:.1f} MB/s, commits {sums['commit_s']:.2f} s,"
                    f" syncs of the store {sums['sync_s']:.2f} s"
                )
                shutil.rmtree(root)
    finally:
        shutil.rmtree(work)
    ratio = statistics.median(took[False]) / statistics.median(took[True])
    print(f"mounted has {ratio:.2f} of the speed of unmounted; {machine(work.parent)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
