"""A soak of one greedy user beside the others: what they wait, and what the processes grow to.

    python -m tests.whole.greedy_soak DIR [--minutes 60]

The greedy user opens directories of many names by the hundred, reads a damaged file in a loop while
nobody reads the log, writes to an image that is made plain and a stub again in turns, renames
directories beside garbage collection, syncs in many processes, removes files of many extents, and
holds connections of the service without reading from them. Another user does what people do, and
takes the time of it. Prints JSON; exit status 1 if a limit was passed.
"""

import argparse
import json
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

from dedupd_core.errors import DedupdError
from dedupd_core.format.container import Kind
from dedupd_core.units import KIB, MIB
from tests.hostile.test_greedy_users import UnreadLog
from tests.support.lab import flip_bit, let_others_pass, noise
from tests.support.mounts import ALICE, BOB, MountedLab, as_user, looping, mounted_lab
from tests.support.service import ServiceLab, service_lab

MIB_GROWN_MAX = 100
"""What a process may grow by while it is being used like this: caches fill up, and stay full."""

DESCRIPTORS_GROWN_MAX = 700
"""The greedy user's share for a while; in the end all are closed."""

WAIT_P99_S_MAX = 0.5
WAIT_S_MAX = 5.0
"""Of the other user's steps, on a machine that has all this to do at the same time: a hang shows,
and so does a queue behind the greedy user's calls. How long it is without company, a run on a quiet
machine tells."""

NAMES, HANDLES, SYNCING, CONNECTIONS = 5000, 200, 16, 300
IMAGE_BYTES = 48 * MIB
BREAK_S = 0.05
SAMPLE_S = 2.0


# --- the greedy user --------------------------------------------------------------------------


def open_directories(view: Path) -> Callable[[], None]:
    def crowd_in() -> None:
        handles = []
        for _ in range(HANDLES):
            handles.append(os.scandir(view / "crowd"))
            next(handles[-1])
        for handle in handles:
            handle.close()

    return crowd_in


def read_damaged(view: Path) -> Callable[[], None]:
    def read() -> None:
        with open(view / "damaged", "rb", buffering=0) as file:
            for offset in range(0, 300 * KIB, 16 * KIB):
                with suppress(OSError):
                    os.pread(file.fileno(), 4096, offset)

    return read


def write_to_image(view: Path) -> Callable[[], None]:
    written = 0

    def write() -> None:
        nonlocal written
        with open(view / "image", "r+b", buffering=0) as file:
            for _ in range(50):
                written += 1
                os.pwrite(file.fileno(), noise(4096, written), written * 37 % 12_000 * 4096)
                time.sleep(0.002)
        time.sleep(1.0)

    return write


def rename_directories(view: Path) -> Callable[[], None]:
    def rename() -> None:
        for number in range(100):
            (view / f"theirs/{number}").rename(view / f"theirs/{number}~")
            (view / f"theirs/{number}~").rename(view / f"theirs/{number}")

    return rename


def sync_own_file(view: Path, number: int) -> Callable[[], None]:
    def sync() -> None:
        fd = os.open(view / f"theirs/synced{number}", os.O_RDWR | os.O_CREAT, 0o644)
        os.pwrite(fd, b"x" * 4096, 0)
        os.fsync(fd)
        os.close(fd)

    return sync


def remove_scattered(view: Path) -> Callable[[], None]:
    """A file of many extents, which takes long to remove."""

    def remove() -> None:
        path = view / "theirs/scattered"
        with open(path, "wb", buffering=0) as file:
            for number in range(3000):
                os.pwrite(file.fileno(), b"x" * 4096, number * 8192)
        path.unlink()

    return remove


def hold_connections(path: str) -> Callable[[], None]:
    def hold() -> None:
        held = []
        for _ in range(CONNECTIONS):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            held.append(connection)
            with suppress(OSError):
                connection.settimeout(5)
                connection.connect(path)
                connection.sendall(b"GET /v1/jobs?last=50 HTTP/1.1\r\nHost: dedupd\r\n\r\n")
        time.sleep(5)
        for connection in held:
            connection.close()

    return hold


# --- the other user ---------------------------------------------------------------------------


def take_times(view: Path, end: float, answer: Connection) -> None:
    """Do what people do until then, and tell how long each step took, by its name."""
    own = view / "his"
    steps: dict[str, Callable[[], object]] = {
        "stat": lambda: os.stat(view / "small"),
        "read a stub": (view / "small").read_bytes,
        "read a plain file": (own / "plain").read_bytes,
        "list": lambda: os.listdir(own),
        "write": lambda: (own / "plain").write_bytes(b"y" * 20_000),
        "statvfs": lambda: os.statvfs(view),
    }
    waits: dict[str, list[float]] = {name: [] for name in steps}
    (own / "plain").write_bytes(b"x" * 20_000)
    while time.time() < end:
        for name, step in steps.items():
            began = time.monotonic()
            step()
            waits[name].append(time.monotonic() - began)
            time.sleep(BREAK_S)
    answer.send(waits)


@contextmanager
def beside(uid: int, function: Callable[[], None]) -> Iterator[None]:
    """Run a function as another user, in a process that ends with the block."""
    child = os.fork()
    if child == 0:
        try:
            as_user(uid, function)
        finally:
            os._exit(0)
    try:
        yield
    finally:
        _, status = os.waitpid(child, 0)
        assert status == 0


# --- the processes ----------------------------------------------------------------------------


