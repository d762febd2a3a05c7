"""A file whose attributes leave no space for that of a stub: left, said, and not tried again."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dedupd_core.errors import EXIT_DONE
from dedupd_core.units import KIB
from tests.conftest import MakeFileSystem
from tests.support.lab import Lab, fill_to_the_brim, free_bytes, new_lab, noise, run_cli
from tests.support.mounts import MountedLab, mounted_lab

pytestmark = pytest.mark.root

WHY = "its attributes leave no space for that of a stub"
CONTENT = noise(200 * KIB)


def fill_with_attributes(path: Path) -> int:
    """As many as there is room for; how many these are."""
    for number in range(200):
        try:
            os.setxattr(path, f"user.k{number:03}", b"v" * 40)
        except OSError:
            return number
    raise AssertionError("there is room for more")


@pytest.fixture(params=["unmounted", "mounted"])
def lab(request: pytest.FixtureRequest, loop_fs: MakeFileSystem) -> Iterator[Lab]:
    point = loop_fs("ext4", "256M")
    if request.param == "unmounted":
        yield new_lab(point / "volume")
        return
    with mounted_lab(point) as mounted:
        yield mounted


@pytest.mark.parametrize("min_saving", ["0", "0.05"])
def test_such_a_file_is_left_for_good_and_without_an_error(lab: Lab, min_saving: str) -> None:
    lab.set_policy(f'min_age = "0s"\nmin_size = "1"\nmin_file_saving = {min_saving}\n')
    fill_with_attributes(lab.put("full", CONTENT))
    lab.put("copy", CONTENT)
    lab.put("third", CONTENT)
    path = (lab.view if isinstance(lab, MountedLab) else lab.root) / "full"
    first = lab.optimize()
    assert (first.files_optimized, first.errors, first.files_left) == (2, 0, {WHY: 1})
    for _ in range(2):
        again = lab.optimize()
        assert (again.sums.raw_bytes, again.errors) == (0, 0)
        assert again.files_skipped[WHY] == 1
    done = run_cli("run", "optimize", lab.root)
    assert done.returncode == EXIT_DONE and WHY in done.stdout
    described = run_cli("file", path)
    assert WHY in described.stdout and "next run" not in described.stdout
    left = run_cli("jobs", "--left", lab.root)
    assert WHY in left.stdout
    os.removexattr(lab.data / "full", "user.k000")
    os.removexattr(lab.data / "full", "user.k001")
    assert lab.optimize().files_optimized == 1
    assert lab.read("full") == CONTENT


def test_a_full_disk_is_another_matter(loop_fs: MakeFileSystem) -> None:
    """Then ext4 says the same of an attribute that needs a block, and the next run tries again."""
    lab = new_lab(loop_fs("ext4", "64M") / "volume")
    lab.set_policy('min_age = "0s"\nmin_size = "1"\nreserve = 0\n')
    path = lab.put("file", CONTENT)
    for number in range(4):  # what its inode has room for
        os.setxattr(path, f"user.k{number}", b"v" * 16)
    lab.put("copy", CONTENT)
    fill_to_the_brim(lab.data / "ballast")
    assert free_bytes(lab) < 64 * KIB
    assert WHY not in {**lab.optimize().files_left}
    (lab.data / "ballast").unlink()
    assert lab.optimize().files_optimized == 2
