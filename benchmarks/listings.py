"""What other users notice of a user who lists deletions without end: latencies of small writes.

    python -m benchmarks.listings DIR [--deletions 40000] [--loops 24] [--rounds 6] [--seconds 5]

Makes a volume in DIR, in which one user deletes copies of a stub, and mounts it. Another user
writes 100 bytes to a stub every 2 ms. Rounds without and with ``--loops`` processes that get the
attribute ``user.dedupd.deleted`` take turns, half of them by the user who deleted, half by a third
one, who has deleted nothing. Needs root. Prints JSON: percentiles in µs of each kind of round, and
the listings per second.
"""

import argparse
import json
import os
import random
import signal
import statistics
import sys
import time
from pathlib import Path

from benchmarks.volumes import mounted, new_volume, optimize

DELETER, WRITER, READER = 40001, 40002, 40003
STUB_BYTES = 1 << 20
WRITE_BYTES = 100
PAUSE_S = 0.002


def prepare(root: Path) -> None:
    """The volume, with a stub to copy and one to write to."""
    root.mkdir(parents=True)
    rng = random.Random(1)
    for name, uid in (("copied", DELETER), ("written", WRITER)):
        (root / name).write_bytes(rng.randbytes(STUB_BYTES // 2) * 2)
        os.chown(root / name, uid, uid)
    new_volume(root)
    optimize(root)


def as_user(uid: int) -> int:
    """Fork; returns 0 in the child, which is a process of the user."""
    pid = os.fork()
    if pid == 0:
        os.setgid(uid)
        os.setuid(uid)
    return pid


def delete(root: Path, count: int) -> None:
    """Copies of a stub by a user, which take no space."""
    directory = root / "trash"
    directory.mkdir(exist_ok=True)
    os.chown(directory, DELETER, DELETER)
    if pid := as_user(DELETER):
        assert os.waitpid(pid, 0)[1] == 0
        return
    source = os.open(root / "copied", os.O_RDONLY)
    for number in range(count):
        path = directory / f"file{number}"
        target = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        os.copy_file_range(source, target, STUB_BYTES, 0, 0)
        os.close(target)
        path.unlink()
    os._exit(0)


def listing(root: Path, uid: int, tally: int) -> int:
    """A process that lists without end, and writes a byte for each listing; returns its number."""
    if pid := as_user(uid):
        return pid
    while True:
        try:
            os.getxattr(root, "user.dedupd.deleted")
        except OSError:
            pass  # nothing of this user, or too many at once
        os.write(tally, b".")


def write_for(root: Path, seconds: float) -> list[float]:
    """Latencies of small writes to a stub, in µs."""
    rng, found = random.Random(2), list[float]()
    fd = os.open(root / "written", os.O_RDWR)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        offset = rng.randrange(STUB_BYTES - WRITE_BYTES)
        began = time.perf_counter()
        os.pwrite(fd, bytes(WRITE_BYTES), offset)
        found.append((time.perf_counter() - began) * 1e6)
        time.sleep(PAUSE_S)
    os.close(fd)
    return found


def round_of(root: Path, seconds: float, loops: int) -> tuple[list[float], float]:
    """The latencies of writes beside ``loops`` listing processes, and listings per second."""
    tally, theirs = os.pipe()
    os.set_blocking(tally, False)
    pids = [listing(root, READER if at % 2 else DELETER, theirs) for at in range(loops)]
    try:
        found = write_for(root, seconds)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    os.close(theirs)
    count = 0
    while part := os.read(tally, 1 << 16):
        count += len(part)
    os.close(tally)
    return found, count / seconds


def percentiles(found: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(found, n=100)
    return {"p50": round(cuts[49]), "p90": round(cuts[89]), "p99": round(cuts[98])}


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure writes beside listings of deletions.")
    parser.add_argument("base", type=Path, help="scratch directory, made")
    parser.add_argument("--deletions", type=int, default=40_000, help="of one user (40000)")
    parser.add_argument("--loops", type=int, default=24, help="processes that list (24)")
    parser.add_argument("--rounds", type=int, default=6, help="of each kind, in turns (6)")
    parser.add_argument("--seconds", type=float, default=5.0, help="of a round (5)")
    arguments = parser.parse_args()
    root: Path = arguments.base / "volume"
    prepare(root)
    latencies: dict[str, list[float]] = {"quiet": [], "listing": []}
    rates = []
    with mounted(root):
        delete(root, arguments.deletions)
        for _ in range(arguments.rounds):
            for kind, loops in (("quiet", 0), ("listing", arguments.loops)):
                found, rate = round_of(root, arguments.seconds, loops)
                latencies[kind] += found
                rates += [rate] if loops else []
    result = {kind: percentiles(found) for kind, found in latencies.items()}
    ratio = result["listing"]["p99"] / result["quiet"]["p99"]
    rate = round(statistics.fmean(rates))
    print(json.dumps({**result, "p99_ratio": round(ratio, 2), "listings_per_s": rate}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
