"""A soak of the service: users at work, jobs on short schedules, and everything killed at random.

    python -m benchmarks.soak DIR [--minutes 60]

Two volumes, each with two users who write, sync, rename, delete and compare, and one fio that reads
at random. Service, mounts and jobs are killed again and again; in the last third nothing is killed,
and memory, descriptors and processes are watched. At the end every block of every file is compared
with what its user wrote, and the verify job checks every invariant. Prints JSON; exit status 1 if
anything is wrong.
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
from dataclasses import asdict, dataclass, field
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import psutil

from dedupd.disk import Disk
from dedupd.enable import enable
from dedupd.errors import DedupdError
from dedupd.service.client import ServiceClient
from dedupd.volume import Volume
from fuse_stub.mount import unmount
from fuse_stub.points import clear_dead_mount
from jobs.frame import JobRun
from jobs.verify import Verify

REPOSITORY = Path(__file__).resolve().parent.parent

BLOCK_BYTES = 16 << 10
BLOCKS_MAX = 64
TAGS = 4000
"""Different blocks that there are: few enough for files to have them in common."""
FILES = 60

POLICY = """
min_age = "1s"
min_size = "1"
stop_when_busy = true
schedule_background = "every 5s"
schedule_throughput = "off"
schedule_reconcile = "every 70s"
schedule_gc = "every 40s"
schedule_compact = "every 45s"
schedule_scrub = "every 60s"
schedule_full_scrub = "every 150s"
"""

KILL_EVERY_S = 12.0
PAUSE_S = 0.03
"""Between two steps of a user: these users share the machine."""


def block(tag: int) -> bytes:
    """The block of a tag: its number, and bytes that follow from it."""
    return tag.to_bytes(8, "little") + random.Random(tag).randbytes(BLOCK_BYTES - 8)


@dataclass
class UserReport:
    """What a user has done and seen."""

    steps: int = 0
    errors: int = 0
    compared_bytes: int = 0
    wrong: list[str] = field(default_factory=list)


class User:
    """Knows of each of its files which blocks it may hold: one each, or two after an error."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._directory = directory
        self._rng = random.Random(seed)
        self._files: dict[str, list[set[int]]] = {}
        self._unsure: dict[tuple[str, str], list[set[int]]] = {}
        """Files by the two names that one of them has after a rename that failed."""
        self._next = 0
        self.report = UserReport()

    def work(self, stop: Event) -> None:
        while not stop.is_set():
            self.report.steps += 1
            try:
                self._step()
            except OSError:
                self.report.errors += 1
                time.sleep(0.2)
            time.sleep(PAUSE_S)

    def _step(self) -> None:
        choice = self._rng.random()
        if len(self._files) < FILES or choice < 0.1:
            self._create()
        elif choice < 0.3:
            self._overwrite()
        elif choice < 0.4:
            self._delete()
        elif choice < 0.5:
            self._rename()
        else:
            self.compare(self._rng.choice(list(self._files)))

    def _new_name(self) -> str:
        self._next += 1
        return f"f{self._next}"

    def _create(self) -> None:
        """A whole file under a temporary name, synced, then renamed."""
        tags = [self._rng.randrange(TAGS) for _ in range(self._rng.randint(1, BLOCKS_MAX))]
        name = self._new_name()
        temporary = self._directory / f".{name}"
        with open(temporary, "wb") as file:
            file.write(b"".join(map(block, tags)))
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, self._directory / name)
        self._files[name] = [{tag} for tag in tags]

    def _overwrite(self) -> None:
        name = self._rng.choice(list(self._files))
        blocks = self._files[name]
        number, tag = self._rng.randrange(len(blocks)), self._rng.randrange(TAGS)
        blocks[number] |= {tag}
        with open(self._directory / name, "r+b", buffering=0) as file:
            os.pwrite(file.fileno(), block(tag), number * BLOCK_BYTES)
            os.fsync(file.fileno())
        blocks[number] = {tag}

    def _delete(self) -> None:
        name = self._rng.choice(list(self._files))
        blocks = self._files.pop(name)
        try:
            os.unlink(self._directory / name)
        except OSError:
            # It may or may not be gone.
            with suppress(OSError):
                if (self._directory / name).exists():
                    self._files[name] = blocks
            raise

    def _rename(self) -> None:
        old, new = self._rng.choice(list(self._files)), self._new_name()
        blocks = self._files.pop(old)
        try:
            os.rename(self._directory / old, self._directory / new)
        except OSError:
            self._unsure[old, new] = blocks
            raise
        self._files[new] = blocks

    def compare(self, name: str) -> None:
        """Every block is one of those that were written there, and whole."""
        blocks = self._files[name]
        raw = (self._directory / name).read_bytes()
        if len(raw) != len(blocks) * BLOCK_BYTES:
            self._wrong(f"{name}: {len(raw)} bytes, not {len(blocks) * BLOCK_BYTES}")
            return
        for number, allowed in enumerate(blocks):
            part = raw[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES]
            tag = int.from_bytes(part[:8], "little")
            if tag not in allowed or part != block(tag):
                self._wrong(f"{name}: block {number} is not what was written")
        self.report.compared_bytes += len(raw)

    def compare_all(self) -> None:
        for name in list(self._files):
            try:
                self.compare(name)
            except OSError as error:
                self._wrong(f"{name}: {error}")
        for (old, new), blocks in self._unsure.items():
            name = new if (self._directory / new).exists() else old
            self._files[name] = blocks
            try:
                self.compare(name)
            except OSError as error:
                self._wrong(f"{name}, perhaps renamed: {error}")

    def _wrong(self, what: str) -> None:
        if len(self.report.wrong) < 20:
            self.report.wrong.append(f"{self._directory}: {what}")


