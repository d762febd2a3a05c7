"""What a user waits for on a mount, while another user or a job works there.

    python -m benchmarks.waits WORK [--seconds 20] [--beside nothing fsync optimize]

Makes a volume below WORK, which should be on an ext4, XFS or btrfs of its own; needs root. One user
asks for names that the mount has to look up, reads 4 KiB of a stub and writes 4 KiB to a plain one,
some forty times a second each. Beside it nobody does anything, or another user writes and syncs in
128 loops, or an optimize run takes new files in. Prints JSON: milliseconds of each call.
"""

import argparse
import json
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path

from benchmarks.measure import DEDUPD, dedupd
from benchmarks.volumes import new_volume

LOOPS = 128
STUBS, STUB_BYTES = 16, 8 << 20
PILE, PILE_BYTES = 4000, 256 << 10
CALL_BYTES = 4096
PAUSE_S = 0.02
WRITER, CALLER = 65533, 65534

Waits = dict[str, list[float]]
"""Milliseconds of each call."""


def prepare(root: Path) -> None:
    """Stubs to read, and a pile of files that is to become stubs later."""
    rng = random.Random(1)
    root.mkdir(parents=True)
    (root / "stubs").mkdir()
    for number in range(STUBS):
        half = rng.randbytes(STUB_BYTES // 2)
        (root / f"stubs/{number}").write_bytes(half + half)
    new_volume(root, min_size="1")
    dedupd("run", "--here", "optimize", root)


def pile(view: Path, name: str) -> None:
    """Files that are half new, a part of them in small ones."""
    rng = random.Random(name)
    for number in range(PILE):
        directory = view / name / str(number // 200)
        directory.mkdir(parents=True, exist_ok=True)
        text = rng.randbytes(PILE_BYTES // 64).hex()
        (directory / str(number)).write_text(text * (32 if number % 10 == 0 else 1))


@contextmanager
def syncing(view: Path) -> Iterator[None]:
    """Another user, that writes and syncs in many loops."""
    place = view / "syncing"
    place.mkdir(mode=0o777, exist_ok=True)
    os.chown(place, WRITER, WRITER)
    children = []
    for number in range(LOOPS):
        child = os.fork()
        if child == 0:
            os.setgid(WRITER)
            os.setuid(WRITER)
            fd = os.open(place / str(number), os.O_RDWR | os.O_CREAT)
            while True:
                os.pwrite(fd, os.urandom(CALL_BYTES), 0)
                os.fsync(fd)
        children.append(child)
    try:
        yield
    finally:
        for child in children:
            os.kill(child, 9)
            os.waitpid(child, 0)


@contextmanager
def optimizing(root: Path, view: Path) -> Iterator[None]:
    """A run that takes new files in; it is stopped at the end."""
    pile(view, f"pile {time.time_ns()}")
    command = [*DEDUPD, "run", "--here", "optimize", str(root)]
    job = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        time.sleep(2)
        yield
        print(json.dumps({"the run went on to the end": job.poll() is None}), file=sys.stderr)
    finally:
        job.terminate()
        job.wait()


@contextmanager
def alone() -> Iterator[None]:
    yield


def call(view: Path, stop: Event, queue: "multiprocessing.Queue[Waits]", pause_s: float) -> None:
    """The user whose calls are timed."""
    os.setgid(CALLER)
    os.setuid(CALLER)
    rng = random.Random(os.getpid())
    stubs = [os.open(view / f"stubs/{number}", os.O_RDONLY) for number in range(STUBS)]
    plain = os.open(view / "callers/plain", os.O_RDWR | os.O_CREAT)

    def look_up() -> None:
        try:
            os.stat(view / f"callers/none {time.monotonic_ns()}")
        except FileNotFoundError:
            pass

    def read() -> None:
        offset = rng.randrange(STUB_BYTES // CALL_BYTES) * CALL_BYTES
        os.pread(rng.choice(stubs), CALL_BYTES, offset)

    def write() -> None:
        offset = rng.randrange(1000) * CALL_BYTES
        os.pwrite(plain, rng.randbytes(CALL_BYTES), offset)

    calls: dict[str, Callable[[], None]] = {"stat": look_up, "read": read, "write": write}
    waits: Waits = {name: [] for name in calls}
    while not stop.is_set():
        for name, one in calls.items():
            began = time.perf_counter()
            one()
            waits[name].append(1e3 * (time.perf_counter() - began))
        time.sleep(pause_s)
    queue.put(waits)


@contextmanager
def timed(view: Path, waits: Waits, pause_s: float = PAUSE_S) -> Iterator[None]:
    """Adds to ``waits`` the milliseconds of the calls that a user makes during the block."""
    stop = multiprocessing.Event()
    queue: multiprocessing.Queue[Waits] = multiprocessing.Queue()
    caller = multiprocessing.Process(target=call, args=(view, stop, queue, pause_s))
    caller.start()
    try:
        yield
    finally:
        stop.set()
        for name, found in queue.get(timeout=60).items():
            waits.setdefault(name, []).extend(found)
        caller.join()


def measure(view: Path, seconds: float) -> dict[str, dict[str, float]]:
    waits: Waits = {}
    with timed(view, waits):
        time.sleep(seconds)
    return {name: percentiles(found) for name, found in waits.items()}


def percentiles(waits: list[float]) -> dict[str, float]:
    waits = sorted(waits)
    at = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
    found = {name: round(waits[int(part * len(waits))], 2) for name, part in at.items()}
    return {**found, "max": round(waits[-1], 2), "calls": len(waits)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("--seconds", type=float, default=20)
    cases = ["nothing", "fsync", "optimize"]
    parser.add_argument("--beside", nargs="+", choices=cases, default=cases)
    options = parser.parse_args()
    root = view = options.work / "volume"
    prepare(root)
    dedupd("mount", root)
    try:
        (view / "callers").mkdir()
        os.chown(view / "callers", CALLER, CALLER)
        beside: dict[str, Callable[[], AbstractContextManager[None]]] = {
            "nothing": alone,
            "fsync": lambda: syncing(view),
            "optimize": lambda: optimizing(root, view),
        }
        found = {}
        for name in options.beside:
            with beside[name]():
                found[name] = measure(view, options.seconds)
            time.sleep(2)
        print(json.dumps(found, indent=2))
    finally:
        dedupd("umount", root)
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
