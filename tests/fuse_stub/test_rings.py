"""Requests by io_uring (native/src/mount/session/rings): what does not wait, and what has to."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from dedupd_core.errors import DedupdError
from dedupd_core.system.processes import cores
from tests.fuse_stub.test_overflow_readers import HELD_S, ask, serve_held
from tests.support.lab import noise
from tests.support.mounts import MountedLab, Nursery, mounted_lab
from tests.support.ways import RING

pytestmark = [pytest.mark.root, pytest.mark.parametrize("way", [RING], indirect=True)]

BLOCK = 4096
MORE_MAX = 256
"""Threads of rings beyond two for each processor (crew.rs)."""


@contextmanager
def held(lab: MountedLab) -> Iterator[Callable[[], bool]]:
    """For a block in which Python's thread is held up; gives whether it is so for sure."""
    hold = Path(f"{lab.view}.hold")
    hold.touch()
    began = time.monotonic()
    with ThreadPoolExecutor(1) as pool, lab.client() as client:
        asked = pool.submit(client.call, "status")
        time.sleep(HELD_S / 10)  # until it has begun
        try:
            yield lambda: time.monotonic() - began < HELD_S
            assert asked.result()["uptime_s"] > 0
            assert time.monotonic() - began >= HELD_S, "it was not held"
        finally:
            hold.unlink()


def test_looks_do_not_wait_for_python_and_changes_do(tmp_path: Path) -> None:
    with mounted_lab(tmp_path, nursery=Nursery(serve_held)) as lab:
        assert lab.status()["by_ring"]
        (lab.view / "f").write_bytes(b"content")
        with held(lab) as goes_on:
            for number in range(20):
                ask(lab.view / "f")
                assert not (lab.view / f"{number}").exists()
            assert goes_on(), "looks have waited for Python"
            os.chmod(lab.view / "f", 0o600)
            assert not goes_on(), "a change was made beside what Python was doing"
        assert (lab.view / "f").stat().st_mode & 0o777 == 0o600


def threads(lab: MountedLab, name: str) -> int:
    tasks = Path(f"/proc/{lab.pid}/task").glob("*/comm")
    return sum(path.read_text().startswith(name) for path in tasks)


def test_requests_that_wait_hold_up_no_others_of_their_processor(tmp_path: Path) -> None:
    """More of them than there are threads, all from one processor."""
    with mounted_lab(tmp_path, nursery=Nursery(serve_held)) as lab:
        names = [lab.view / f"{number}" for number in range(40)]
        for name in names:
            name.touch()
        all_processors = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {max(all_processors)})
        try:
            with ThreadPoolExecutor(len(names)) as pool, held(lab) as goes_on:
                changes = [pool.submit(os.chmod, name, 0o600) for name in names]
                for _ in range(20):
                    ask(names[0])
                assert goes_on(), "looks have waited behind changes"
            for change in changes:
                change.result()
        finally:
            os.sched_setaffinity(0, all_processors)
        assert len(names) <= threads(lab, "mount-ring") <= 2 * cores() + MORE_MAX
        assert all(name.stat().st_mode & 0o777 == 0o600 for name in names)


def test_writes_beside_commits_are_in_the_files(tmp_path: Path) -> None:
    """Bytes that begin and end within blocks: one that came between the two steps of a commit would
    have zeros around it."""
    with mounted_lab(tmp_path) as lab:
        has_ended = threading.Event()
        contents = [bytearray(noise(9 * BLOCK, number)) for number in range(8)]
        for number, content in enumerate(contents):
            (lab.view / f"{number}").write_bytes(content)

        def write(number: int) -> None:
            content, path = contents[number], lab.view / f"{number}"
            step = 0
            while not has_ended.is_set():
                step += 1
                at = step * 1237 % (len(content) - 100)
                new = noise(100, number * 1_000_000 + step)
                with open(path, "r+b", buffering=0) as file:
                    file.seek(at)
                    assert file.write(new) == 100
                content[at : at + 100] = new
                if step % 50 == 0:
                    assert path.read_bytes() == content
                    time.sleep(0.002)

        with ThreadPoolExecutor(len(contents)) as pool:
            writers = [pool.submit(write, number) for number in range(len(contents))]
            end = time.monotonic() + 8
            while time.monotonic() < end and not any(writer.done() for writer in writers):
                try:
                    lab.optimize()
                except DedupdError:
                    continue  # another run is at its end
            has_ended.set()
            for writer in writers:
                writer.result()
        lab.unmount()
        lab.mount()
        for number, content in enumerate(contents):
            assert (lab.view / f"{number}").read_bytes() == content


def test_threads_for_others_are_bound_to_no_processor(tmp_path: Path) -> None:
    with mounted_lab(tmp_path) as lab:
        (lab.view / "f").write_bytes(noise(1 << 20))
        with open(lab.view / "f", "r+b") as file:
            os.fsync(file.fileno())
        tasks = [path.parent for path in Path(f"/proc/{lab.pid}/task").glob("*/comm")]
        bound = {
            (task / "comm").read_text().strip()
            for task in tasks
            if len(os.sched_getaffinity(int(task.name))) == 1
        }
        assert bound and all(name.startswith(("mount-ring", "ring-waker")) for name in bound)
