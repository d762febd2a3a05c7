"""Checks what users see of a volume while their machine is rebooted repeatedly.

Runs in the chroot of scripts/test_deb.sh, where the package is installed, and needs only Python. A
reader without rights reads all files continuously: it may only get their content or an error. At
the end the package is removed and purged while the volume stays in place.
"""

import argparse
import errno
import hashlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import TypeAlias

SRV = Path("/srv")
SHARE = SRV / "share"
IMAGE = Path("/root/disk.img")
USER_ID = 12345
WAIT_S = 300.0
PROGRAM = "/usr/lib/dedupd/bin/python"

Results: TypeAlias = "Queue[tuple[Counter[str], list[str]]]"
"""Counts of the reader's results, and all errors."""


def run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def eventually(probe: Callable[[], bool], what: str) -> float:
    """Wait until ``probe`` returns True; return the time in seconds."""
    start = time.monotonic()
    while not probe():
        if time.monotonic() - start > WAIT_S:
            sys.exit(f"never: {what}")
        time.sleep(0.01)
    return time.monotonic() - start


# --- the machine ------------------------------------------------------------------------------


class Machine:
    """A disk that survives, and everything else that a reboot removes."""

    def __init__(self) -> None:
        with IMAGE.open("wb") as file:
            file.truncate(2 << 30)
        run("mkfs.ext4", "-q", IMAGE)
        self.device = run("losetup", "--find", "--show", IMAGE).strip()
        self.service: subprocess.Popen[bytes] | None = None

    def boot(self) -> float:
        """Start everything in the order of systemd; return the seconds until it is ready."""
        run("mount", self.device, SRV)
        run("systemd-tmpfiles", "--create", "dedupd.conf")
        return self.start_service()

    def start_service(self) -> float:
        name = tempfile.mktemp(dir="/run")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.bind(name)
            notify.settimeout(WAIT_S)
            start = time.monotonic()
            self.service = subprocess.Popen(
                ["/usr/bin/dedupd", "serve"],
                env={"PATH": os.environ["PATH"], "NOTIFY_SOCKET": name, "LC_ALL": "C.UTF-8"},
                cwd="/",
            )
            while "READY=1" not in notify.recv(4096).decode().split("\n"):
                pass
        return time.monotonic() - start

    def crash(self) -> None:
        """Kill everything of dedupd at once, with its mounts and its memory."""
        kill(PROGRAM)
        assert self.service is not None
        self.service.wait()
        for point in reversed(mounted_below(SRV)):
            subprocess.run(["umount", "-l", point], check=False)
        shutil.rmtree("/run/dedupd", ignore_errors=True)
        Path("/run/dedupd.sock").unlink(missing_ok=True)

    def stop(self) -> None:
        assert self.service is not None
        self.service.send_signal(signal.SIGTERM)
        if self.service.wait(WAIT_S) != 0:
            sys.exit("the service did not stop as it should")


