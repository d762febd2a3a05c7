"""Volumes that take in more than their disks hold plain: by import, and by a program that restores.

    python -m tests.whole.overfull DIR [--size 8G] [--kills 10]

A tree, of which three eighths are distinct and nothing compresses, is imported onto a disk of five
eighths of its size. Then `rsync` copies it from there, through the mounts of a running service,
onto another disk of that size in restore mode. Both are compared with the tree, and verified.
Meanwhile runs of optimize are killed, and the service at every fourth time, every few seconds.
Prints JSON; exit status 1 where anything was wrong, or the reserve was touched. Takes two and a
quarter of the size below DIR, and a few minutes for each gigabyte.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path

from dedupd_core.units import KIB, MIB, parse_size
from tests.support.crash import ext4
from tests.support.lab import REPOSITORY, Lab, let_others_pass, noise, repeated
from tests.support.room import room_bytes
from tests.support.service import ServiceLab, service_lab
from tests.support.tree_compare import differences

DISTINCT, DISK = 3 / 8, 5 / 8
"""Of the size of the tree."""

EDITED = 10
"""One copy in so many has a few bytes more than its original."""

FILE_BYTES_MIN = 1 * KIB
FOLDER = "all"
DIFFERENCES_MAX = 20
LOOK_S = 0.02
KILL_S = 4.0
SERVICE_EACH = 4
"""Of so many kills one is that of the service, and all others are of runs."""


@dataclass(slots=True)
class Filled:
    """How one disk was filled. ``room_bytes_min`` is the least that was free beyond the reserve at
    any moment, ``still_s_max`` the longest time in which nothing was written nor freed."""

    seconds: float = 0.0
    length_bytes: int = 0
    disk_bytes: int = 0
    used_bytes: int = 0
    room_bytes_min: int = 1 << 62
    still_s_max: float = 0.0
    kills: int = 0
    told: str = ""


@dataclass(slots=True)
class Found:
    """What a run has come to."""

    size_bytes: int = 0
    disk_bytes: int = 0
    imported: Filled = field(default_factory=Filled)
    restored: Filled = field(default_factory=Filled)
    findings: list[str] = field(default_factory=list)


# --- the tree ---------------------------------------------------------------------------------


def sizes(total_bytes: int, rng: random.Random) -> Iterator[int]:
    """Of files: most are small, and most of the bytes are in few large ones."""
    largest = max(MIB, total_bytes // 24)
    left = total_bytes
    while left > 0:
        size = min(left, largest, FILE_BYTES_MIN + int(rng.paretovariate(0.5) * 6 * KIB))
        yield size
        left -= size


def make_tree(root: Path, size_bytes: int) -> None:
    """Files of several generations below ``root``: the first is distinct."""
    rng = random.Random(1)
    distinct = list(sizes(int(size_bytes * DISTINCT), rng))
    left, generation = size_bytes, 0
    while left > 0:
        for number, size in enumerate(distinct):
            if left <= 0:
                break
            data = noise(size, number)
            if generation and number % EDITED == 0:
                middle = size // 2
                data = data[:middle] + b"edited %d" % generation + data[middle:]
            path = root / f"{generation}/{number % 97}/{number}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            left -= len(data)
        generation += 1


# --- the watch --------------------------------------------------------------------------------


@contextmanager
def watched(disk: Path, filled: Filled) -> Iterator[None]:
    """Look at the free space of a disk all the time."""
    used, moved_s = 0, time.monotonic()

    def look() -> None:
        nonlocal used, moved_s
        filled.room_bytes_min = min(filled.room_bytes_min, room_bytes(disk))
        now_used, now_s = os.statvfs(disk).f_bfree, time.monotonic()
        if now_used != used:
            used, moved_s = now_used, now_s
        filled.still_s_max = max(filled.still_s_max, round(now_s - moved_s, 1))

    began = time.monotonic()
    try:
        with repeated(look, LOOK_S):
            yield
    finally:
        filled.seconds = round(time.monotonic() - began, 1)
        status = os.statvfs(disk)
        filled.disk_bytes = status.f_blocks * status.f_frsize
        filled.used_bytes = (status.f_blocks - status.f_bfree) * status.f_frsize


# --- the kills --------------------------------------------------------------------------------


@contextmanager
def killed(machine: ServiceLab, count: int, filled: Filled) -> Iterator[None]:
    """Kill what frees space, so many times at most."""

    def kill() -> None:
        if filled.kills >= count:
            return
        if filled.kills % SERVICE_EACH == SERVICE_EACH - 1:
            machine.kill()
            machine.start()
        elif not kill_a_run(machine):
            return
        filled.kills += 1

    with repeated(kill, KILL_S):
        yield


def kill_a_run(machine: ServiceLab) -> bool:
    """Kill a run of optimize that the service has begun; whether there was one in a while."""
    assert machine.process is not None
    end = time.monotonic() + KILL_S
    while time.monotonic() < end:
        children = Path(f"/proc/{machine.process.pid}/task/{machine.process.pid}/children")
        for pid in map(int, children.read_text().split()):
            with suppress(OSError):
                if b"optimize" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    time.sleep(random.random())  # it may be at any of its steps
                    os.kill(pid, signal.SIGKILL)
                    return True
        time.sleep(LOOK_S)
    return False


# --- the run ----------------------------------------------------------------------------------


def run(directory: Path, size_bytes: int, kills: int = 0) -> Found:
    """Fill two disks below ``directory``, which has room for them and the tree."""
    found = Found(size_bytes, int(size_bytes * DISK))
    source = directory / "source"
    make_tree(source, size_bytes)
    with ExitStack() as stack:
        disks = []
        for name in ("first", "second"):
            (directory / name).mkdir()
            disk = ext4(directory / name, found.disk_bytes // MIB)
            disks.append(stack.enter_context(disk))
        machine = stack.enter_context(service_lab(directory / "service"))
        first, second = (new_volume(machine, disk) for disk in disks)
        with watched(disks[0], found.imported):
            import_tree(machine, source, first, found)
        machine.start()
        for lab in (first, second):
            machine.mount_pid(lab)
        found.findings += [f"imported: {one}" for one in seen(source, first.root / FOLDER)]
        done = machine.run("policy", second.root, "restore_mode", "on")
        assert done.returncode == 0, done.stderr
        with watched(disks[1], found.restored), killed(machine, kills, found.restored):
            restore_tree(first, second, found)
        found.findings += [f"restored: {one}" for one in seen(source, second.root / FOLDER)]
        machine.stop()
        for lab in (first, second):
            status, text = finished(machine, "run", "verify", lab.root)
            if status:
                found.findings.append(f"verify: {text}")
    for name, filled in (("imported", found.imported), ("restored", found.restored)):
        if filled.room_bytes_min < 0:
            found.findings.append(f"{name}: the reserve was touched")
        if filled.length_bytes <= filled.disk_bytes:
            found.findings.append(f"{name}: it would have fitted plain")
    return found


def new_volume(machine: ServiceLab, disk: Path) -> Lab:
    """A volume of the service, as an administrator makes one: with all defaults."""
    root = disk / "share"
    root.mkdir()
    status, text = finished(machine, "enable", "--no-mount", root)
    assert status == 0, text
    lab = Lab(root)
    machine.volumes.append(lab)
    (machine.volumes_directory / f"{disk.parent.name}.toml").write_text(f'path = "{root}"\n')
    return lab


def import_tree(machine: ServiceLab, source: Path, lab: Lab, found: Found) -> None:
    status, text = finished(machine, "import", source, lab.root, FOLDER, "--json")
    if status:
        found.findings.append(f"import: {text[-4000:]}")
        return
    report = json.loads(text)
    found.imported.length_bytes = report["length_bytes"]
    found.imported.told = f"{report['files']} files in {report['batches']} batches"


def restore_tree(first: Lab, second: Lab, found: Found) -> None:
    """Copy all from one mount to the other, by a program that knows nothing of either."""
    command = ["rsync", "-aHAX", "--stats", f"{first.root}/{FOLDER}", f"{second.root}/"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        found.findings.append(f"rsync: {done.returncode}: {done.stderr[-4000:]}")
    sent = re.search(r"Total transferred file size: ([\d,]+)", done.stdout)
    found.restored.length_bytes = int(sent[1].replace(",", "")) if sent else 0
    found.restored.told = f"rsync: {done.returncode}"


def seen(source: Path, copy: Path) -> Iterator[str]:
    """How a copy differs, as it lies on the disk: the kernel has kept what was written through a
    mount. The first differences are enough."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")
    return (str(one) for one in islice(differences(source, copy), DIFFERENCES_MAX))


def finished(machine: ServiceLab, *arguments: str | Path) -> tuple[int, str]:
    """Run a command, however long it takes; its exit status, and its words."""
    done = subprocess.run(
        [sys.executable, "-m", "dedupd.cli.main", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, **machine.environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout if done.returncode == 0 else done.stdout + done.stderr


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path, help="where a directory for the run is made")
    parser.add_argument("--size", type=parse_size, default=parse_size("8G"))
    parser.add_argument("--kills", type=int, default=0, help="how often something is killed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        let_others_pass(Path(name))
        found = run(Path(name), options.size, options.kills)
    print(json.dumps(asdict(found), indent=2))
    sys.exit(1 if found.findings else 0)


if __name__ == "__main__":
    main()
