"""Entries of a tree that have no place in the plain directory: nothing changes, and the message
tells the way out."""

import os
import re
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from dedupd_core.errors import NotAVolume, UsageError
from dedupd_core.system.disk import Disk
from dedupd_core.volume.base_directory import DISABLING
from dedupd_core.volume.enabling.base import left_in_place
from dedupd_core.volume.enabling.enable import begin_disable, enable
from dedupd_core.volume.volume import Volume
from fuse_stub.mounts.mount_points import covered
from tests.conftest import MakeFileSystem
from tests.support.disabling import disable
from tests.support.lab import Lab, new_lab, run_cli, stop_at

NAME = ".dedupd"


def lab_with_entry(root: Path) -> Lab:
    """A volume with an entry ``.dedupd`` at its top, which an older version let a user make."""
    lab = new_lab(root)
    lab.put("file", b"the volume's")
    lab.put(f"{NAME}/x", b"precious")
    return lab


def commands_of(message: str) -> list[str]:
    return re.findall(r"`(.*?)`", message)


def test_nothing_changes_before_an_entry_without_a_place_is_found(tmp_path: Path) -> None:
    lab = lab_with_entry(tmp_path / "r")
    with pytest.raises(UsageError, match=r"has an entry \.dedupd, a name that dedupd's store"):
        disable(str(lab.root), disk=Disk())
    assert os.listdir(lab.root) == [NAME]
    lab.verify_clean()


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_a_volume_whose_disabling_stopped_at_the_name_is_one_again(
    tmp_path: Path, kind: str
) -> None:
    """Earlier versions marked the volume, and then looked."""
    lab = new_lab(tmp_path / "r")
    if kind == "folder":
        lab.put(f"{NAME}/x", b"precious")
    elif kind == "file":
        lab.put(NAME, b"precious")
    else:
        (lab.data / NAME).symlink_to("nowhere")
    with lab.opened() as volume:
        begin_disable(volume.base_fd, volume.disk)
    with pytest.raises(NotAVolume, match=r"or `dedupd disable .*` again to finish it"):
        Volume.open(str(lab.root))
    with (
        stop_at("disable.taken-back"),
        pytest.raises(UsageError, match=r"rename the entry in the volume: `dedupd mount"),
    ):
        disable(str(lab.root), disk=Disk())
    lab.verify_clean()
    assert not (lab.base / os.fsdecode(DISABLING)).exists()
    (lab.data / NAME).rename(lab.data / "of a user")
    disable(str(lab.root), disk=Disk())
    assert os.listdir(lab.root) == ["of a user"]


def test_where_entries_have_moved_the_name_is_changed_below(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "r")
    lab.put("a", b"1")
    lab.put("b", b"2")
    with stop_at("disable.moved"):
        disable(str(lab.root), disk=Disk())
    lab.put(f"{NAME}/x", b"precious")
    with pytest.raises(UsageError) as caught:
        disable(str(lab.root), disk=Disk())
    (command,) = commands_of(str(caught.value))
    assert command.startswith(f"mv -T {lab.data}/{NAME} ")
    subprocess.run(command, shell=True, check=True)
    disable(str(lab.root), disk=Disk())
    assert sorted(os.listdir(lab.root)) == ["a", "b", "dedupd-of-a-user"]
    assert (lab.root / "dedupd-of-a-user/x").read_bytes() == b"precious"


@pytest.mark.root
@pytest.mark.parametrize(
    ("kind", "begun"), [("ext4", False), ("ext4", True), ("xfs", True), ("btrfs", True)]
)
def test_the_commands_of_the_message_lead_out(
    loop_fs: MakeFileSystem, kind: str, begun: bool
) -> None:
    """With real mounts, from the refusal to the plain directory."""
    lab = lab_with_entry(loop_fs(kind) / "r")
    (lab.data / "dedupd-of-a-user").mkdir()
    lab.optimize()
    lab.unoptimize()
    if begun:
        with lab.opened() as volume:
            begin_disable(volume.base_fd, volume.disk)
    refused = run_cli("disable", "--unoptimize", lab.root)
    assert refused.returncode == 2
    mount, rename, unmount = commands_of(refused.stderr)
    assert rename == f"mv -T {lab.root}/{NAME} {lab.root}/dedupd-of-a-user-2"
    for command in (mount, unmount):
        assert command.split()[0] == "dedupd"
    done = run_cli(*mount.split()[1:])
    assert done.returncode == 0, done
    try:
        assert (lab.root / "file").read_bytes() == b"the volume's"
        subprocess.run(rename, shell=True, check=True)
    finally:
        assert run_cli(*unmount.split()[1:]).returncode == 0
    done = run_cli("disable", "--unoptimize", lab.root)
    assert done.returncode == 0, done
    assert sorted(os.listdir(lab.root)) == ["dedupd-of-a-user", "dedupd-of-a-user-2", "file"]
    assert (lab.root / "dedupd-of-a-user-2/x").read_bytes() == b"precious"


