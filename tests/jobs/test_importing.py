"""A tree is imported with all that belongs to it, also where the disk has no room for it plain."""

import os
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dedupd_core.errors import UsageError
from dedupd_core.units import KIB, MIB
from jobs.frame.run import Cancelled, JobRun
from jobs.importing import Import, ImportReport
from tests.support import crash
from tests.support.lab import Lab, new_lab, noise, run_cli
from tests.support.mounts import mounted_lab
from tests.support.odd_files import PARTS
from tests.support.tree_compare import assert_same

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything that a tree can have."""
    root = tmp_path_factory.mktemp("source")
    rng = random.Random(1)
    for name, fill in PARTS.items():
        (root / name).mkdir()
        fill(os.fsencode(root / name), rng)
    return root


def imported(lab: Lab, source: Path, folder: bytes = b"") -> ImportReport:
    with lab.opened() as volume, volume.job_lock():
        return Import(volume, JobRun("import"), str(source), folder, privileges=True).run()


@pytest.mark.slow
def test_everything_comes_with_all_that_belongs_to_it(tmp_path: Path, source: Path) -> None:
    lab = new_lab(tmp_path / "volume")
    report = imported(lab, source, b"a/b")
    assert report.messages == []
    with mounted(tmp_path, lab) as view:
        assert_same(source, view / "a/b")
    assert lab.verify_clean().stubs > 4


@contextmanager
def mounted(directory: Path, lab: Lab) -> Iterator[Path]:
    view = directory / "view"
    view.mkdir(exist_ok=True)
    assert run_cli("mount", lab.root, view).returncode == 0
    try:
        yield view
    finally:
        assert run_cli("umount", view).returncode == 0


def test_users_of_a_mounted_volume_see_what_comes(tmp_path: Path, source: Path) -> None:
    with mounted_lab(tmp_path) as lab:
        assert os.listdir(lab.view) == []
        report = imported(lab, source, b"all")
        assert report.messages == []
        assert_same(source, lab.view / "all")
        again = imported(lab, source, b"all")
        assert again.files == 0
        assert again.already >= report.files
        lab.unmount()
        lab.verify_clean()


class StoppedRun(JobRun):
    """A run that is stopped at its n-th safe point."""

    def __init__(self, points: int) -> None:
        super().__init__("import")
        self._points = points

    def safe_point(self) -> None:
        self._points -= 1
        if self._points <= 0:
            self.cancel()
        super().safe_point()


def test_an_import_that_was_stopped_goes_on(tmp_path: Path, source: Path) -> None:
    lab = new_lab(tmp_path / "volume")
    for stop_at in (3, 30, 60):
        with lab.opened() as volume, volume.job_lock(), pytest.raises(Cancelled):
            run = StoppedRun(stop_at)
            Import(volume, run, str(source), b"all", privileges=True).run()
    assert imported(lab, source, b"all").messages == []
    with mounted(tmp_path, lab) as view:
        assert_same(source, view / "all")
    lab.verify_clean()


def copies(root: Path, distinct: int, copies: int, file_bytes: int) -> int:
    """Several copies of files that do not compress; returns their length."""
    for copy in range(copies):
        (root / str(copy)).mkdir(parents=True)
        for number in range(distinct):
            (root / str(copy) / str(number)).write_bytes(noise(file_bytes, number))
    return distinct * copies * file_bytes


def fits(directory: Path, size_mb: int, distinct: int, count: int, file_bytes: int) -> None:
    """Import more than a disk of ``size_mb`` has room for, with the reserve kept throughout."""
    source = directory / "source"
    total = copies(source, distinct, count, file_bytes)
    assert total > size_mb * MIB
    with crash.tmpfs(directory, size_mb * 2) as memory, crash.ext4(memory, size_mb) as disk:
        lab = new_lab(disk / "volume")
        report = imported(lab, source)
        assert report.messages == []
        assert report.length_bytes == total
        assert report.batches > 1
        assert report.room_bytes_min > 0
        shutil.rmtree(source / "0")
        for copy in range(1, count):
            for number in range(distinct):
                assert lab.read(f"{copy}/{number}") == noise(file_bytes, number)
        lab.verify_clean()


def test_a_volume_takes_in_more_than_its_disk_holds(tmp_path: Path) -> None:
    fits(tmp_path, size_mb=64, distinct=6, count=3, file_bytes=4 * MIB)


@pytest.mark.slow
def test_eight_for_three_on_a_disk_of_five(tmp_path: Path) -> None:
    fits(tmp_path, size_mb=250, distinct=75, count=3, file_bytes=2 * MIB - 5 * KIB)


def test_a_file_that_has_no_room_is_named_and_the_others_come(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "a").write_bytes(noise(60 * MIB))
    (source / "b").write_bytes(noise(MIB, 1))
    with crash.tmpfs(tmp_path, 100) as memory, crash.ext4(memory, 48) as disk:
        lab = new_lab(disk / "volume")
        report = imported(lab, source)
        (message,) = report.messages
        assert message.startswith("a: ")
        assert "no space" in message
        assert lab.read("b") == noise(MIB, 1)


def test_a_file_that_is_one_hole_needs_no_room(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    with open(source / "hole", "xb") as file:
        file.truncate(1 << 43)
    report = imported(lab := new_lab(tmp_path / "volume"), source)
    assert report.messages == []
    assert (lab.data / "hole").stat().st_size == 1 << 43


def test_a_volume_is_not_imported_into_itself(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "volume")
    for wrong in (tmp_path, lab.root, lab.data):
        with pytest.raises(UsageError, match="is inside the volume, or contains it"):
            imported(lab, wrong)


def test_the_command_says_what_came(tmp_path: Path) -> None:
    lab, source = new_lab(tmp_path / "volume"), tmp_path / "source"
    source.mkdir()
    (source / "file").write_bytes(noise(9 * KIB))
    result = run_cli("import", source, lab.root, "old")
    assert result.returncode == 0, result.stderr
    assert "1 file imported" in result.stdout
    assert lab.read("old/file") == noise(9 * KIB)
    assert run_cli("import", source, lab.root, "../old").returncode == 2
