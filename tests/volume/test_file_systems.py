"""Which file systems carry a volume: looked at for each mount, since their options may change."""

import os
import subprocess
from pathlib import Path

import pytest

from dedupd.service.doctor import Check, Verdict, check_path
from dedupd_core.errors import UnsuitableFileSystem
from dedupd_core.system.disk import Disk
from dedupd_core.system.file_system import file_system_of
from dedupd_core.system.files import opened
from dedupd_core.volume.enabling.enable import enable
from dedupd_core.volume.enabling.probe import obstacle_of
from fuse_stub.mounts import over_mount
from fuse_stub.mounts.mount_process import mount_in_background, unmount
from tests.conftest import MakeFileSystem
from tests.support.lab import Lab, run_cli

pytestmark = pytest.mark.root


def make_volume(point: Path, *, force: bool = False) -> Lab:
    root = point / "share"
    root.mkdir(exist_ok=True)
    values: dict[str, str | int] = {"min_age": "0s", "min_size": "1", "min_file_saving": 0}
    enable(str(root), policy_values=values, disk=Disk(), force=force)
    return Lab(root)


def again(point: Path, options: str = "", *tune: str) -> None:
    """Mount a file system again: with other options, or after ``tune2fs``."""
    image = point.parent / "image"
    subprocess.run(["umount", point], check=True)
    if tune:
        subprocess.run(["tune2fs", *tune, image], check=True, capture_output=True)
    chosen = ",".join(filter(None, ("loop", options)))
    subprocess.run(["mount", "-o", chosen, image, point], check=True)


def file_system_check(path: Path) -> Check:
    return next(one for one in check_path(str(path)) if one.what == "file system")


TUNINGS = {
    "ext4 without a journal": ("", "-O", "^has_journal"),
    "ext4 with data=writeback": ("", "-o", "journal_data_writeback"),
}


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs"])
def test_the_three_that_are_known_are_fine(loop_fs: MakeFileSystem, kind: str) -> None:
    lab = make_volume(loop_fs(kind))
    assert not (lab.base / "accepted.json").exists()
    assert file_system_check(lab.root).verdict is Verdict.FINE


@pytest.mark.parametrize("kind", ["ext4", "btrfs"])
def test_a_disk_that_is_not_told_to_flush_is_warned_of(loop_fs: MakeFileSystem, kind: str) -> None:
    found = file_system_check(loop_fs(kind, options="nobarrier"))
    assert found.verdict is Verdict.WARNING and "nobarrier" in found.found


@pytest.mark.parametrize("name", TUNINGS)
def test_what_the_superblock_says_counts(loop_fs: MakeFileSystem, name: str) -> None:
    """Of neither is there a word in the list of mounts."""
    point = loop_fs("ext4", "64M")
    again(point, *TUNINGS[name])
    with pytest.raises(UnsuitableFileSystem, match=f"{name} .*to accept this risk, use `--force`"):
        make_volume(point)
    assert os.listdir(point / "share") == []
    found = file_system_check(point)
    assert found.verdict is Verdict.BAD and name in found.found


def test_an_ext2_is_refused(loop_fs: MakeFileSystem) -> None:
    with pytest.raises(UnsuitableFileSystem, match="ext2 was not tested"):
        make_volume(loop_fs("ext2", "64M"))


@pytest.mark.parametrize(
    ("options", "tune"),
    [("data=writeback", ()), ("", ("-O", "^has_journal")), ("", ("-o", "journal_data_writeback"))],
)
def test_a_file_system_that_was_good_when_enabled_is_looked_at_for_each_mount(
    loop_fs: MakeFileSystem, options: str, tune: tuple[str, ...]
) -> None:
    point = loop_fs("ext4", "64M")
    lab = make_volume(point)
    lab.put("f", b"content" * 10_000)
    again(point, options, *tune)
    for command in (("mount",), ("run", "optimize")):
        refused = run_cli(*command, lab.root)
        assert refused.returncode == 2 and "ext4 with" in refused.stderr, refused
    assert file_system_check(lab.root).verdict is Verdict.BAD
    # The way out is open.
    assert run_cli("run", "unoptimize", lab.root).returncode == 0
    # What was accepted once holds for mounts of the service, which asks nobody.
    assert run_cli("mount", "--force", lab.root).returncode == 0
    unmount(str(lab.root))
    mount_in_background(str(lab.root), str(lab.root))
    try:
        found = file_system_check(lab.root)
        assert found.verdict is Verdict.WARNING and "accepted with --force" in found.found
    finally:
        unmount(str(lab.root))


def test_what_was_accepted_is_that_and_nothing_else(loop_fs: MakeFileSystem) -> None:
    point = loop_fs("ext4", "64M", "data=writeback")
    lab = make_volume(point, force=True)
    again(point, "", "-O", "^has_journal")
    with pytest.raises(UnsuitableFileSystem, match="without a journal"):
        mount_in_background(str(lab.root), str(lab.root))


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs"])
def test_a_file_system_is_known_also_where_no_line_of_its_mount_is(
    loop_fs: MakeFileSystem, kind: str
) -> None:
    """A volume below a dead mount is reached through a mount that is in no list."""
    below = loop_fs(kind) / "below"
    if kind == "btrfs":
        subprocess.run(["btrfs", "-q", "subvolume", "create", below], check=True)
    else:
        below.mkdir()
    with opened(over_mount.uncovered(str(below))) as fd:
        assert file_system_of(fd).kind == kind
        assert obstacle_of(fd) is None
