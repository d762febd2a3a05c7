"""Stubs that were written to: they are optimized again where that frees more than it costs."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dedupd_core.units import KIB
from jobs.tree.rewrite_cost import WRITTEN_LITTLE
from tests.support.lab import Lab, noise, prose, run_cli, store_files
from tests.support.mounts import MountedLab, mounted_lab

SIZE = 1024 * KIB


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[MountedLab]:
    with mounted_lab(tmp_path) as lab:
        yield lab


def minding(lab: Lab) -> None:
    """A policy by which a file has to save something."""
    lab.set_policy('min_age = "0s"\nmin_size = "1"\nmin_file_saving = 0.05\n')


def stubs(lab: MountedLab, count: int) -> list[str]:
    """Stubs of the same content."""
    names = [f"clone{number}" for number in range(count)]
    for name in names:
        (lab.view / name).write_bytes(noise(SIZE))
    assert lab.optimize().files_optimized == count
    minding(lab)
    return names


def write(lab: MountedLab, name: str, data: bytes, *offsets: int) -> None:
    with open(lab.view / name, "r+b") as file:
        for offset in offsets:
            file.seek(offset)
            file.write(data)
        os.fsync(file.fileno())


def test_small_overwrites_stay_in_their_files(lab: MountedLab) -> None:
    names = stubs(lab, 4)
    for number, name in enumerate(names):
        write(lab, name, noise(4096, 10 + number), *range(0, SIZE, 128 * KIB))
    before = store_files(lab)
    report = lab.optimize()
    assert (report.files_optimized, report.errors) == (0, 0)
    assert report.files_skipped[WRITTEN_LITTLE] == 4
    assert store_files(lab) == before
    described = run_cli("file", lab.view / names[0])
    assert "next run" not in described.stdout
    left = run_cli("jobs", "--left", lab.root)
    assert left.stdout.count(WRITTEN_LITTLE) == 4
    assert '"waiting_files": 0' in run_cli("status", "--here", "--json", lab.root).stdout
    lab.unmount()
    lab.verify_clean()


def test_scattered_writes_never_cost_more_than_they_free(lab: MountedLab) -> None:
    """Of any density, and of content that compresses or does not."""
    names = stubs(lab, 8)
    for number, name in enumerate(names):
        data = (prose if number % 2 else noise)(4096 * (1 + number // 3), number)
        write(lab, name, data, *range(4096 * number, SIZE - len(data), 32 * KIB << number // 2))
    wanted = {name: (lab.view / name).read_bytes() for name in names}
    report = lab.optimize()
    assert report.sums.stored_bytes + report.recipe_bytes <= report.freed_bytes
    assert {name: (lab.view / name).read_bytes() for name in names} == wanted


def test_what_was_all_written_over_is_taken(lab: MountedLab) -> None:
    (name,) = stubs(lab, 1)
    write(lab, name, noise(SIZE, 7), 0)
    assert lab.optimize().files_spliced == 1
    assert lab.read(name) == noise(SIZE, 7)


def test_a_file_that_was_truncated_and_written_anew_is_taken(lab: MountedLab) -> None:
    (name,) = stubs(lab, 1)
    os.truncate(lab.view / name, 5000)
    write(lab, name, noise(5000, 7), 0)
    assert lab.optimize().files_spliced == 1


def test_what_was_appended_is_taken(lab: MountedLab) -> None:
    (name,) = stubs(lab, 1)
    write(lab, name, noise(SIZE, 7), SIZE)
    assert lab.optimize().files_spliced == 1


def test_chunks_that_compress_are_taken_sooner(lab: MountedLab) -> None:
    """What counts is what a chunk takes in the store, and not its length."""
    (lab.view / "prose").write_bytes(prose(SIZE))
    assert lab.optimize().files_optimized == 1
    minding(lab)
    write(lab, "prose", prose(64 * KIB, 5), 100 * KIB)
    assert lab.optimize().files_spliced == 1


def test_a_policy_that_takes_every_file_takes_these(lab: MountedLab) -> None:
    (name,) = stubs(lab, 1)
    lab.set_policy('min_age = "0s"\nmin_size = "1"\n')
    write(lab, name, noise(4096, 5), 0)
    assert lab.optimize().files_spliced == 1
