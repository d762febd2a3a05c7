"""Snapshots of the file system below, shown beside the live volume: each as it was, whatever the
volume and its jobs do meanwhile."""

import os
import random
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from dedupd_core.system import mount_table
from dedupd_core.units import KIB, MIB
from fuse_stub.mounts.mount_points import is_dead_mount
from fuse_stub.mounts.mount_process import mount_snapshot_in_background
from jobs.compact.compact_job import Compact
from jobs.frame.run import JobRun
from tests.conftest import MakeFileSystem
from tests.support.lab import new_lab, noise, prose, run_cli
from tests.support.mounts import MountedLab, mounted_lab
from tests.support.samba import samba_share
from tests.support.service import reserved_port
from tests.support.trees import Seen, seen

pytestmark = pytest.mark.root

TAKES_SHARED = '\nshared_extents = "take"\ncompaction_min_dead = 0.01\nreserve = 0\n'


def run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (command, done.stderr)


@contextmanager
def shown(snapshot: Path, point: Path) -> Iterator[Path]:
    """A snapshot's volume, mounted at ``point``."""
    point.mkdir(exist_ok=True)
    done = run_cli("mount", "--snapshot", snapshot, point)
    assert done.returncode == 0, done.stderr
    try:
        yield point
    finally:
        if str(point) in mount_table.snapshot_points():
            assert run_cli("umount", point).returncode == 0


def change(lab: MountedLab, rng: random.Random, step: int) -> None:
    """A day's work of users."""
    for number in range(4):
        (lab.view / f"new-{step}-{number}").write_bytes(noise(150 * KIB, 10 * step + number))
    (lab.view / f"text-{step}").write_bytes(prose(200 * KIB, step))
    for name in rng.sample(sorted(os.listdir(lab.view)), 3):
        with open(lab.view / name, "r+b") as file:
            file.seek(rng.randrange(100 * KIB))
            file.write(noise(9000, step))
    names = sorted(os.listdir(lab.view))
    os.rename(lab.view / rng.choice(names), lab.view / f"renamed-{step}")
    (lab.view / rng.choice(sorted(os.listdir(lab.view)))).unlink()


def jobs_at_work(lab: MountedLab, stop: threading.Event) -> None:
    while not stop.is_set():
        for job in ("optimize", "gc", "compact", "scrub", "reconcile"):
            done = run_cli("run", job, lab.root)
            assert done.returncode == 0, (job, done.stdout, done.stderr)


def test_five_snapshots_are_what_they_were_with_all_jobs_at_work(
    loop_fs: MakeFileSystem, tmp_path: Path
) -> None:
    point = loop_fs("btrfs", "1500M")
    run("btrfs", "subvolume", "create", point / "share")
    rng = random.Random(1)
    with mounted_lab(point / "share") as lab:
        lab.set_policy('min_age = "0s"\nmin_size = "1"' + TAKES_SHARED)
        was: list[Seen] = []
        for step in range(5):
            change(lab, rng, step)
            if step % 2:
                lab.optimize()
            os.sync()
            was.append(seen(lab.view))
            at = point / f"at-{step}"
            run("btrfs", "subvolume", "snapshot", "-r", point / "share", at)
        stop = threading.Event()
        failures: list[BaseException] = []

        def work() -> None:
            try:
                jobs_at_work(lab, stop)
            except BaseException as error:
                failures.append(error)

        jobs = threading.Thread(target=work)
        jobs.start()
        views = [tmp_path / f"view-{step}" for step in range(5)]
        try:
            mounts = [shown(point / f"at-{step}/volume", views[step]) for step in range(5)]
            for one in mounts:
                one.__enter__()
            for turn in range(3):
                change(lab, rng, 10 + turn)
                for step, view in enumerate(views):
                    assert seen(view) == was[step], f"snapshot {step}"
            live = seen(lab.view)
            with lab.opened() as volume:
                assert mount_table.points_of(volume.parameters.uuid) == [str(lab.view)]
        finally:
            stop.set()
            jobs.join()
            for one in mounts:
                one.__exit__(None, None, None)
        assert failures == []
        assert seen(lab.view) == live
    lab.verify_clean()


@contextmanager
def snapshot_of(loop_fs: MakeFileSystem, kind: str) -> Iterator[tuple[MountedLab, Path]]:
    """A mounted volume, and a snapshot of it on a copy of its device, or of its subvolume."""
    point = loop_fs(kind, "400M")
    if kind == "btrfs":
        run("btrfs", "subvolume", "create", point / "share")
        with mounted_lab(point / "share") as lab:
            fill(lab)
            run("btrfs", "subvolume", "snapshot", "-r", point / "share", point / "then")
            yield lab, point / "then/volume"
        return
    with mounted_lab(point) as lab:
        fill(lab)
        copy, then = point.parent / "copy", point.parent / "then"
        then.mkdir()
        run("fsfreeze", "--freeze", point)
        try:
            shutil.copyfile(point.parent / "image", copy)
        finally:
            run("fsfreeze", "--unfreeze", point)
        options = "loop,ro,norecovery,nouuid" if kind == "xfs" else "loop,ro,noload"
        run("mount", "-o", options, copy, then)
        try:
            yield lab, then / "volume"
        finally:
            run("umount", then)
            copy.unlink()


def fill(lab: MountedLab) -> None:
    for number in range(3):
        (lab.view / f"file-{number}").write_bytes(noise(300 * KIB, number))
    lab.optimize()
    with open(lab.view / "file-1", "r+b") as file:
        file.write(noise(20 * KIB, 99))
        os.fsync(file.fileno())
    os.sync()


