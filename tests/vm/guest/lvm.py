"""Snapshots of logical volumes, classic and thin, while a volume on them is mounted and written."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from dedupd_core.errors import Busy
from tests.support.lab import noise, prose, run_cli
from tests.support.mounts import MountedLab, mounted_lab
from tests.support.sources import ROOT
from tests.vm.guest.disks import loop_device, mounted, run
from tests.vm.guest.kernel_features import need_modules

GROUP = "dedupd_test"
LINE_BYTES = 16
READ_ONLY = {"ext4": "ro,noload", "xfs": "ro,norecovery,nouuid"}
WRITABLE = {"ext4": "rw", "xfs": "rw,nouuid"}
CONTENTS = {"a": prose(900_000, 1), "b": noise(700_000, 2), "c": prose(300_000, 3)}


def lvm(*arguments: str) -> None:
    settings = "activation { udev_sync=0 udev_rules=0 monitoring=0 } devices { use_devicesfile=0 }"
    run("lvm", arguments[0], "--config", settings, "-y", *arguments[1:])


@dataclass
class Written:
    """A user's log: each line is a number, and is synced before the next one."""

    path: Path
    synced: int = 0

    @contextmanager
    def growing(self) -> Iterator[None]:
        over = threading.Event()

        def write() -> None:
            with open(self.path, "ab", buffering=0) as file:
                while not over.is_set():
                    file.write(b"%015d\n" % self.synced)
                    os.fsync(file.fileno())
                    self.synced += 1

        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


@dataclass
class Share:
    kind: str
    lab: MountedLab
    log: Written
    before: int = 0
    """Lines of the log that were synced before the snapshot."""

    def snapshot(self, *how: str) -> None:
        """Make a snapshot while a user writes."""
        with self.log.growing():
            while self.log.synced < 5:
                os.sched_yield()
            self.before = self.log.synced
            lvm("lvcreate", "-s", "-n", "copy", *how, f"{GROUP}/share")


@pytest.fixture(params=["classic ext4", "thin xfs"])
def share(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Share]:
    how, kind = request.param.split()
    need_modules("dm_snapshot" if how == "classic" else "dm_thin_pool")
    with loop_device(tmp_path / "image", 1536 << 20) as device:
        lvm("vgcreate", GROUP, device)
        if how == "classic":
            lvm("lvcreate", "-n", "share", "-L", "500M", GROUP)
        else:
            lvm("lvcreate", "--type", "thin-pool", "-n", "pool", "-L", "1100M", GROUP)
            lvm("lvcreate", "-n", "share", "-V", "500M", "--thinpool", f"{GROUP}/pool")
        try:
            run(f"mkfs.{kind}", "-q", f"/dev/{GROUP}/share")
            with (
                mounted(f"/dev/{GROUP}/share", tmp_path / "mount") as point,
                mounted_lab(point) as lab,
            ):
                for name, content in CONTENTS.items():
                    lab.make_stub(name, content)
                share = Share(kind, lab, Written(lab.view / "log"))
                share.snapshot(*(["-L", "300M"] if how == "classic" else ["-kn"]))
                yield share
                assert contents_of(lab.view)[0] == CONTENTS
                lab.unmount()
                lab.verify_clean()
        finally:
            lvm("vgremove", "-f", GROUP)


def contents_of(tree: Path) -> tuple[dict[str, bytes], bytes]:
    """The files that do not change, and the log."""
    found = {name: (tree / name).read_bytes() for name in os.listdir(tree)}
    log = found.pop("log")
    return found, log


def check(tree: Path, lines: int) -> None:
    found, log = contents_of(tree)
    assert found == CONTENTS
    whole = len(log) // LINE_BYTES
    assert log == b"".join(b"%015d\n" % number for number in range(whole))
    assert whole >= lines, "a line that was synced before the snapshot is missing"


def test_a_snapshot_is_read_beside_the_volume(share: Share, tmp_path: Path) -> None:
    """By ``mount --snapshot``, and by the reader that knows nothing but the format."""
    with mounted(f"/dev/{GROUP}/copy", tmp_path / "copy", READ_ONLY[share.kind]) as point:
        seen = tmp_path / "seen"
        seen.mkdir()
        done = run_cli("mount", "--snapshot", point / "volume", seen)
        assert done.returncode == 0, done.stdout + done.stderr
        try:
            check(seen, share.before)
        finally:
            assert run_cli("umount", seen).returncode == 0
        taken = tmp_path / "taken"
        taken.mkdir(mode=0o700)
        reader = ROOT / "dedupd_reader/reader.py"
        run(sys.executable, "-I", reader, "extract", point / "volume", "--to", taken)
        check(taken, share.before)


def test_a_snapshot_takes_the_place_of_the_volume(share: Share, tmp_path: Path) -> None:
    """It is refused beside the mounted original; then it takes changes, and jobs."""
    with mounted(f"/dev/{GROUP}/copy", tmp_path / "copy", WRITABLE[share.kind]) as point:
        copy = MountedLab(point / "volume", tmp_path / "seen")
        copy.view.mkdir()
        with pytest.raises(Busy, match="a copy of this volume is mounted"):
            copy.mount()
        share.lab.unmount()
        copy.verify_clean()
        copy.mount()
        try:
            check(copy.view, share.before)
            with open(copy.view / "a", "r+b") as file:
                file.write(b"changed in the copy")
            copy.optimize()
            copy.collect()
            changed = b"changed in the copy" + CONTENTS["a"][19:]
            assert (copy.view / "a").read_bytes() == changed
        finally:
            copy.unmount()
        copy.verify_clean()
    share.lab.mount()
