"""A disk that fails below a volume (dm-error, dm-flakey): errors, never wrong bytes."""

import errno
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from dedupd_core.errors import DedupdError
from dedupd_core.format.container import Kind
from tests.support.lab import noise, prose, run_cli
from tests.support.mounts import MountedLab, mounted_lab
from tests.vm.guest.disks import Mapped, drop_caches, loop_device, mapped, mounted, run
from tests.vm.guest.kernel_features import need_modules

MAKE = {
    "ext4": ["mkfs.ext4", "-q", "-E", "lazy_itable_init=0"],
    "xfs": ["mkfs.xfs", "-q", "-f"],
    "btrfs": ["mkfs.btrfs", "-q", "-f"],
}
FLICKER_S = 6
CONTENTS = {"a": prose(900_000, 1), "b": noise(700_000, 2), "c": prose(300_000, 3)}


@dataclass
class Shaky:
    """A volume on a device that can be made to fail."""

    lab: MountedLab
    disk: Mapped
    mounts: ExitStack
    point: Path

    def mount_again(self) -> None:
        """Heal the disk and mount everything anew: what an administrator does after it."""
        with suppress(DedupdError):
            self.lab.unmount()
        self.disk.heal()
        self.mounts.close()
        self.mounts.enter_context(mounted(self.disk.device, self.point))
        self.lab.mount()

    def read(self) -> dict[str, bytes | int]:
        """What each file reads as: its bytes, or the error."""
        found: dict[str, bytes | int] = {}
        for name in CONTENTS:
            try:
                found[name] = (self.lab.view / name).read_bytes()
            except OSError as error:
                found[name] = error.errno or 0
        return found


@pytest.fixture(params=["ext4", "xfs", "btrfs"])
def shaky(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shaky]:
    need_modules("dm_flakey")
    with (
        loop_device(tmp_path / "image", 512 << 20) as below,
        mapped(below) as disk,
        ExitStack() as mounts,
    ):
        run(*MAKE[request.param], disk.device)
        point = mounts.enter_context(mounted(disk.device, tmp_path / "mount"))
        with mounted_lab(point) as lab:
            for name, content in CONTENTS.items():
                lab.make_stub(name, content)
            shaky = Shaky(lab, disk, mounts, point)
            yield shaky
            disk.heal()
            assert shaky.read() == CONTENTS
            lab.unmount()
            lab.verify_clean()


def forget(lab: MountedLab) -> None:
    """Make sure that neither mount nor kernel has any content in memory."""
    lab.unmount()
    lab.mount()
    drop_caches()


def right_or_failed(found: dict[str, bytes | int]) -> None:
    for name, content in found.items():
        assert content in (CONTENTS[name], errno.EIO), f"{name}: {content!r:.80}"


def test_blocks_of_the_store_that_fail_are_errors_until_they_do_not(shaky: Shaky) -> None:
    container = shaky.lab.container(Kind.CHUNKS)
    ranges = sorted(_places(container))
    if run("findmnt", "-n", "-o", "FSTYPE", shaky.point).strip() == "btrfs":
        ranges = []  # its addresses are not those of the device
    forget(shaky.lab)
    for name in CONTENTS:
        os.stat(shaky.lab.view / name)
    if ranges:
        shaky.disk.break_ranges(ranges)
        found = shaky.read()
        right_or_failed(found)
        assert errno.EIO in found.values()
        done = run_cli("run", "scrub", "--report-only", shaky.lab.root)
        assert done.returncode == 4 or done.returncode == 1, done.stdout + done.stderr
    shaky.disk.heal()
    assert shaky.read() == CONTENTS


def test_a_disk_that_flickers_below_readers(shaky: Shaky) -> None:
    run("mount", "-o", "remount,noatime", shaky.point)
    os.sync()
    shaky.disk.flicker()
    failures = 0
    end = time.monotonic() + FLICKER_S
    while time.monotonic() < end:
        Path("/proc/sys/vm/drop_caches").write_text("3")
        found = shaky.read()
        right_or_failed(found)
        failures += sum(isinstance(content, int) for content in found.values())
    shaky.mount_again()
    assert shaky.read() == CONTENTS


def test_a_disk_that_fails_below_optimize(shaky: Shaky) -> None:
    """The job reports it, and what users have synced before is all that they find afterwards."""
    new = prose(1_200_000, 7)
    with open(shaky.lab.view / "new", "wb") as file:
        file.write(new)
        file.flush()
        os.fsync(file.fileno())
    os.sync()
    shaky.disk.refuse_writes()
    done = run_cli("run", "optimize", shaky.lab.root)
    assert done.returncode != 0, done.stdout + done.stderr
    assert done.stdout + done.stderr, "the error is named"
    assert "Traceback" not in done.stderr
    shaky.mount_again()
    assert shaky.read() == CONTENTS
    assert (shaky.lab.view / "new").read_bytes() == new
    assert shaky.lab.optimize().errors == 0
    assert (shaky.lab.view / "new").read_bytes() == new


def test_a_disk_that_is_gone_and_comes_back(shaky: Shaky) -> None:
    forget(shaky.lab)
    shaky.disk.break_all()
    right_or_failed(shaky.read())
    with pytest.raises(OSError), open(shaky.lab.view / "a", "r+b", buffering=0) as file:
        file.write(b"lost")
        os.fsync(file.fileno())
    done = run_cli("run", "scrub", "--full", shaky.lab.root)
    assert done.returncode != 0 and "Traceback" not in done.stderr, done.stderr
    shaky.mount_again()
    found = (shaky.lab.view / "a").read_bytes()
    assert found in (CONTENTS["a"], b"lost" + CONTENTS["a"][4:])
    (shaky.lab.view / "a").write_bytes(CONTENTS["a"])


def _places(path: Path) -> list[tuple[int, int]]:
    """Where the bytes of a file lie on its device, by ``filefrag``: ranges of bytes."""
    places = []
    for row in run("filefrag", "-v", "-b512", path).splitlines():
        parts = row.replace(":", " ").replace("..", " ").split()
        if parts and parts[0].isdigit():
            places.append((int(parts[3]) * 512, (int(parts[4]) + 1) * 512))
    return places
