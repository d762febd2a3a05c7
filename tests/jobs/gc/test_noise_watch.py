"""A collection stops where many stubs were overwritten with what looks encrypted."""

import gzip
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dedupd_core.deleted.alarm import accept, read_state
from dedupd_core.errors import NoiseWritten
from dedupd_core.units import KIB
from jobs.gc.noise_watch import FILES_MIN
from jobs.usage.volume_figures import volume_figures
from tests.support.lab import noise, prose
from tests.support.mounts import MountedLab, mounted_lab

pytestmark = pytest.mark.root

PLENTY = {"space_low": "0", "space_critical": "0", "reserve": "0"}
COUNT = FILES_MIN + 10


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[MountedLab]:
    """Many texts, all of them stubs."""
    with mounted_lab(tmp_path, {"keep_deleted": "7d", **PLENTY}) as one:
        for number in range(COUNT):
            (one.view / f"{number}.txt").write_bytes(prose(20 * KIB, number))
        one.optimize()
        yield one
        one.unmount()
        one.verify_clean()


def encrypt_in_place(path: Path, number: int) -> None:
    with open(path, "r+b") as file:
        file.write(noise(20 * KIB, number))


def encrypt_anew(path: Path, number: int) -> None:
    path.write_bytes(noise(20 * KIB, number))


def encrypt_over(path: Path, number: int) -> None:
    new = path.with_suffix(".new")
    new.write_bytes(noise(20 * KIB, number))
    new.rename(path)


def encrypt_beside(path: Path, number: int) -> None:
    path.with_name(f"{path.name}.locked").write_bytes(noise(20 * KIB, number))
    path.unlink()


@pytest.mark.parametrize("encrypt", [encrypt_in_place, encrypt_anew, encrypt_over, encrypt_beside])
def test_texts_that_become_noise_stop_it_until_that_is_accepted(
    lab: MountedLab, encrypt: Callable[[Path, int], None]
) -> None:
    for number in range(COUNT):
        encrypt(lab.view / f"{number}.txt", number)
    for _ in range(2):
        with pytest.raises(NoiseWritten, match=r"undelete --since"):
            lab.collect()
    with lab.opened() as volume:
        (told,) = [one for one in volume_figures(volume).messages if "encrypted" in one]
        assert f"{COUNT} files" in told
        assert accept(volume.base_fd, volume.disk) is not None
        assert read_state(volume.base_fd).alarm is None
    assert lab.collect(all_garbage=True).errors == 0


def test_files_of_many_users_count_together(lab: MountedLab) -> None:
    """Each user has logs of their own, with fewer files than raise an alarm."""
    for number in range(COUNT):
        path = lab.view / f"{number}.txt"
        os.chown(path, 40001 + number % 10, -1)
        encrypt_in_place(path, number)
    with pytest.raises(NoiseWritten, match=f"{COUNT} files"):
        lab.collect()
    with lab.opened() as volume:
        assert accept(volume.base_fd, volume.disk) is not None


def edit(path: Path, number: int) -> None:
    with open(path, "r+b") as file:
        file.seek(5000)
        file.write(b"an edit")


def rewrite(path: Path, number: int) -> None:
    path.write_bytes(prose(25 * KIB, 1000 + number))


def compress(path: Path, number: int) -> None:
    path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()


def remove(path: Path, number: int) -> None:
    path.unlink()


SLOW_WORK = [pytest.param(one, marks=pytest.mark.slow) for one in (edit, rewrite, remove)]


@pytest.mark.parametrize("work", [compress, *SLOW_WORK])
def test_work_of_users_does_not_stop_it(lab: MountedLab, work: Callable[[Path, int], None]) -> None:
    for number in range(COUNT):
        work(lab.view / f"{number}.txt", number)
    assert lab.collect(all_garbage=True).errors == 0


@pytest.mark.slow
def test_noise_over_noise_does_not_stop_it(lab: MountedLab) -> None:
    for number in range(2 * COUNT):
        (lab.view / f"{number}.bin").write_bytes(noise(8 * KIB, number))
    lab.optimize()
    for number in range(2 * COUNT):
        (lab.view / f"{number}.bin").write_bytes(noise(8 * KIB, 5000 + number))
    assert lab.collect().errors == 0
