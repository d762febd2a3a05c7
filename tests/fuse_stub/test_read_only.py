"""File systems that take no changes: the files can be read all the same, and nothing else can."""

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dedupd_core.format.stub import Flag
from dedupd_core.replica.replica import Replica, note_replica
from dedupd_core.system.extents import has_unwritten
from dedupd_core.volume.volume import Volume
from jobs.backup.receiver import ReplicaVolume
from tests.conftest import MakeFileSystem
from tests.support.lab import new_lab, noise, run_cli, stop_at
from tests.support.mounts import MountedLab, mounted_lab

pytestmark = pytest.mark.root

BUSY = 3
PLAIN = noise(100_000, seed=1)
STUB = noise(300_000, seed=2)
WRITTEN = noise(300_000, seed=3)
HALF = noise(300_000, seed=4)
GAP = slice(8192, 12288)


def fill(lab: MountedLab) -> dict[str, bytes]:
    """A file in each state: plain, a stub, one with blocks of its own, one whose commit was
    interrupted, and one with a block that is allocated and was never written."""
    lab.unmount()
    contents = {"stub": STUB, "written": WRITTEN, "gap": STUB[::-1]}
    for name, content in contents.items():
        lab.put(name, content)
    assert lab.optimize().files_optimized == 3
    lab.mount()
    with open(lab.view / "written", "r+b") as file:
        file.write(PLAIN)
    lab.unmount()
    contents |= {"written": PLAIN + WRITTEN[len(PLAIN) :], "plain": PLAIN, "half": HALF}
    lab.put("half", HALF)
    with stop_at("commit.durable"):
        lab.optimize()
    stub = lab.stub("half")
    assert stub is not None and stub.flags & Flag.COMMITTING
    lab.put("plain", PLAIN)
    with open(lab.data / "gap", "r+b") as file:
        os.posix_fallocate(file.fileno(), GAP.start, GAP.stop - GAP.start)
        os.fsync(file.fileno())
        assert has_unwritten(file.fileno(), len(STUB))
    return contents


def expect_reading_alone(lab: MountedLab, contents: dict[str, bytes]) -> None:
    """Mounted it shows every file; nothing can be changed; jobs say why they cannot work."""
    for name in contents:
        described = run_cli("file", lab.root / name)
        assert described.returncode == 0, described
    for command in (
        *(("run", job) for job in ("optimize", "gc", "compact", "scrub", "unoptimize", "rebuild")),
        ("disable", "--unoptimize"),
    ):
        refused = run_cli(*command, lab.root)
        assert refused.returncode == BUSY, refused
        assert "the file system is read-only" in refused.stderr
    set_policy = run_cli("policy", lab.root, "min_age", "3d")
    assert set_policy.returncode == BUSY and "Read-only file system" in set_policy.stderr
    history = run_cli("status", "--here", lab.root)
    assert history.returncode == 0
    assert "last run is unknown" not in history.stdout + history.stderr
    mounted = run_cli("mount", lab.root, lab.view)
    assert mounted.returncode == 0, mounted
    assert "read-only: its file system is read-only" in mounted.stdout
    try:
        assert {name: (lab.view / name).read_bytes() for name in os.listdir(lab.view)} == contents
        for write in (
            (lab.view / "new").touch,
            lambda: (lab.view / "stub").write_bytes(b"x"),
            lambda: os.truncate(lab.view / "written", 5),
            lambda: os.unlink(lab.view / "plain"),
        ):
            with pytest.raises(OSError) as refusal:
                write()
            assert refusal.value.errno == errno.EROFS
        expanded = run_cli("expand", lab.view / "stub")
        assert expanded.returncode == 1 and "is read-only" in expanded.stdout
    finally:
        assert run_cli("umount", lab.view).returncode == 0
    verified = run_cli("run", "verify", lab.root)
    assert verified.returncode == 0, verified
    assert ": clean" in verified.stdout
    doctor = run_cli("doctor", lab.root)
    assert "file system is read-only" in " ".join(doctor.stdout.split())


@contextmanager
def unmounted_lab(point: Path) -> Iterator[tuple[MountedLab, dict[str, bytes]]]:
    with mounted_lab(point) as lab:
        contents = fill(lab)
        yield lab, contents


