"""What users notice of a job that gives way to them: latencies of reads on the mount.

    python -m benchmarks.backoff DIR [--rounds 4] [--seconds 8] [--pause-s 0 0.005]

The first call makes a volume in DIR with stubs to read and a pile of files to optimize; further
calls use what is there. A user reads 4 KiB at random from the stubs, each read from the mount and
not from the kernel's cache, once without a pause and once with one of 5 ms between two reads.
Rounds without and with `dedupd run --gentle optimize` take turns in one run. Prints JSON:
percentiles in µs, and how much of a processor the job took meanwhile.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from benchmarks.measure import DEDUPD, processor_s
from benchmarks.volumes import mounted, new_volume, optimize

REPOSITORY = Path(__file__).resolve().parent.parent

STUBS, STUB_BYTES = 32, 8 << 20
PILE, PILE_BYTES = 200, 16 << 20
"""A job takes some 300 MB of it before its user comes, and some more beside the user."""

READ_BYTES = 4096
SETTLE_S = 2.0
"""The time in which a job is to give way; reads of that time are counted by themselves."""


def prepare(base: Path) -> None:
    """The volume: stubs of noise, and a pile of other noise that is not to be taken yet."""
    root = base / "volume"
    root.mkdir(parents=True)
    rng = random.Random(1)
    (root / "stubs").mkdir()
    (root / "pile").mkdir()
    for number in range(STUBS):
        (root / f"stubs/{number}").write_bytes(twice(rng, STUB_BYTES))
    data = new_volume(root)
    optimize(root)
    for number in range(PILE):
        (data / f"pile/{number}").write_bytes(twice(rng, PILE_BYTES))
    os.sync()


def twice(rng: random.Random, length: int) -> bytes:
    """Noise that comes twice in its file, which makes it worth storing."""
    return rng.randbytes(length // 2) * 2


class Reader:
    """A user, who reads at random from some files of one block at least."""

    def __init__(self, paths: Iterable[Path], pause_s: float) -> None:
        self._fds = [os.open(path, os.O_RDONLY) for path in paths]
        self._blocks = [os.fstat(fd).st_size // READ_BYTES for fd in self._fds]
        self._pause_s = pause_s
        self._files = list(zip(self._fds, self._blocks, strict=True))
        self._rng = random.Random(2)

    def close(self) -> None:
        for fd in self._fds:
            os.close(fd)

    def read_for(self, seconds: float) -> list[float]:
        """Latencies in µs."""
        found = []
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            ((fd, blocks),) = self._rng.choices(self._files, self._blocks)
            offset = self._rng.randrange(blocks) * READ_BYTES
            os.posix_fadvise(fd, offset, READ_BYTES, os.POSIX_FADV_DONTNEED)
            began = time.perf_counter()
            os.pread(fd, READ_BYTES, offset)
            found.append((time.perf_counter() - began) * 1e6)
            if self._pause_s:
                time.sleep(self._pause_s)
        return found


def percentiles(latencies: list[float]) -> dict[str, float]:
    ordered = sorted(latencies)
    return {
        name: round(ordered[min(len(ordered) - 1, int(len(ordered) * part))], 1)
        for name, part in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999))
    } | {"reads": len(ordered)}


def start_job(root: Path, *job: str) -> "subprocess.Popen[bytes]":
    command = [*DEDUPD, "run", "--gentle", *job, str(root)]
    return subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def measure(
    root: Path, view: Path, pause_s: float, rounds: int, seconds: float
) -> dict[str, object]:
    """Rounds without and with a job, in turns; the job is at work before its user comes."""
    reader = Reader((view / f"stubs/{number}" for number in range(STUBS)), pause_s)
    try:
        return _measure(reader, root, pause_s, rounds, seconds)
    finally:
        reader.close()


def _measure(
    reader: Reader, root: Path, pause_s: float, rounds: int, seconds: float
) -> dict[str, object]:
    alone: list[float] = []
    beside: list[float] = []
    arriving: list[float] = []
    gave_way: list[float] = []
    reader.read_for(1.0)
    for _ in range(rounds):
        alone += reader.read_for(seconds)
        job = start_job(root, "optimize")
        try:
            while processor_s(job.pid) < 1.0 and job.poll() is None:
                time.sleep(0.05)
            arriving += reader.read_for(SETTLE_S)
            if job.poll() is not None:
                raise SystemExit("the pile is used up: remove DIR, and begin again")
            before_s = processor_s(job.pid)
            beside += reader.read_for(seconds)
            gave_way.append((processor_s(job.pid) - before_s) / seconds)
        finally:
            job.send_signal(signal.SIGTERM)
            job.wait()
    ratio = percentiles(beside)["p99"] / percentiles(alone)["p99"]
    return {
        "pause_s": pause_s,
        "alone": percentiles(alone),
        "beside the job": percentiles(beside),
        "first 2 s after the user came": percentiles(arriving),
        "p99 ratio": round(ratio, 2),
        "processor share of the job meanwhile": [round(share, 3) for share in gave_way],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--pause-s", type=float, nargs="+", default=[0.0, 0.005])
    arguments = parser.parse_args()
    base = arguments.directory.resolve()
    root, view = base / "volume", base / "view"
    if not root.exists():
        prepare(base)
        view.mkdir()
        print("prepared; call it again to measure", file=sys.stderr)
        return
    with mounted(root, view):
        results = [
            measure(root, view, pause_s, arguments.rounds, arguments.seconds)
            for pause_s in arguments.pause_s
        ]
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
