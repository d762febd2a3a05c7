"""One user against all: the mount answers the others, and its process stays as small as it was."""

import os
import resource
import signal
import socket
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from dedupd_core.format.container import Kind
from fuse_stub import process
from tests.support.lab import flip_bit, noise
from tests.support.mounts import ALICE, Nursery, as_user, looping, mounted_lab, serve_for_test

pytestmark = pytest.mark.root

KIB = 1 << 10

SLOW = pytest.mark.slow

ANSWER_S_MAX = 2.0
"""Of a ``stat``, on a machine that has other things to do as well. A mount that hangs never
answers."""


# --- the log ----------------------------------------------------------------------------------


class UnreadLog(Nursery):
    """Mounts whose processes log to a socket that nobody reads."""

    def __init__(self, directory: Path) -> None:
        super().__init__(target=_serve_with_log, first=(str(directory / "log"),))
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._listener.bind(str(directory / "log"))

    def close(self) -> None:
        self._listener.close()


def _serve_with_log(
    log: str, path: str, mountpoint: str, cache_bytes: int, answer: Connection
) -> None:
    process.LOG_SOCKET = log
    serve_for_test(path, mountpoint, cache_bytes, answer)


def stat_s(path: Path) -> float:
    """How long a ``stat`` takes that the mount has to answer."""
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        try:
            os.stat(path.parent / f"none {time.monotonic_ns()}")
        except FileNotFoundError:
            os._exit(0)
        finally:
            os._exit(1)
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() - began > ANSWER_S_MAX:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            break
        time.sleep(0.001)
    return time.monotonic() - began


def test_a_damaged_file_that_is_read_in_a_loop_beside_a_log_that_nobody_reads(
    tmp_path: Path,
) -> None:
    (tmp_path / "log of the machine").mkdir()
    logs = UnreadLog(tmp_path / "log of the machine")
    with mounted_lab(tmp_path, nursery=logs) as lab:
        damaged = lab.make_stub("f", noise(300 * KIB + 77, 3))
        lab.unmount()
        flip_bit(lab.container(Kind.CHUNKS), 4096 + 200)
        lab.mount()

        def read() -> None:
            with open(damaged, "rb", buffering=0) as file:
                for offset in range(0, 300 * KIB, 16 * KIB):
                    with suppress(OSError):
                        os.pread(file.fileno(), 4096, offset)

        with looping(ALICE, read):
            time.sleep(1.0)  # more than the log takes; that it is full cannot be seen from here
            slowest_s = max(stat_s(damaged) for _ in range(20))
        if slowest_s >= ANSWER_S_MAX:
            lab.kill()  # it would never unmount
        assert slowest_s < ANSWER_S_MAX
    logs.close()


# --- open directories -------------------------------------------------------------------------

HANDLES = 200


def resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no such process")


@pytest.mark.parametrize(
    ("names", "changes"),
    [(3000, False), (3000, True), (6000, False), pytest.param(50_000, False, marks=SLOW)],
    ids=["shared", "changing", "long", "50,000 names"],
)
def test_open_directories_of_one_user_take_little_memory(
    tmp_path: Path, names: int, changes: bool
) -> None:
    with mounted_lab(tmp_path) as lab:
        below = lab.data / "crowd"
        below.mkdir()
        os.chmod(below, 0o777)
        for number in range(names):
            (below / f"{number} {'x' * 200}").touch()
        crowd = lab.view / "crowd"
        sum(1 for _ in os.scandir(crowd))  # what the mount has to know of each file is not counted
        before = resident_bytes(lab.pid)

        def crowd_in() -> None:
            _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
            handles = []
            for _ in range(HANDLES):
                handles.append(os.scandir(crowd))
                next(handles[-1])
                if changes:
                    (crowd / "hers").touch()
                    (crowd / "hers").unlink()
            grown = resident_bytes(lab.pid) - before
            assert grown < 40 << 20, f"{grown >> 20} MiB"

        as_user(ALICE, crowd_in)
