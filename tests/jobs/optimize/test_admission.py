"""Optimize beside a reserve: what does not fit is left, and nothing is stored in vain."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dedupd_core.errors import NoSpace
from dedupd_core.system.disk import Disk
from dedupd_core.units import KIB, MIB, parse_size
from jobs.frame.run import JobRun
from jobs.optimize.optimize_job import Optimize, OptimizeReport
from tests.conftest import MakeFileSystem
from tests.support.lab import (
    Lab,
    fill_to_the_brim,
    free_bytes,
    new_lab,
    noise,
    repeated,
    store_files,
    write_out,
)

pytestmark = pytest.mark.root

TAKES_ALL = 'min_age = "0s"\nmin_size = 1\nexclude = ["*.theirs"]\n'
SLACK_BYTES = 256 * KIB
"""Blocks of extents and directories, which a file system takes as it likes."""


def free_now(lab: Lab) -> int:
    """What is free once the file system has done what it was told."""
    write_out(lab.root)
    space = os.statvfs(lab.root)  # with the blocks that a file system keeps for root
    return space.f_bfree * space.f_frsize


def fill_disk(path: Path, leave: int = 0) -> None:
    """A user's file that takes all space but ``leave`` bytes."""
    space = os.statvfs(path.parent)
    with open(path, "wb", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, space.f_bavail * space.f_frsize - leave)


@contextmanager
def lowest_free(lab: Lab) -> Iterator[list[int]]:
    """The least that was free at any moment of the block."""
    lowest = [free_bytes(lab)]

    def look() -> None:
        lowest[0] = min(lowest[0], free_bytes(lab))

    with repeated(look, 0.0005):
        yield lowest


def write_large(path: Path, length: int, seed: int) -> None:
    with open(path, "wb") as file:
        for at in range(0, length, 16 * MIB):
            file.write(noise(min(16 * MIB, length - at), seed + at))


@pytest.mark.parametrize(
    ("size", "free", "large"),
    [("160M", "26M", "45M"), pytest.param("974M", "118M", "600M", marks=pytest.mark.slow)],
)
def test_a_file_that_does_not_fit_is_left_and_users_keep_the_reserve(
    loop_fs: MakeFileSystem, size: str, free: str, large: str
) -> None:
    lab = new_lab(loop_fs("ext4", size) / "volume")
    lab.set_policy(TAKES_ALL)
    small = {f"a{at}": noise(500 * KIB, at) for at in range(20)}
    for name, content in small.items():
        lab.put(name, content)
    write_large(lab.data / "m-large", parse_size(large), 1)
    lab.put("z-copy", small["a3"])
    fill_disk(lab.data / "of.theirs", leave=parse_size(free))
    space = os.statvfs(lab.root)
    reserve = space.f_blocks * space.f_frsize // 10
    before = free_now(lab)
    with lowest_free(lab) as lowest:
        report = lab.optimize()
    assert lowest[0] >= reserve - SLACK_BYTES
    assert report.files_optimized == 21
    assert report.files_left == {"no room for": 1}
    assert report.errors == 1
    assert report.messages[0].startswith("m-large: skipped: it needs ")
    assert lab.stub("m-large") is None
    after = free_now(lab)
    assert before - 2 * MIB <= after  # the catalogue was made

    again = lab.optimize()
    assert (again.files_optimized, again.sums.stored_bytes) == (0, 0)
    assert again.files_left == {"no room for": 1}
    assert free_now(lab) >= after - 16 * KIB
    (lab.data / "users write on").write_bytes(noise(10 * MIB, 7))
    lab.verify_clean()

    (lab.data / "of.theirs").unlink()
    (lab.data / "users write on").unlink()
    lab.set_policy(TAKES_ALL + 'reserve = "1 MiB"\n')
    if size == "160M":
        assert lab.optimize().files_left == {}
        assert lab.stub("m-large") is not None
        lab.verify_clean()


class UsersFill(Disk):
    """Users fill the disk when a job has written so many bytes to its containers."""

    def __init__(self, path: Path, after_bytes: int) -> None:
        self._path = path
        self._left = after_bytes

    def write_out(self, fd: int, data: memoryview, offset: int) -> None:
        if self._left >= 0:
            self._left -= len(data)
            if self._left < 0:
                fill_to_the_brim(self._path)
        super().write_out(fd, data, offset)


def optimize_while_users_fill(lab: Lab, after_bytes: int) -> OptimizeReport:
    """The report of a run that ends because users take all space."""
    disk, lab.disk = lab.disk, UsersFill(lab.root / "filler", after_bytes)
    with lab.opened() as volume, volume.job_lock():
        job = Optimize(volume, JobRun("optimize"))
        with pytest.raises(NoSpace):
            job.recorded()
        lab.disk = disk
        [kept] = volume.hints.runs(1)
        assert "no space left" in kept["outcome"]
        return job.report()


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs"])
def test_what_was_stored_in_vain_is_cut_off_at_once(loop_fs: MakeFileSystem, kind: str) -> None:
    lab = new_lab(loop_fs(kind, "400M") / "volume")
    lab.set_policy(TAKES_ALL + "reserve = 0\n")
    first = noise(3 * MIB, 5)
    lab.put("first", first)
    lab.optimize()
    write_large(lab.data / "large", 90 * MIB, 1)
    stored = store_files(lab)
    free_now(lab)
    report = optimize_while_users_fill(lab, 40 * MIB)
    assert report.files_optimized == 0
    assert report.cut_bytes >= 30 * MIB
    kept = {n: s for n, s in store_files(lab).items() if s > 64 + 4096}
    assert kept == {n: s for n, s in stored.items() if s > 64 + 4096}
    assert free_now(lab) >= 30 * MIB  # what was cut is free, for users
    lab.verify_clean()
    assert lab.read("first") == first

    (lab.root / "filler").unlink()
    lab.optimize()
    assert lab.stub("large") is not None
    lab.verify_clean()


def test_files_that_became_stubs_before_the_disk_was_full_stay_stubs(
    loop_fs: MakeFileSystem,
) -> None:
    lab = new_lab(loop_fs("ext4", "300M") / "volume")
    lab.set_policy(TAKES_ALL + "reserve = 0\n")
    contents = {f"a{at}": noise(2 * MIB + at, at) for at in range(8)}
    for name, content in contents.items():
        lab.put(name, content)
    write_large(lab.data / "m-large", 90 * MIB, 1)
    report = optimize_while_users_fill(lab, 60 * MIB)
    assert report.files_optimized >= len(contents) - 1  # one finds no place for its recipe
    assert report.cut_bytes >= 30 * MIB
    assert {name: lab.read(name) for name in contents} == contents
    lab.verify_clean()