@pytest.mark.parametrize(
    "kind",
    ["ext4", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("xfs", "btrfs"))],
)
def test_a_file_system_that_was_mounted_again_read_only(loop_fs: MakeFileSystem, kind: str) -> None:
    point = loop_fs(kind)
    with unmounted_lab(point) as (lab, contents):
        subprocess.run(["mount", "-o", "remount,ro", point], check=True)
        expect_reading_alone(lab, contents)
        subprocess.run(["mount", "-o", "remount,rw", point], check=True)
        lab.mount()
        assert {name: (lab.view / name).read_bytes() for name in os.listdir(lab.view)} == contents


def test_a_snapshot_that_cannot_be_changed(loop_fs: MakeFileSystem) -> None:
    """The file system takes changes, and does not say of the snapshot that it takes none."""
    point = loop_fs("btrfs")
    subvolume, snapshot = point / "live", point / "snapshot"
    subprocess.run(["btrfs", "-q", "subvolume", "create", subvolume], check=True)
    with unmounted_lab(subvolume) as (lab, contents):
        command = ("btrfs", "-q", "subvolume", "snapshot", "-r", subvolume, snapshot)
        subprocess.run(command, check=True)
        expect_reading_alone(MountedLab(snapshot / "volume", lab.view), contents)


def break_down(point: Path) -> None:
    """An error of the file system, by which it takes no changes any more."""
    device = os.stat(point).st_dev
    link = os.readlink(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    Path("/sys/fs/ext4", os.path.basename(link), "trigger_fs_error").write_text("1")
    with pytest.raises(OSError):
        (point / "new").touch()


def test_a_mount_goes_on_where_its_file_system_breaks_down(loop_fs: MakeFileSystem) -> None:
    point = loop_fs("ext4", "512M", "errors=remount-ro")
    with unmounted_lab(point) as (lab, contents):
        with Volume.open(str(lab.root)) as volume:
            assert not volume.is_read_only
        # A mount settles what was under way when it begins; here is one more.
        lab.mount()
        with open(lab.data / "gap", "r+b") as file:
            os.posix_fallocate(file.fileno(), 4 * GAP.start, GAP.stop - GAP.start)
            os.fsync(file.fileno())
        break_down(point)
        assert {name: (lab.view / name).read_bytes() for name in os.listdir(lab.view)} == contents
        with pytest.raises(OSError) as refusal:
            (lab.view / "new").touch()
        assert refusal.value.errno == errno.EROFS
        assert run_cli("run", "optimize", lab.root).returncode == BUSY
        lab.unmount()
        expect_reading_alone(lab, contents)


def test_no_job_works_behind_a_mount_that_began_read_only(loop_fs: MakeFileSystem) -> None:
    """It would take a plain file that becomes a stub for plain, and show zeros."""
    point = loop_fs()
    with unmounted_lab(point) as (lab, contents):
        subprocess.run(["mount", "-o", "remount,ro", point], check=True)
        lab.mount()
        with open(lab.view / "plain", "rb") as file:
            subprocess.run(["mount", "-o", "remount,rw", point], check=True)
            run_cli("run", "optimize", lab.root)
            assert file.read() == contents["plain"]
        assert lab.stub("plain") is None
        assert {name: (lab.view / name).read_bytes() for name in os.listdir(lab.view)} == contents
        lab.unmount()
        assert lab.optimize().files_optimized >= 1


def test_a_replica_says_that_it_is_one(tmp_path: Path) -> None:
    """Its file system takes changes; the replica takes none by users."""
    lab = MountedLab(new_lab(tmp_path / "volume").root, tmp_path / "view")
    lab.view.mkdir()
    with ReplicaVolume.open(str(lab.root)) as volume:
        note_replica(volume.base_fd, Replica(volume.parameters.uuid, "point", 1), volume.disk)
    try:
        for _ in ("mounted now", "mounted already"):
            mounted = run_cli("mount", lab.root, lab.view)
            assert mounted.returncode == 0, mounted.stderr
            assert ", read-only: it is a replica, which only `dedupd receive`" in mounted.stdout
    finally:
        lab.unmount()