def processes(program: str) -> Iterator[int]:
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                words = Path("/proc", entry, "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[0] in (program.encode(), b"dedupd-mount"):
                yield int(entry)


def kill(program: str) -> None:
    """Kill processes until none is left: they start each other."""
    while found := list(processes(program)):
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        # Processes that are already dead, but not yet reaped.
        if all(_is_zombie(pid) for pid in found):
            return
        time.sleep(0.01)


def _is_zombie(pid: int) -> bool:
    try:
        return ") Z" in Path("/proc", str(pid), "stat").read_text()
    except OSError:
        return True


def mounted_below(directory: Path) -> list[str]:
    points = [line.split(" ")[1] for line in Path("/proc/mounts").read_text().splitlines()]
    return [p for p in points if p == str(directory) or p.startswith(f"{directory}/")]


# --- the users --------------------------------------------------------------------------------


def content_of(number: int) -> bytes:
    """Return text, incompressible data, and copies of other files' content."""
    rng = random.Random(number % 7)
    if number % 3:
        return rng.randbytes(200_000 + 50_000 * (number % 7))
    words = [rng.randbytes(6).hex() for _ in range(400)]
    return " ".join(rng.choices(words, k=30_000)).encode()


def watch(names: list[str], until: Event, results: Results) -> None:
    """Read everything, without rights, until told to stop."""
    os.setgroups([])
    os.setgid(USER_ID)
    os.setuid(USER_ID)
    wanted = {name: hashlib.sha256(content_of(n)).digest() for n, name in enumerate(names)}
    seen: Counter[str] = Counter()
    wrong: list[str] = []
    while not until.is_set():
        for name in names:
            try:
                data = (SHARE / name).read_bytes()
            except OSError as error:
                seen[errno.errorcode[error.errno or 0]] += 1
                continue
            if hashlib.sha256(data).digest() == wanted[name]:
                seen["right"] += 1
            else:
                kind = "empty" if not data else "zeros" if not any(data) else "other bytes"
                wrong.append(f"{name}: {kind}, {len(data)} bytes")
    results.put((seen, wrong))


def is_right(names: list[str]) -> bool:
    try:
        return all((SHARE / name).read_bytes() == content_of(n) for n, name in enumerate(names))
    except OSError:
        return False


def digest_of(tree: Path) -> str:
    """Digest everything below a directory: names, content, length, attributes."""
    total = hashlib.sha256()
    for path in sorted(tree.rglob("*")):
        total.update(f"{path}\0{path.lstat().st_mode}\0{path.lstat().st_size}\0".encode())
        if path.is_file():
            total.update(path.read_bytes())
            for name in sorted(os.listxattr(path)):
                total.update(name.encode() + os.getxattr(path, name))
    return total.hexdigest()


# --- the course of things ---------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--reboots", type=int, default=10)
    reboots = parser.parse_args().reboots
    machine = Machine()
    machine.boot()
    SHARE.mkdir(mode=0o755)
    names = [f"{number:03}.bin" for number in range(60)]
    for number, name in enumerate(names):
        (SHARE / name).write_bytes(content_of(number))
    print(run("dedupd", "enable", "--force", SHARE, "--min-age", "0s", "--min-size", "1"), end="")
    eventually(lambda: is_right(names), "enabled, its files are there")
    report = json.loads(run("dedupd", "run", "optimize", SHARE, "--wait", "--json"))
    print(f"optimized {report['files_optimized']} files")
    if report["files_optimized"] != len(names):
        sys.exit("not all files were optimized")

    until = multiprocessing.Event()
    results: Results = multiprocessing.Queue()
    reader = multiprocessing.Process(target=watch, args=(names, until, results))
    reader.start()
    ready_s, written = [], []
    for reboot in range(reboots):
        # A user saves a file, and a job works on it when the machine crashes.
        path = SHARE / f"written-{reboot}"
        with path.open("wb") as file:
            file.write(content_of(100 + reboot))
            file.flush()
            os.fsync(file.fileno())
        written.append((path, content_of(100 + reboot)))
        job = subprocess.Popen(["dedupd", "run", "optimize", SHARE], stdout=subprocess.DEVNULL)
        time.sleep(random.Random(reboot).random() * 1.5)
        machine.crash()
        job.wait()
        ready_s.append(machine.boot())
        eventually(lambda: is_right(names), "mounted again, by itself")
        for path, content in written:
            if path.read_bytes() != content:
                sys.exit(f"{path}: synced content is lost")
    until.set()
    seen, wrong = results.get(timeout=WAIT_S)
    reader.join()
    print(f"{reboots} reboots, ready after {max(ready_s):.1f} s at most; reads: {dict(seen)}")
    if wrong or not seen["right"]:
        sys.exit(f"{len(wrong)} reads were wrong: {wrong[:10]}")

    machine.stop()
    run("dedupd", "run", "verify", SHARE)
    print("verified: every invariant holds")
    remove_and_return(machine, names)


def remove_and_return(machine: Machine, names: list[str]) -> None:
    """Remove and purge the package with a volume in place, which must stay. Installed again, the
    package must serve it as before."""
    package = next(str(path) for path in Path("/root").glob("dedupd_*.deb"))
    before = digest_of(SHARE / ".dedupd")
    for action in ("remove", "purge"):
        command = ["dpkg", f"--{action}", "dedupd"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        print(done.stderr, end="")
        if action == "remove" and str(SHARE) not in done.stderr:
            sys.exit("removing does not say which volumes there are")
    if digest_of(SHARE / ".dedupd") != before:
        sys.exit("purging the package changed the volume")
    if Path("/usr/lib/dedupd").exists():
        sys.exit(f"left behind: {list(Path('/usr/lib/dedupd').rglob('*'))[:10]}")
    run("dpkg", "--install", package)
    machine.start_service()
    eventually(lambda: is_right(names), "installed again, it serves the volume")
    machine.stop()
    print(run("dedupd", "disable", SHARE, "--unoptimize"), end="")
    if not is_right(names) or (SHARE / ".dedupd").exists():
        sys.exit("disabled, the directory is not as it was")
    print("purged, installed again, disabled: every file is there")


if __name__ == "__main__":
    main()