@pytest.mark.parametrize(
    "kind",
    ["btrfs", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("ext4", "xfs"))],
)
def test_a_snapshot_shows_beside_the_volume_and_takes_no_change(
    loop_fs: MakeFileSystem, tmp_path: Path, kind: str
) -> None:
    with snapshot_of(loop_fs, kind) as (lab, snapshot):
        was = seen(lab.view)
        (lab.view / "file-0").unlink()
        with shown(snapshot, tmp_path / "one") as one, shown(snapshot, tmp_path / "two") as two:
            assert seen(one) == seen(two) == was
            with pytest.raises(OSError, match="Read-only"):
                (one / "new").write_bytes(b"")
            assert seen(lab.view) != was
            # No job takes it for the volume, and none finds it.
            assert run_cli("run", "optimize", lab.root).returncode == 0
            assert run_cli("status", one).returncode == 2
        assert not {str(one), str(two)} & set(mount_table.snapshot_points())


def test_a_snapshot_that_takes_changes_is_refused(loop_fs: MakeFileSystem, tmp_path: Path) -> None:
    point = loop_fs("btrfs", "400M")
    run("btrfs", "subvolume", "create", point / "share")
    with mounted_lab(point / "share") as lab:
        run("btrfs", "subvolume", "snapshot", point / "share", point / "writable")
        for path in (point / "writable/volume", lab.root, lab.view):
            done = run_cli("mount", "--snapshot", path, tmp_path)
            assert done.returncode == 2, done
        told = run_cli("mount", "--snapshot", point / "writable/volume", tmp_path).stderr
        assert "ro true" in told
        inside = lab.view / "snapshots"
        inside.mkdir()
        assert (
            "choose a directory outside it"
            in run_cli("mount", "--snapshot", lab.root, inside).stderr
        )
        assert "MOUNTPOINT" in run_cli("mount", "--snapshot", lab.root).stderr


def test_a_snapshot_whose_process_was_killed_is_mounted_again(
    loop_fs: MakeFileSystem, tmp_path: Path
) -> None:
    with snapshot_of(loop_fs, "btrfs") as (lab, snapshot):
        was = seen(lab.view)
        pid = mount_snapshot_in_background(str(snapshot), str(tmp_path))
        os.kill(pid, 9)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
        with shown(snapshot, tmp_path) as again:
            assert seen(again) == was
        assert os.listdir(tmp_path) == []
        pid = mount_snapshot_in_background(str(snapshot), str(tmp_path))
        os.kill(pid, 9)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
        assert run_cli("umount", tmp_path).returncode == 0
        assert str(tmp_path) not in mount_table.snapshot_points()
        assert is_dead_mount(str(lab.view)) is False


def test_the_policy_holds_compaction_back_while_snapshots_have_the_blocks(
    loop_fs: MakeFileSystem,
) -> None:
    point = loop_fs("btrfs", "800M")
    run("btrfs", "subvolume", "create", point / "share")
    lab = new_lab(point / "share/volume")
    lab.set_policy('min_age = "0s"\nmin_size = "1"\nreserve = 0\ncompaction_shared = "skip"\n')
    for number in range(40):
        lab.put(f"file-{number}", noise(MIB, number))
    lab.optimize()
    os.sync()
    run("btrfs", "subvolume", "snapshot", "-r", point / "share", point / "then")
    for number in range(20):
        (lab.data / f"file-{number}").unlink()
    lab.collect()
    report = lab.compact()
    assert report.left_shared > 0
    assert (report.rewritten, report.freed_bytes) == (0, 0)
    assert "snapshots keep" in run_cli("doctor", lab.root).stdout
    run("btrfs", "subvolume", "delete", "--commit-after", point / "then")
    run("btrfs", "subvolume", "sync", point)
    with lab.opened() as volume, volume.job_lock():
        report = Compact(volume, JobRun("compact")).run()
    assert report.left_shared == 0 and report.rewritten > 0
    assert report.freed_bytes > 19 * MIB
    lab.verify_clean()


def test_samba_shows_snapshots_as_previous_versions(
    loop_fs: MakeFileSystem, tmp_path: Path
) -> None:
    """With the lines that docs/guide/backup.md gives."""
    tokens = ("@GMT-2026.03.01-02.00.00", "@GMT-2026.03.02-02.00.00")
    point = loop_fs("btrfs", "600M")
    run("btrfs", "subvolume", "create", point / "share")
    versions = tmp_path / "versions"
    versions.mkdir()
    with ExitStack() as stack, mounted_lab(point / "share") as lab:
        (lab.view / "folder").mkdir()
        was = [noise(300 * KIB, number) for number in range(3)]
        for content, token in zip(was, tokens, strict=False):
            (lab.view / "folder/report.bin").write_bytes(content)
            lab.optimize()
            os.sync()
            snapshot = point / token
            run("btrfs", "subvolume", "snapshot", "-r", point / "share", snapshot)
            stack.enter_context(shown(snapshot / "volume", versions / token))
        (lab.view / "folder/report.bin").write_bytes(was[2])
        lab.optimize()
        port = stack.enter_context(reserved_port())
        options = f"""
        vfs objects = shadow_copy2
        shadow:snapdir = {versions}
        shadow:sort = desc
        """
        client = stack.enter_context(samba_share(lab.view, tmp_path / "samba", port, options))
        told = subprocess.run(
            [*client, "-c", "allinfo folder\\report.bin"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert [line for line in told.splitlines() if line in tokens] == list(reversed(tokens))
        back = tmp_path / "back"
        for content, token in zip(was, tokens, strict=False):
            run(*client, "-c", f"get {token}\\folder\\report.bin {back}")
            assert back.read_bytes() == content
        run(*client, "-c", f"get folder\\report.bin {back}")
        assert back.read_bytes() == was[2]