@dataclass(slots=True)
class Grown:
    """What a process took when all began, at most since, and at the end."""

    memory_bytes: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)

    def look(self, process: psutil.Process) -> None:
        self.memory_bytes.append(process.memory_info().rss)
        self.descriptors.append(process.num_fds())

    def figures(self) -> dict[str, object]:
        half = len(self.memory_bytes) // 2
        return {
            "memory_mib": [
                round(value / MIB, 1)
                for value in (
                    self.memory_bytes[0],
                    max(self.memory_bytes[: half + 1]),
                    max(self.memory_bytes),
                    self.memory_bytes[-1],
                )
            ],
            "descriptors": [self.descriptors[0], max(self.descriptors), self.descriptors[-1]],
        }

    def findings(self, name: str) -> Iterator[str]:
        grown = (max(self.memory_bytes) - self.memory_bytes[0]) / MIB
        if grown > MIB_GROWN_MAX:
            yield f"{name}: {grown:.0f} MiB more"
        more = max(self.descriptors) - self.descriptors[0]
        if more > DESCRIPTORS_GROWN_MAX:
            yield f"{name}: {more} descriptors more"


@dataclass(slots=True)
class Found:
    """The figures of a run, and what passed a limit."""

    seconds: float = 0.0
    jobs: dict[str, int] = field(default_factory=dict)
    waits_ms: dict[str, dict[str, float]] = field(default_factory=dict)
    processes: dict[str, dict[str, object]] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)


def run_jobs(lab: MountedLab, jobs: dict[str, int], stop: threading.Event) -> None:
    """Make files plain and stubs again, and collect garbage, one after the other."""
    work: dict[str, Callable[[], object]] = {
        "unoptimize": lab.unoptimize,
        "optimize": lab.optimize,
        "gc": lab.collect,
        "compact": lab.compact,
    }
    while not stop.is_set():
        for name, job in work.items():
            with suppress(DedupdError):
                job()
                jobs[name] = jobs.get(name, 0) + 1
            if stop.wait(0.5):
                return


def prepare(lab: MountedLab) -> None:
    for name in ("crowd", "theirs", "his"):
        (lab.data / name).mkdir()
        os.chmod(lab.data / name, 0o777)
    for number in range(NAMES):
        (lab.data / f"crowd/{number} {'x' * 150}").touch()
    for number in range(100):
        (lab.view / f"theirs/{number}").mkdir(mode=0o777)
        os.chown(lab.view / f"theirs/{number}", ALICE, ALICE)
    lab.make_stub("damaged", noise(300 * KIB + 77, 3))
    lab.unmount()
    flip_bit(lab.container(Kind.CHUNKS), 4096 + 200)
    lab.mount()
    lab.make_stub("small", noise(30 * KIB, 4))
    image = lab.make_stub("image", noise(IMAGE_BYTES, 5))
    os.chmod(image, 0o666)


def run(directory: Path, minutes: float) -> Found:
    """A run below a directory that all may enter."""
    found = Found()
    (directory / "log").mkdir()
    logs = UnreadLog(directory / "log")
    with ExitStack() as stack:
        stack.callback(logs.close)
        machine: ServiceLab = stack.enter_context(service_lab(directory / "service"))
        machine.configure('group = "users"\nreaders = "everyone"\n')
        machine.add_volume("idle")
        machine.start()
        lab = stack.enter_context(mounted_lab(directory, nursery=logs))
        prepare(lab)
        watched = {
            "mount": (psutil.Process(lab.pid), Grown()),
            "service": (psutil.Process(machine.client.get("/v1/service")["pid"]), Grown()),
        }
        began = time.monotonic()
        end = time.time() + 60 * minutes
        ours, theirs = Pipe(duplex=False)
        with ExitStack() as work:
            work.enter_context(beside(BOB, lambda: take_times(lab.view, end, theirs)))
            for action in greedy_actions(lab.view, str(machine.socket)):
                work.enter_context(looping(ALICE, action))
            stop = threading.Event()
            jobs = threading.Thread(target=run_jobs, args=(lab, found.jobs, stop))
            jobs.start()
            try:
                while time.time() < end:
                    for process, grown in watched.values():
                        grown.look(process)
                    time.sleep(SAMPLE_S)
                waits: dict[str, list[float]] = ours.recv()
            finally:
                stop.set()
                jobs.join()
        for process, grown in watched.values():
            grown.look(process)
        found.seconds = round(time.monotonic() - began, 1)
        found.processes = {name: grown.figures() for name, (_, grown) in watched.items()}
        for name, (_, grown) in watched.items():
            found.findings += grown.findings(name)
        judge(waits, found)
    return found


def greedy_actions(view: Path, service: str) -> list[Callable[[], None]]:
    return [
        *(open_directories(view), read_damaged(view), write_to_image(view)),
        *(rename_directories(view), remove_scattered(view), hold_connections(service)),
        *(sync_own_file(view, number) for number in range(SYNCING)),
    ]


def judge(waits: dict[str, list[float]], found: Found) -> None:
    """Put the other user's times into the figures, and hold them to the limits."""
    for name, times in waits.items():
        times.sort()
        p99 = times[int(len(times) * 0.99)]
        found.waits_ms[name] = {
            "steps": len(times),
            "p50": round(times[len(times) // 2] * 1e3, 1),
            "p99": round(p99 * 1e3, 1),
            "max": round(times[-1] * 1e3, 1),
        }
        if p99 > WAIT_P99_S_MAX or times[-1] > WAIT_S_MAX:
            found.findings.append(f"{name}: p99 {p99:.2f} s, at most {times[-1]:.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path, help="where a directory for the run is made")
    parser.add_argument("--minutes", type=float, default=60)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        let_others_pass(Path(name))
        found = run(Path(name), options.minutes)
    print(json.dumps(asdict(found), indent=2))
    sys.exit(1 if found.findings else 0)


if __name__ == "__main__":
    main()
