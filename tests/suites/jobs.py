"""Jobs that run while a suite does: optimize and gc in a loop, compact now and then."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.suites.ground import Ground
from tests.support.sources import ROOT

PAUSE_S = 4
"""Between two rounds: a test of a second meets some jobs and some moments without."""

COMPACT_EVERY = 7
"""Rounds."""


@contextmanager
def beside(ground: Ground, log: Path) -> Iterator[None]:
    """Run jobs on all volumes of the ground during a block; what they say goes to ``log``."""
    volumes = [place.volume for place in ground.places if place.volume is not None]
    over = threading.Event()
    threads = [
        threading.Thread(target=_work, args=(volume, log, over), daemon=True) for volume in volumes
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _work(volume: Path, log: Path, over: threading.Event) -> None:
    rounds = 0
    while not over.wait(PAUSE_S):
        rounds += 1
        names = ["optimize", "gc", *(["compact"] if rounds % COMPACT_EVERY == 0 else [])]
        for name in names:
            command = [sys.executable, "-m", "dedupd.cli.main", "run", name, str(volume)]
            result = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=False,
                cwd=ROOT,
            )
            with open(log, "a") as file:
                file.write(f"{name} {volume.parent.name}: status {result.returncode}\n")
                if result.returncode > 1:
                    file.write(f"{result.stdout}{result.stderr}\n")


def verify(volume: Path) -> tuple[bool, str]:
    """Check every stub of a volume; whether all is well, and what the command says."""
    command = [sys.executable, "-m", "dedupd.cli.main", "verify", str(volume)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    return result.returncode == 0, result.stdout + result.stderr
