"""A soak of the service: users at work, jobs on short schedules, and everything killed at random.

    python -m benchmarks.soak DIR [--minutes 60]

Two volumes, each with two users who write, sync, rename, delete and compare, and one fio that
reads at random. They have a break now and then, so that jobs which give way to them have their
time. Service, mounts and jobs are killed again and again; in the last third nothing is killed, and
memory, descriptors and processes are watched. At the end every block of every file is compared with
what its user wrote, one user of each volume removes all its files, which has to show in the
descriptors, and the verify job checks every invariant. Prints JSON; exit status 1 if anything is
wrong, or some kind of job has never completed.
"""

import argparse
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from benchmarks.soak_figures import (
    Sample,
    growth,
    job_figures,
    lacking,
    leaks,
    sample,
)
from benchmarks.soak_users import Signals, be_user
from dedupd.service.client import ServiceClient
from dedupd_core.errors import DedupdError
from dedupd_core.system.disk import Disk
from dedupd_core.volume.enabling.enable import enable
from dedupd_core.volume.volume import Volume
from fuse_stub.mounts.mount_points import clear_dead_mount
from fuse_stub.mounts.mount_process import unmount
from jobs.check.verify import Verify
from jobs.frame.run import JobRun

REPOSITORY = Path(__file__).resolve().parent.parent

POLICY = """
min_age = "1s"
min_size = "1"
stop_when_busy = true
schedule_background = "every 5s"
schedule_throughput = "every 75s"
schedule_reconcile = "every 70s"
schedule_gc = "every 40s"
schedule_compact = "every 45s"
schedule_scrub = "every 60s"
schedule_full_scrub = "every 150s"
"""

KILL_EVERY_S = 12.0
WORK_S, BREAK_S = 60.0, 30.0
"""How long users work, and then don't: background jobs wait for them."""

SETTLE_S = 10.0
"""What the kernel forgets, it tells the mounts a little later."""


class Machine:
    """The service, its volumes, and what is done to them."""

    def __init__(self, base: Path, seed: int) -> None:
        self.base = base
        self.rng = random.Random(seed)
        self.config = base / "dedupd.toml"
        self.socket = base / "control.sock"
        self.config.write_text(f'socket = "{self.socket}"\njobs_max = 2\n')
        (base / "volumes.d").mkdir()
        self.roots = [self._volume(name) for name in ("one", "two")]
        self.kills = {"service": 0, "mount": 0, "job": 0}
        self.samples: dict[str, list[Sample]] = {}
        self.service: subprocess.Popen[bytes]
        self.start()

    def _volume(self, name: str) -> Path:
        root = self.base / name
        root.mkdir()
        enable(str(root), policy_values={}, force=True, disk=Disk())
        (root / ".dedupd/policy.toml").write_text(POLICY)
        (self.base / "volumes.d" / f"{name}.toml").write_text(f'path = "{root}"\n')
        return root

    def start(self) -> None:
        command = [sys.executable, "-m", "dedupd.cli.main", "serve", "--config", str(self.config)]
        with open(self.base / "service.log", "ab") as log:
            self.service = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
                stderr=log,
            )

    def client(self) -> ServiceClient | None:
        try:
            return ServiceClient(str(self.socket))
        except DedupdError:
            return None

    def mounts(self) -> dict[int, Path]:
        """The processes that serve volumes, each with the volume's path."""
        client = self.client()
        if client is None:
            return {}
        try:
            volumes = client.get("/v1/volumes")
        except DedupdError:
            return {}
        return {one["mount"]["pid"]: Path(one["path"]) for one in volumes if one["mount"]["pid"]}

    def job_pids(self) -> list[int]:
        with suppress(psutil.Error):
            return [
                child.pid
                for child in psutil.Process(self.service.pid).children()
                if "run" in child.cmdline()
            ]
        return []

    def kill_something(self) -> None:
        what = self.rng.choices(["service", "mount", "job"], [1, 2, 4])[0]
        pids = {
            "service": [self.service.pid],
            "mount": list(self.mounts()),
            "job": self.job_pids(),
        }[what]
        if not pids:
            return
        with suppress(ProcessLookupError):
            os.kill(self.rng.choice(pids), signal.SIGKILL)
            self.kills[what] += 1
        if what == "service":
            self.service.wait()
            self.start()

    def sample(self) -> None:
        processes: dict[int, Path | None] = {self.service.pid: None, **self.mounts()}
        for pid, root in processes.items():
            taken = sample(pid, root)
            if taken is not None:
                name = f"{'service' if root is None else 'mount'} {pid}"
                self.samples.setdefault(name, []).append(taken)

    def close(self) -> None:
        if self.service.poll() is None:
            self.service.terminate()
            self.service.wait(180)
        for root in self.roots:
            clear_dead_mount(str(root))
            with suppress(DedupdError):
                unmount(str(root))