def be_user(directory: Path, seed: int, stop: Event, compare: Event, results: Any) -> None:
    """The process of a user."""
    user = User(directory, seed)
    try:
        user.work(stop)
        compare.wait()
        user.compare_all()
    except BaseException as error:
        user.report.wrong.append(f"{directory}: the user itself failed: {error!r}")
    results.put(asdict(user.report))


@dataclass(frozen=True)
class Sample:
    """Memory, descriptors and processes at a time, of the service and the mounts."""

    time_s: float
    rss_bytes: int
    descriptors: int
    processes: int


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
        enable(str(root), chunk_size="64k", fingerprint="blake3", policy_values={}, disk=Disk())
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

    def mount_pids(self) -> list[int]:
        client = self.client()
        if client is None:
            return []
        try:
            volumes = client.get("/v1/volumes")
        except DedupdError:
            return []
        return [volume["mount"]["pid"] for volume in volumes if volume["mount"]["pid"]]

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
            "mount": self.mount_pids(),
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
        named = {"service": self.service.pid}
        named |= {f"mount-{number}": pid for number, pid in enumerate(self.mount_pids())}
        for name, pid in named.items():
            with suppress(psutil.Error):
                process = psutil.Process(pid)
                self.samples.setdefault(f"{name}:{pid}", []).append(
                    Sample(
                        time.time(),
                        process.memory_info().rss,
                        process.num_fds(),
                        len(process.children(recursive=True)),
                    )
                )

    def close(self) -> None:
        if self.service.poll() is None:
            self.service.terminate()
            self.service.wait(180)
        for root in self.roots:
            clear_dead_mount(str(root))
            with suppress(DedupdError):
                unmount(str(root))


@contextmanager
def fio(root: Path, seconds: int) -> Iterator[None]:
    """Random reads of files of its own, which become stubs under its hands."""
    directory = root / "fio"
    directory.mkdir()
    command = ["fio", "--name=read", f"--directory={directory}", "--rw=randread", "--bs=4k"]
    command += ["--size=32m", "--nrfiles=4", "--time_based", f"--runtime={seconds}"]
    command += ["--rate_iops=50", "--continue_on_error=all", "--output=/dev/null"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def soak(base: Path, minutes: float, seed: int) -> dict[str, Any]:
    machine = Machine(base, seed)
    context = multiprocessing.get_context("spawn")
    stop, compare, results = context.Event(), context.Event(), context.Queue()
    users = []
    try:
        while len(machine.mount_pids()) < 2:
            time.sleep(0.1)
        for number, root in enumerate(machine.roots):
            for user in range(2):
                directory = root / f"u{user}"
                directory.mkdir()
                arguments = (directory, seed * 100 + 10 * number + user, stop, compare, results)
                users.append(context.Process(target=be_user, args=arguments))
                users[-1].start()
        with (
            fio(machine.roots[0], int(minutes * 60) + 60),
            fio(machine.roots[1], int(minutes * 60) + 60),
        ):
            _disturb(machine, minutes * 60)
        stop.set()
        time.sleep(5)
        compare.set()
        reports = [results.get(timeout=600) for _ in users]
        for process in users:
            process.join()
        runs = _runs(machine)
    finally:
        stop.set()
        compare.set()
        machine.close()
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
        "jobs": runs,
        "growth": _growth(machine),
        "processes_left": _left(base),
    }


def _disturb(machine: Machine, seconds: float) -> None:
    """Kill for two thirds of the time, and only look on for the last."""
    began = time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        time.sleep(machine.rng.uniform(0.5, 1.5) * KILL_EVERY_S)
        if passed < seconds * 2 / 3:
            machine.kill_something()
        else:
            machine.sample()


def _runs(machine: Machine) -> dict[str, dict[str, int]]:
    """How often each job ran, by outcome."""
    counts: dict[str, dict[str, int]] = {}
    client = machine.client()
    for run in client.get("/v1/jobs", last=1000)["history"] if client is not None else []:
        outcomes = counts.setdefault(run["job"], {})
        outcome = run["outcome"].partition(":")[0][:60]
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    return counts


def _verify(root: Path) -> list[Any]:
    with Volume.open(str(root)) as volume, volume.job_lock(), volume.mount_lock():
        return list(Verify(volume, JobRun("verify")).run().findings)


def _growth(machine: Machine) -> dict[str, dict[str, list[int]]]:
    """First, middle and last sample of those that lived through the quiet third."""
    return {
        name: {
            "rss_bytes": [samples[at].rss_bytes for at in (0, len(samples) // 2, -1)],
            "descriptors": [samples[at].descriptors for at in (0, len(samples) // 2, -1)],
            "processes": [samples[at].processes for at in (0, len(samples) // 2, -1)],
        }
        for name, samples in machine.samples.items()
        if len(samples) >= 3
    }


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
    sys.exit(bool(result["wrong"] or result["findings"]))


if __name__ == "__main__":
    main()
