"""File systems that allocate more than one block at a time: XFS realtime files, ext4 bigalloc."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dedupd.errors import UnsuitableFileSystem
from dedupd.system.disk import Disk
from dedupd.volume.enabling.enable import enable
from tests.support.lab import Lab, noise, prose
from tests.support.mounts import mounted_lab
from tests.vm.guest.disks import loop_device, made, mounted, run

BIGALLOC = ["mkfs.ext4", "-q", "-O", "bigalloc", "-C", "65536"]
CONTENTS = {
    "whole": prose(512 << 10),
    "ends within an extent": prose(600_001, 1) + noise(77_777, 2),
    "small": prose(20_000, 3),
}


@contextmanager
def realtime(directory: Path, *, inherit: bool) -> Iterator[Path]:
    """An XFS with a realtime part, with extents of 64 KiB. ``inherit``: all files lie in it."""
    with (
        loop_device(directory / "image", 512 << 20) as device,
        loop_device(directory / "realtime", 512 << 20) as realtime,
    ):
        make = ("mkfs.xfs", "-q", "-m", "reflink=0,rmapbt=0", "-d", f"rtinherit={inherit:d}")
        run(*make, "-r", f"rtdev={realtime},extsize=64k", device)
        with mounted(device, directory / "mount", f"rtdev={realtime}") as point:
            yield point


def edit_and_check(point: Path, make: Callable[[Path], None] = Path.touch) -> None:
    """Make stubs, write to them, and make them plain: every byte is right at each step."""
    contents = {name: bytearray(content) for name, content in CONTENTS.items()}
    with mounted_lab(point) as lab:

        def check() -> None:
            for name, content in contents.items():
                assert (lab.view / name).read_bytes() == content, name

        for name, content in contents.items():
            make(lab.data / name)
            (lab.data / name).write_bytes(content)
        lab.optimize()
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


def test_a_volume_of_realtime_files_is_refused(tmp_path: Path) -> None:
    with realtime(tmp_path, inherit=True) as point:
        (point / "volume").mkdir()
        with pytest.raises(UnsuitableFileSystem, match="does not free a file that is punched"):
            enable(str(point / "volume"), policy_values={}, disk=Disk())


def test_realtime_files_in_a_volume(tmp_path: Path) -> None:
    def make(path: Path) -> None:
        run("xfs_io", "-f", "-c", "chattr +r", path)

    with realtime(tmp_path, inherit=False) as point:
        edit_and_check(point, make)


def test_clusters_of_ext4(tmp_path: Path) -> None:
    with made(tmp_path, BIGALLOC) as point:
        edit_and_check(point)
