"""Jobs change files below, and users see no new time of change (native: change_times.rs)."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dedupd_core.system.files import opened
from tests.support.lab import noise
from tests.support.mounts import MountedLab, mounted_lab

pytestmark = pytest.mark.root

SIZE = 300_000
COUNT = 3


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[MountedLab]:
    with mounted_lab(tmp_path) as lab:
        yield lab


def test_an_archive_made_beside_jobs_is_whole(lab: MountedLab) -> None:
    """What the archiver compares is the time when it has opened a file, and when it has read it."""
    paths = [lab.view / f"{number}" for number in range(COUNT)]
    for path in paths:
        path.write_bytes(noise(SIZE))
    command = ["tar", "-C", str(lab.view), "-cf", "-", *(path.name for path in paths)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as tar:
        assert tar.stdout is not None and tar.stderr is not None
        tar.stdout.read(SIZE // 2)  # the rest waits for room
        for job in (lab.optimize, lab.unoptimize):
            job()
        tar.stdout.read()
        assert tar.stderr.read() == b""
    assert tar.returncode == 0


def test_what_is_open_keeps_its_time_while_jobs_change_it(lab: MountedLab) -> None:
    path = lab.view / "f"
    path.write_bytes(noise(SIZE))
    with opened(os.open(path, os.O_RDONLY)) as fd:
        before = os.fstat(fd).st_ctime_ns
        for job in (lab.optimize, lab.unoptimize, lab.optimize):
            job()
            assert os.fstat(fd).st_ctime_ns == path.stat().st_ctime_ns == before
            assert (lab.data / "f").stat().st_ctime_ns > before
        assert lab.stub("f") is not None


CHANGES: list[Callable[[Path], object]] = [
    lambda path: path.chmod(0o640),
    lambda path: os.chown(path, 7, 7),
    lambda path: os.setxattr(path, "user.x", b"1"),
    lambda path: path.rename(path.with_name("new name")).rename(path),
    lambda path: path.with_name("second").hardlink_to(path),
    lambda path: path.with_name("first").unlink(),
    lambda path: os.utime(path, (1, 1)),
    lambda path: path.write_bytes(noise(SIZE, 1)),
    lambda path: os.truncate(path, SIZE // 2),
]


@pytest.mark.parametrize("change", CHANGES)
def test_what_users_change_gets_the_time_of_that(
    lab: MountedLab, change: Callable[[Path], object]
) -> None:
    path = lab.view / "f"
    path.write_bytes(noise(SIZE))
    path.with_name("first").hardlink_to(path)
    before = path.stat().st_ctime_ns
    with opened(os.open(path, os.O_RDONLY)) as fd:
        lab.optimize()
        change(path)
        after = os.fstat(fd).st_ctime_ns
        assert after > before
        assert after == (lab.data / "f").stat().st_ctime_ns
