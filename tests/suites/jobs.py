"""Jobs that run while a suite does: optimize and gc in a loop, compact now and then."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dedupd_core.system import mount_table
from tests.suites.ground import Ground, Place
from tests.support.sources import ROOT

PAUSE_S = 4
"""Between two rounds: a test of a second meets some jobs and some moments without."""

COMPACT_EVERY = 7
"""Rounds."""


@contextmanager
def beside(ground: Ground, log: Path) -> Iterator[None]:
    """Run jobs on all volumes of the ground during a block; what they say goes to ``log``."""
    over = threading.Event()
    threads = [
        threading.Thread(target=_work, args=(place, log, over), daemon=True)
        for place in ground.places
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _work(place: Place, log: Path, over: threading.Event) -> None:
    rounds = 0
    while not over.wait(PAUSE_S):
        rounds += 1
        names = ["optimize", "gc", *(["compact"] if rounds % COMPACT_EVERY == 0 else [])]
        for name in names:
            status, said = _run(name, place)
            with open(log, "a") as file:
                file.write(f"{name} {place.point.name}: status {status}\n")
                if status > 1:
                    file.write(f"{said}\n")


def verify(place: Place) -> tuple[bool, str]:
    """Check every file of a volume; whether all is well, and what the command says."""
    status, said = _run("verify", place)
    return status == 0, said


def _run(name: str, place: Place) -> tuple[int, str]:
    """Run a job; its status and what it says. A test may unmount the volume at any moment."""
    is_mounted = any(mount.point == str(place.point) for mount in mount_table.volumes())
    path = place.point if is_mounted else place.volume
    command = [sys.executable, "-m", "dedupd.cli.main", "run", name, str(path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    return result.returncode, result.stdout + result.stderr
