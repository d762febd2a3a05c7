"""What users wait for while the space of a deleted folder comes back by itself.

    sudo python -m benchmarks.space_back DIR [--mib 4096] [--rounds 3] [--quiet-seconds 30]

Each round makes a volume on a loop device below DIR, of which a folder of stubs takes 40 %, fills
it up to 95 %, and starts the service. Once it has looked for garbage and optimized, and has
nothing more to do, one user makes calls for a while: it asks for names that the mount
has to look up, reads 4 KiB of a stub and writes 4 KiB to a plain file. Then the folder is
deleted, and from then on the user's calls are timed until 90 % of its space is back, and once more
when the service has nothing to do: two quiet times differ as well, and tell how much of a ratio is
chance. Prints JSON: seconds to that, milliseconds of the 99th percentile of each call in each
round, and the ratios of their medians; exit status 1 where the space took over two minutes. Needs
root, and DIR twice the size.
"""

import argparse
import json
import multiprocessing
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from dedupd.service.space import LOOK_S
from dedupd_core.units import KIB
from tests.support.crash import ext4
from tests.support.service import ServiceLab, eventually, free_bytes, service_lab

STUBS, STUB_BYTES = 16, 8 << 20
CALL_BYTES = 4096
CALLER = 65534

Waits = dict[str, list[float]]
"""Milliseconds of each call."""

BACK_S_MAX = 120.0
FOLDER, TAKEN, BACK = 0.4, 0.95, 0.9
WARM_S = 10.0
PAUSE_S = 0.002
"""Between the calls: the time that matters lasts some seconds, and is to have thousands of them."""

ASK_S = 0.1
GIVE_UP_S = 2 * BACK_S_MAX
FILE_BYTES = 512 * KIB

EVERY_CALL = "every call"
BEFORE, MEANWHILE, AFTER = "before", "meanwhile", "after"


@contextmanager
def volume(view: Path, machine: ServiceLab) -> Iterator[Path]:
    """A served volume that is nearly full, with the policy of a new one but for what is taken."""
    lab = machine.add_volume(policy='reserve = "0"\n')
    rng = random.Random(1)
    total = os.statvfs(view).f_blocks * os.statvfs(view).f_frsize
    for number in range(STUBS):
        half = rng.randbytes(STUB_BYTES // 2)
        lab.put(f"stubs/{number}", half + half)
    for number in range(int(FOLDER * total) // FILE_BYTES):
        lab.put(f"folder/{number // 100}/{number}", rng.randbytes(FILE_BYTES))
    lab.optimize()
    # Beside the volume: nothing of it is to be deduplicated.
    ballast = free_bytes(view) - int(total * (1 - TAKEN))
    subprocess.run(["fallocate", "-l", str(ballast), view / "ballast"], check=True)
    text = (lab.base / "policy.toml").read_text()
    lab.write_policy(re.sub("(?m)^(space_low|space_critical|keep_deleted) = .*\n", "", text))
    os.sync()
    machine.start()
    tasks = ("gc", "throughput")
    eventually(
        lambda: all(machine.view(lab)["tasks"][name]["last"] for name in tasks), "the first tasks"
    )
    eventually(lambda: is_idle(machine), "an idle service")
    callers = lab.root / "callers"
    callers.mkdir()
    os.chown(callers, CALLER, CALLER)
    yield lab.root
    machine.stop()
    machine.verify()


def is_idle(machine: ServiceLab) -> bool:
    """Whether no job is running or queued, for some looks in a row of the service at the space."""
    for _ in range(3):
        jobs = machine.client.jobs(1)
        if jobs["running"] or jobs["waiting"]:
            return False
        time.sleep(LOOK_S)
    return True


def call(view: Path, stop: Event, queue: "multiprocessing.Queue[Waits]") -> None:
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
        time.sleep(PAUSE_S)
    queue.put(waits)


@contextmanager
def timed(view: Path, waits: Waits) -> Iterator[None]:
    """Adds to ``waits`` the milliseconds of the calls that a user makes during the block."""
    stop = multiprocessing.Event()
    queue: multiprocessing.Queue[Waits] = multiprocessing.Queue()
    caller = multiprocessing.Process(target=call, args=(view, stop, queue))
    caller.start()
    try:
        yield
    finally:
        stop.set()
        for name, found in queue.get(timeout=60).items():
            waits.setdefault(name, []).extend(found)
        caller.join()


def ask_for_space(view: Path, longest_s: float, wanted: int | None = None) -> None:
    """Until so many bytes are free; in the quiet times too, since it is work for the mount."""
    end = time.monotonic() + longest_s
    while time.monotonic() < end:
        free = free_bytes(view)
        if wanted is not None and free >= wanted:
            return
        time.sleep(ASK_S)


def measure(base: Path, mib: int, quiet_s: float) -> tuple[float, dict[str, Waits]]:
    """Seconds until the space was back, and the user's calls in each of the three times."""
    waits: dict[str, Waits] = {BEFORE: {}, MEANWHILE: {}, AFTER: {}}
    with ExitStack() as stack:
        view = stack.enter_context(ext4(base, mib, ("-m", "0")))
        machine = stack.enter_context(service_lab(view))
        root = stack.enter_context(volume(view, machine))
        with timed(root, {}):
            time.sleep(WARM_S)  # what a user reads all the time is in memory
        with timed(root, waits[BEFORE]):
            ask_for_space(root, quiet_s)
        free = free_bytes(root)
        folder = sum(len(names) for _, _, names in os.walk(root / "folder")) * FILE_BYTES
        began = time.monotonic()
        shutil.rmtree(root / "folder")
        wanted = free + int(BACK * folder)
        if free_bytes(root) >= wanted:
            raise RuntimeError("the folder was not in the store")
        with timed(root, waits[MEANWHILE]):
            ask_for_space(root, GIVE_UP_S, wanted)
            seconds = time.monotonic() - began
        eventually(lambda: is_idle(machine), "an idle service")
        with timed(root, waits[AFTER]):
            ask_for_space(root, quiet_s)
    return seconds, waits


def p99s(rounds: list[dict[str, Waits]], when: str, name: str) -> list[float]:
    """Milliseconds, by rounds."""
    found = []
    for waits in rounds:
        calls = waits[when].values() if name == EVERY_CALL else [waits[when][name]]
        times_ms = sorted(chain.from_iterable(calls))
        found.append(round(times_ms[int(0.99 * len(times_ms))], 3))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Time users beside space that comes back.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--mib", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quiet-seconds", type=float, default=30)
    options = parser.parse_args()
    rounds = []
    seconds = []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory(dir=options.directory) as base:
            os.chmod(base, 0o755)  # the user is nobody who made it
            found, waits = measure(Path(base), options.mib, options.quiet_seconds)
        seconds.append(round(found, 1))
        rounds.append(waits)
    rows: dict[str, Any] = {"seconds until 90 % is back": seconds}
    for name in (*rounds[0][MEANWHILE], EVERY_CALL):
        p99_ms = {when: p99s(rounds, when, name) for when in (BEFORE, MEANWHILE, AFTER)}
        middle = {when: max(statistics.median(found), 1e-3) for when, found in p99_ms.items()}
        rows[name] = {
            "p99": p99_ms,
            "ratio": round(middle[MEANWHILE] / middle[BEFORE], 2),
            "ratio of the quiet times": round(middle[AFTER] / middle[BEFORE], 2),
        }
    print(json.dumps(rows, indent=2))
    return int(max(seconds) > BACK_S_MAX)


if __name__ == "__main__":
    sys.exit(main())