# --- lost+found -------------------------------------------------------------------------------


def test_a_lost_and_found_of_users_moves_as_other_entries_do(tmp_path: Path) -> None:
    root = tmp_path / "r"
    (root / "lost+found").mkdir(parents=True)
    (root / "lost+found/x").write_bytes(b"precious")
    lab = new_lab(root)
    assert os.listdir(root) == [NAME]
    assert (lab.data / "lost+found/x").read_bytes() == b"precious"
    disable(str(root), disk=Disk())
    assert (root / "lost+found/x").read_bytes() == b"precious"


@pytest.mark.root
def test_a_lost_and_found_beside_that_of_the_checker_stops_disabling(
    loop_fs: MakeFileSystem,
) -> None:
    lab = new_lab(loop_fs(size="64M"))
    assert sorted(os.listdir(lab.root)) == [NAME, "lost+found"]
    lab.put("lost+found/x", b"precious")
    with pytest.raises(
        UsageError, match=r"lost\+found, a name that the checker of the file system"
    ) as caught:
        disable(str(lab.root), disk=Disk())
    rename = commands_of(str(caught.value))[1]
    assert rename == f"mv -T {lab.root}/lost+found {lab.root}/lost+found-of-a-user"
    lab.verify_clean()
    (lab.data / "lost+found").rename(lab.data / "lost+found-of-a-user")
    disable(str(lab.root), disk=Disk())
    assert sorted(os.listdir(lab.root)) == ["lost+found", "lost+found-of-a-user"]


@pytest.mark.root
@pytest.mark.parametrize(("kind", "names"), [("ext4", 2), ("xfs", 1), ("btrfs", 1)])
def test_only_the_root_of_ext4_keeps_a_lost_and_found(
    loop_fs: MakeFileSystem, kind: str, names: int
) -> None:
    point = loop_fs(kind)
    for directory, count in ((point, names), (point / "r", 1)):
        directory.mkdir(exist_ok=True)
        root_fd = os.open(directory, os.O_RDONLY)
        assert len(left_in_place(root_fd)) == count
        os.close(root_fd)


@pytest.mark.root
def test_nobody_is_told_to_move_the_checkers_directory_away(loop_fs: MakeFileSystem) -> None:
    lab = new_lab(loop_fs(size="64M"))
    assert covered(str(lab.root)) == ""
    (lab.root / "stray").write_bytes(b"x")
    assert "stray" in covered(str(lab.root))
    assert "lost+found" not in covered(str(lab.root))


@pytest.mark.root
@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs"])
def test_an_entry_that_root_makes_while_others_move_is_listed(
    loop_fs: MakeFileSystem, kind: str
) -> None:
    """btrfs lists by a descriptor only what was there when it was opened."""
    root = loop_fs(kind) / "r"
    root.mkdir()

    class Late(Disk):
        def set_mode(self, fd: int, mode: int) -> None:
            (root / "late").write_bytes(b"x")
            super().set_mode(fd, mode)

    enable(str(root), policy_values={}, disk=Late())
    assert os.listdir(root) == [NAME]
    disable(str(root), disk=Disk())
    assert os.listdir(root) == ["late"]


@pytest.mark.root
@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs"])
def test_an_entry_that_was_opened_while_others_move_stops_enabling(
    loop_fs: MakeFileSystem, kind: str
) -> None:
    """The directory was empty before, and btrfs lists by a descriptor what was there then."""
    root = loop_fs(kind) / "r"
    root.mkdir()
    late = root / "late"
    with ExitStack() as stack:

        class Late(Disk):
            is_first = True

            def set_mode(self, fd: int, mode: int) -> None:
                if self.is_first:
                    self.is_first = False
                    late.write_bytes(b"x")
                    with late.open("rb") as file:
                        command = ["sleep", "600"]
                        process = stack.enter_context(subprocess.Popen(command, stdin=file))
                    stack.callback(process.kill)
                super().set_mode(fd, mode)

        with pytest.raises(UsageError, match="late is in use by process"):
            enable(str(root), policy_values={}, disk=Late())
    assert os.listdir(root) == ["late"]