@contextmanager
def fio(root: Path, seconds: int) -> Iterator["subprocess.Popen[bytes]"]:
    """Random reads of files of its own, which become stubs under its hands."""
    directory = root / "fio"
    directory.mkdir()
    command = ["fio", "--name=read", f"--directory={directory}", "--rw=randread", "--bs=4k"]
    command += ["--size=32m", "--nrfiles=4", "--time_based", f"--runtime={seconds}"]
    command += ["--rate_iops=50", "--continue_on_error=all", "--output=/dev/null"]
    nothing = subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=nothing, stderr=nothing, start_new_session=True)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGCONT)
        process.terminate()
        process.wait()


class Shifts:
    """Users and fio work and have their breaks together."""

    def __init__(self, signals: Signals, readers: "list[subprocess.Popen[bytes]]") -> None:
        self._signals = signals
        self._readers = readers
        self._began_s = time.monotonic()
        signals.at_work.set()

    def keep(self) -> None:
        """Send every user to the place for this moment."""
        at_work = (time.monotonic() - self._began_s) % (WORK_S + BREAK_S) < WORK_S
        if at_work == self._signals.at_work.is_set():
            return
        (self._signals.at_work.set if at_work else self._signals.at_work.clear)()
        for reader in self._readers:
            with suppress(ProcessLookupError):
                os.killpg(reader.pid, signal.SIGCONT if at_work else signal.SIGSTOP)


def soak(base: Path, minutes: float, seed: int) -> dict[str, Any]:
    machine = Machine(base, seed)
    context = multiprocessing.get_context("spawn")
    signals, results = Signals(*(context.Event() for _ in range(3))), context.Queue()
    users = []
    try:
        while len(machine.mounts()) < 2:
            time.sleep(0.1)
        for number, root in enumerate(machine.roots):
            for user in range(2):
                directory = root / f"u{user}"
                directory.mkdir()
                own_seed, leaves = seed * 100 + 10 * number + user, user == 1
                arguments = (directory, own_seed, leaves, signals, results)
                users.append(context.Process(target=be_user, args=arguments))
                users[-1].start()
        one, two = machine.roots
        with fio(one, int(minutes * 60) + 60) as first, fio(two, int(minutes * 60) + 60) as second:
            _disturb(machine, Shifts(signals, [first, second]), minutes * 60)
        signals.stop.set()
        signals.compare.set()
        reports = [results.get(timeout=600) for _ in users]
        for process in users:
            process.join()
        time.sleep(SETTLE_S)
        machine.sample()
    finally:
        signals.stop.set()
        signals.compare.set()
        machine.close()
    jobs = job_figures(machine.roots)
    return {
        "minutes": minutes,
        "kills": machine.kills,
        "users": {
            "steps": sum(one["steps"] for one in reports),
            "errors": sum(one["errors"] for one in reports),
            "compared_bytes": sum(one["compared_bytes"] for one in reports),
        },
        "wrong": [what for one in reports for what in one["wrong"]],
        "findings": [asdict(finding) for root in machine.roots for finding in _verify(root)],
        "jobs": {name: one.as_dict() for name, one in jobs.items()},
        "lacking": lacking(jobs),
        "leaks": leaks(machine.samples),
        "growth": growth(machine.samples),
        "processes_left": _left(base),
    }


def _disturb(machine: Machine, shifts: Shifts, seconds: float) -> None:
    """Kill for two thirds of the time, and only look on for the last."""
    began = next_s = time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        shifts.keep()
        if time.monotonic() < next_s:
            time.sleep(0.2)
            continue
        next_s = time.monotonic() + machine.rng.uniform(0.5, 1.5) * KILL_EVERY_S
        if passed < seconds * 2 / 3:
            machine.kill_something()
        else:
            machine.sample()


def _verify(root: Path) -> list[Any]:
    with Volume.open(str(root)) as volume, volume.job_lock(), volume.mount_lock():
        return list(Verify(volume, JobRun("verify")).run().findings)


def _left(base: Path) -> list[str]:
    """Processes that still have something to do with the directory."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        words = process.info["cmdline"] or []
        if any(word.startswith(str(base) + "/") for word in words):
            found.append(" ".join(words)[:200])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    base = arguments.directory.resolve()
    base.mkdir(parents=True)
    result = soak(base, arguments.minutes, arguments.seed)
    print(json.dumps(result, indent=2))
    sys.exit(any(result[name] for name in ("wrong", "findings", "lacking", "leaks")))


if __name__ == "__main__":
    main()
