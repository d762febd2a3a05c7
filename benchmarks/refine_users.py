"""What users notice of a refine run that gives way to them: latencies of reads of its own files.

    sudo python -m benchmarks.refine_users [--work DIR] [--mode full] [--rounds 3] SET

Makes a volume below DIR of a copy of SET (a directory), optimizes and mounts it. A user reads 4 KiB
at random from files of it, each read from the mount and not from the kernel's cache, with a pause
of 5 ms between two reads; rounds without and with `dedupd run --gentle refine` take turns. A run is
ended after each round, and the next one goes on where it stopped. Prints JSON.
"""

import argparse
import json
import signal
import tempfile
import time
from pathlib import Path

from benchmarks.backoff import READ_BYTES, Reader, percentiles, start_job
from benchmarks.measure import copy, files_of, processor_s, report_of
from benchmarks.volumes import mounted, new_volume

PAUSE_S = 0.005
FILES_MAX = 500
"""That are read, and stay open."""

AT_WORK_CPU_S = 1.5
"""A run that has taken so much is at work."""


def measure(root: Path, mode: str, rounds: int, seconds: float) -> dict[str, object]:
    files = [path for path in map(Path, files_of(root / "set")) if not path.is_symlink()]
    paths = sorted(path for path in files if path.stat().st_size >= READ_BYTES)
    reader = Reader(paths[:: len(paths) // FILES_MAX + 1], PAUSE_S)
    alone: list[float] = []
    beside: list[float] = []
    shares: list[float] = []
    reader.read_for(1.0)
    for _ in range(rounds):
        alone += reader.read_for(seconds)
        job = start_job(root, "refine", "--mode", mode)
        while processor_s(job.pid) < AT_WORK_CPU_S:
            assert job.poll() is None, "the set is too small: nothing is left to be refined"
            time.sleep(0.05)
        before_s = processor_s(job.pid)
        beside += reader.read_for(seconds)
        assert job.poll() is None, "the set is too small: the run has ended"
        shares.append(round((processor_s(job.pid) - before_s) / seconds, 3))
        job.send_signal(signal.SIGTERM)
        job.wait()
    reader.close()
    ratio = percentiles(beside)["p99"] / percentiles(alone)["p99"]
    return {
        "alone": percentiles(alone),
        "beside refine": percentiles(beside),
        "p99 ratio": round(ratio, 2),
        "processor share of the run meanwhile": shares,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("/var/tmp"))
    parser.add_argument("--mode", default="full")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("set", type=Path, metavar="SET")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.work, prefix="refine-users-") as name:
        root = Path(name)
        copy(arguments.set, root / "set")
        new_volume(root, refine=arguments.mode, refine_age="0s")
        report_of("run", "--here", "optimize", root)
        with mounted(root):
            found = measure(root, arguments.mode, arguments.rounds, arguments.seconds)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
