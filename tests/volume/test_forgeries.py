"""What a user makes under the names of dedupd decides nothing for root."""

import logging
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from dedupd.cli.setup import _looked_at
from dedupd.service.doctor import Check, Verdict, check_path
from dedupd_core.errors import DedupdError, NotAVolume, UsageError
from dedupd_core.system.disk import Disk
from dedupd_core.volume.enabling.enable import enable
from dedupd_core.volume.volume import Volume
from tests.conftest import MakeFileSystem
from tests.support.disabling import disable
from tests.support.lab import new_lab
from tests.support.mounts import ALICE, mounted_lab

pytestmark = pytest.mark.root


def forge(directory: Path, *names: str) -> Path:
    """A ``.dedupd`` of a user, with files in it."""
    base = directory / ".dedupd"
    (base / "data").mkdir(parents=True)
    for name in names:
        (base / name).write_text("{}")
    for path in (base, *base.iterdir()):
        os.chown(path, ALICE, ALICE)
    return base


def enabled(root: Path) -> None:
    enable(str(root), policy_values={}, force=True, disk=Disk())


def bad(path: Path) -> list[str]:
    """What doctor finds wrong, but for the file system, which is that of the machine's tests."""
    checks: list[Check] = check_path(str(path))
    ignored = ("file system", "free space")
    return [one.found for one in checks if one.verdict is Verdict.BAD and one.what not in ignored]


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs"])
def test_a_forged_volume_in_a_directory_does_not_stop_it_from_being_one(
    loop_fs: MakeFileSystem, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    root = loop_fs(kind) / "share"
    forge(root / "x", "volume.json")
    forge(root / "y/z", "disabling")
    assert bad(root) == []
    with caplog.at_level(logging.WARNING, "dedupd"):
        enabled(root)
    assert "share/x, " in caplog.text and "belongs to another user" in caplog.text
    assert (root / ".dedupd/data/x/.dedupd/volume.json").read_text() == "{}"
    disable(str(root), disk=Disk())
    assert sorted(os.listdir(root)) == ["x", "y"]


def test_a_subvolume_below_a_forged_volume_is_found(loop_fs: MakeFileSystem) -> None:
    root = loop_fs("btrfs") / "share"
    base = forge(root / "x", "volume.json")
    subprocess.run(["btrfs", "-q", "subvolume", "create", base / "sub"], check=True)
    with pytest.raises(UsageError, match=r"x/\.dedupd/sub is a subvolume"):
        enabled(root)


def test_a_volume_of_root_in_a_directory_is_found(tmp_path: Path) -> None:
    root = tmp_path / "share"
    (root / "x").mkdir(parents=True)
    new_lab(root / "x/volume")
    for marker in ("volume.json", "disabling"):
        (root / "x/volume/.dedupd/volume.json").rename(root / "x/volume/.dedupd/now")
        (root / "x/volume/.dedupd/now").rename(root / "x/volume/.dedupd" / marker)
        with pytest.raises(UsageError, match=r"x/volume is a volume \(`dedupd disable .*/volume`"):
            enabled(root)
        assert bad(root)


def test_a_link_to_a_volume_is_none(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "real")
    root = tmp_path / "share"
    (root / "x").mkdir(parents=True)
    (root / "x/.dedupd").symlink_to(lab.base)
    with pytest.raises(NotAVolume):
        Volume.open(str(root / "x"))
    with pytest.raises(NotAVolume):
        disable(str(root / "x"), disk=Disk())
    enabled(root)
    lab.verify_clean()


def test_a_forged_volume_above_does_not_stop_a_directory_below(tmp_path: Path) -> None:
    forge(tmp_path / "alice", "volume.json")
    root = tmp_path / "alice/share"
    root.mkdir()
    assert bad(root) == []
    enabled(root)


@pytest.mark.parametrize("names", [["volume.json"], ["enabling"], []])
def test_the_volume_above_a_forgery_is_found(tmp_path: Path, names: list[str]) -> None:
    lab = new_lab(tmp_path / "share")
    forge(lab.root / "x", *names)
    for path in ("x", "x/y/file"):
        volume, below = Volume.locate(str(lab.root / path))
        with volume:
            assert (volume.root, below) == (str(lab.root), path.encode())


def test_a_forgery_in_no_volume_is_named(tmp_path: Path) -> None:
    forge(tmp_path / "x", "volume.json")
    with pytest.raises(UsageError, match=rf"x/\.dedupd: belongs to user {ALICE}"):
        Volume.locate(str(tmp_path / "x/y"))


# --- in the directory itself --------------------------------------------------------------------


def test_a_forged_volume_is_in_the_way_and_is_not_taken_for_one(tmp_path: Path) -> None:
    root = tmp_path / "share"
    base = forge(root, "volume.json", "enabling", "disabling")
    remedy = rf"{base}: belongs to user {ALICE}.* `mv -T {base} {root}/dedupd-of-a-user`"
    with pytest.raises(UsageError, match=remedy):
        enabled(root)
    (found,) = bad(root)
    assert "rename the entry, for example `mv -T" in found
    assert any(check.verdict is Verdict.BAD for check in _looked_at(str(root), force=True))
    subprocess.run(["mv", "-T", base, root / "dedupd-of-a-user"], check=True)
    enabled(root)


@pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to("nowhere")])
def test_a_file_of_that_name_is_in_the_way(tmp_path: Path, make: Callable[[Path], None]) -> None:
    root = tmp_path / "share"
    root.mkdir()
    make(root / ".dedupd")
    with pytest.raises(UsageError, match=r"\.dedupd: is not a directory, .*rename the entry"):
        enabled(root)
    assert len(bad(root)) == 1


@pytest.mark.parametrize("names", [["disabling"], ["enabling"], ["volume.json"], ["lock"], []])
def test_nothing_that_a_user_forged_is_disabled(tmp_path: Path, names: list[str]) -> None:
    """`data` of a user would give its owner and mode to the directory."""
    root, target = tmp_path / "share", tmp_path / "target"
    base = forge(root, *names)
    (base / "mount.lock").symlink_to(target)
    before = root.stat().st_uid, root.stat().st_mode
    with pytest.raises(UsageError, match=f"belongs to user {ALICE}"):
        disable(str(root), disk=Disk())
    assert (root.stat().st_uid, root.stat().st_mode) == before
    assert base.exists() and not target.exists()


@pytest.mark.parametrize("names", [["disabling"], ["volume.json"], []])
def test_root_is_not_advised_to_work_on_a_forgery(tmp_path: Path, names: list[str]) -> None:
    root = tmp_path / "share"
    forge(root, *names)
    with pytest.raises(DedupdError, match=f"belongs to user {ALICE}") as caught:
        Volume.open(str(root))
    assert "dedupd disable" not in str(caught.value)
    assert "put owner and mode" not in str(caught.value)


# --- in a mounted volume ------------------------------------------------------------------------


def test_a_forged_volume_in_the_tree_is_no_finding(tmp_path: Path) -> None:
    with mounted_lab(tmp_path) as lab:
        forge(lab.view / "x", "volume.json")
        new_lab(tmp_path / "other")
        subprocess.run(["cp", "-a", tmp_path / "other", lab.view / "copy"], check=True)
        assert bad(lab.root) == []
