"""File systems that allocate more than one block at a time: XFS realtime files, ext4 bigalloc."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dedupd_core.errors import UnsuitableFileSystem
from dedupd_core.stub.transition import LARGE_UNITS
from dedupd_core.system.disk import Disk
from dedupd_core.volume.enabling.enable import enable
from tests.support.lab import Lab, noise, prose
from tests.support.mounts import mounted_lab
from tests.vm.guest.disks import drop_caches, loop_device, made, mounted, run

BIGALLOC = ["mkfs.ext4", "-q", "-O", "bigalloc", "-C", "65536"]
CONTENTS = {
    "whole": prose(512 << 10),
    "ends within an extent": prose(600_001, 1) + noise(77_777, 2),
    "small": prose(20_000, 3),
}


@contextmanager
def realtime(directory: Path, *, inherit: bool, extent: str = "64k") -> Iterator[Path]:
    """Mount an XFS with a realtime device. ``inherit``: all new files lie on this device."""
    with (
        loop_device(directory / "image", 512 << 20) as device,
        loop_device(directory / "realtime", 512 << 20) as realtime,
    ):
        make = ("mkfs.xfs", "-q", "-m", "reflink=0,rmapbt=0", "-d", f"rtinherit={inherit:d}")
        run(*make, "-r", f"rtdev={realtime},extsize={extent}", device)
        with mounted(device, directory / "mount", f"rtdev={realtime}") as point:
            yield point


def edit_and_check(point: Path, make: Callable[[Path], None] = Path.touch) -> int:
    """Make stubs, write to them, and expand them: every byte is correct at each step.

    Returns the number of stubs.
    """
    contents = {name: bytearray(content) for name, content in CONTENTS.items()}
    with mounted_lab(point) as lab:

        def check() -> None:
            for name, content in contents.items():
                assert (lab.view / name).read_bytes() == content, name

        for name, content in contents.items():
            make(lab.data / name)
            (lab.data / name).write_bytes(content)
        lab.optimize()
        stubs = sum(lab.stub(name) is not None for name in contents)
        check()
        lab.unmount()
        lab.mount()
        check()
        for name, content in contents.items():
            with open(lab.view / name, "r+b") as file:
                for at in (3, 17_000, 300_000):
                    if at < len(content):
                        os.pwrite(file.fileno(), b"an edit", at)
                        content[at : at + 7] = b"an edit"
        check()
        lab.optimize()
        check()
        lab.unmount()
        lab.verify_clean()
        assert Lab(lab.root).unoptimize().errors == 0
        lab.mount()
        check()
        lab.unmount()
        return stubs


def make_realtime(path: Path) -> None:
    """Make a file without blocks one of the realtime device."""
    run("xfs_io", "-f", "-c", "chattr +r", path)


@pytest.mark.parametrize("extent", ["16k", "64k"])
def test_a_volume_of_realtime_files_with_large_extents_is_refused(
    tmp_path: Path, extent: str
) -> None:
    with realtime(tmp_path, inherit=True, extent=extent) as point:
        (point / "volume").mkdir()
        with pytest.raises(UnsuitableFileSystem, match="on a realtime device"):
            enable(str(point / "volume"), policy_values={}, disk=Disk())


def test_realtime_files_with_large_extents_stay_plain(tmp_path: Path) -> None:
    """XFS writes zeros to a part of an extent that is punched: these would count as content."""
    with realtime(tmp_path, inherit=False) as point, mounted_lab(point) as lab:
        for name, content in CONTENTS.items():
            make_realtime(lab.data / name)
            (lab.data / name).write_bytes(content)
            lab.put(f"ordinary {name}", content)
        for job in range(2):
            report = lab.optimize()
            assert report.files_left == {LARGE_UNITS: len(CONTENTS)}, report.messages
            assert report.files_optimized == (len(CONTENTS) if job == 0 else 0)
            assert report.errors == 0
        for name, content in CONTENTS.items():
            for one in (name, f"ordinary {name}"):
                assert (lab.view / one).read_bytes() == content, one
            assert lab.stub(name) is None and lab.stub(f"ordinary {name}") is not None
        lab.unmount()
        lab.verify_clean()


def test_a_stub_that_became_a_realtime_file_is_read_and_not_written(tmp_path: Path) -> None:
    content = prose(300_000)
    with realtime(tmp_path, inherit=False) as point, mounted_lab(point) as lab:
        path = lab.make_stub("f", content)
        make_realtime(lab.data / "f")
        lab.unmount()
        lab.mount()
        assert path.read_bytes() == content
        with pytest.raises(OSError) as caught, open(path, "r+b", buffering=0) as file:
            file.write(b"an edit")
        assert caught.value.errno == errno.EOPNOTSUPP
        drop_caches()  # refused bytes show for a moment
        report = lab.unoptimize()
        assert LARGE_UNITS in report.messages[0], report.messages
        assert path.read_bytes() == content
        lab.unmount()
        lab.verify_clean()


def test_a_copy_in_a_realtime_directory_is_plain(tmp_path: Path) -> None:
    """``copy_file_range`` shares the recipe of a stub with its copy, but not there."""
    content = prose(300_000)
    with realtime(tmp_path, inherit=False) as point, mounted_lab(point) as lab:
        path = lab.make_stub("f", content)
        (lab.view / "realtime").mkdir()
        run("xfs_io", "-c", "chattr +t", lab.data / "realtime")
        shutil.copyfile(path, lab.view / "realtime/f")
        run("cp", path, lab.view / "realtime/g")
        for name in ("f", "g"):
            assert (lab.view / "realtime" / name).read_bytes() == content
            assert lab.stub(f"realtime/{name}") is None
        lab.unmount()
        lab.verify_clean()


def test_realtime_files_with_extents_of_a_block(tmp_path: Path) -> None:
    with realtime(tmp_path, inherit=False, extent="4k") as point:
        assert edit_and_check(point, make_realtime) == len(CONTENTS)


def test_clusters_of_ext4(tmp_path: Path) -> None:
    with made(tmp_path, BIGALLOC) as point:
        assert edit_and_check(point) == len(CONTENTS)
