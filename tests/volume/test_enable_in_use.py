"""Enabling a directory in use, or one that holds what a volume cannot: all of it, or nothing."""

import errno
import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from dedupd.service.doctor import Check, Verdict, check_path
from dedupd_core.errors import DedupdError, UnsuitableFileSystem, UsageError
from dedupd_core.system.disk import Disk
from dedupd_core.volume.enabling.enable import CLOSED, enable
from dedupd_core.volume.enabling.place import refuse_place
from tests.conftest import MakeFileSystem
from tests.support.disabling import disable
from tests.support.lab import OLD_NS
from tests.support.mounts import ALICE, as_user, mounted_lab

MODE = 0o1777
NAMES = [f"file {number}" for number in range(6)]


def share(directory: Path) -> Path:
    """A directory that all users may write to."""
    root = directory / "share"
    root.mkdir()
    for name in NAMES:
        (root / name).write_bytes(name.encode())
    if os.geteuid() == 0:
        os.chown(root, ALICE, ALICE)
    root.chmod(MODE)
    os.utime(root, ns=(OLD_NS, OLD_NS))
    return root


def make_volume(root: Path, disk: Disk | None = None) -> None:
    enable(str(root), policy_values={}, disk=disk or Disk(), force=True)


def look(root: Path) -> tuple[list[str], int, int, int]:
    status = root.stat()
    return sorted(os.listdir(root)), stat.S_IMODE(status.st_mode), status.st_uid, status.st_mtime_ns


class Watched(Disk):
    """Calls ``between`` before each entry moves, with how many have."""

    def __init__(self, between: Callable[[int], None]) -> None:
        self.between = between
        self.moved = 0

    def rename_new(self, from_fd: int, old: bytes, to_fd: int, new: bytes) -> None:
        self.between(self.moved)
        super().rename_new(from_fd, old, to_fd, new)
        self.moved += 1


# --- users who go on writing ------------------------------------------------------------------


@pytest.mark.root
def test_no_file_that_a_user_writes_meanwhile_is_left_below_the_mount(tmp_path: Path) -> None:
    root = share(tmp_path)
    root.parent.chmod(0o755)
    refused: list[int] = []

    def write(moved: int) -> None:
        def live() -> None:
            with pytest.raises(PermissionError):
                (root / f"of a user {moved}").write_bytes(b"without an error")

        as_user(ALICE, live)
        refused.append(moved)

    make_volume(root, Watched(write))
    assert refused == [*range(len(NAMES))]
    assert os.listdir(root) == [".dedupd"]
    assert sorted(os.listdir(root / ".dedupd/data")) == NAMES


@pytest.mark.root
def test_what_a_user_wrote_just_before_the_door_closed_moves_as_well(tmp_path: Path) -> None:
    root = share(tmp_path)

    class Late(Disk):
        def set_mode(self, fd: int, mode: int) -> None:
            if mode == CLOSED:
                (root / "late").write_bytes(b"x")
            super().set_mode(fd, mode)

    make_volume(root, Late())
    assert sorted(os.listdir(root / ".dedupd/data")) == [*NAMES, "late"]


@pytest.mark.root
def test_entries_that_root_makes_meanwhile_move_as_well(tmp_path: Path) -> None:
    root = share(tmp_path)

    def write(moved: int) -> None:
        if moved < 20:
            (root / f"of root {moved}").write_bytes(b"x")

    make_volume(root, Watched(write))
    assert os.listdir(root) == [".dedupd"]
    assert len(os.listdir(root / ".dedupd/data")) == len(NAMES) + 20


@pytest.mark.root
def test_an_unmounted_volume_is_closed_to_users_and_not_empty_to_them(tmp_path: Path) -> None:
    """A mirror with --delete takes an empty directory for the will of its users."""
    root = share(tmp_path)
    root.parent.chmod(0o755)
    make_volume(root)

    def live() -> None:
        with pytest.raises(PermissionError):
            os.listdir(root)

    as_user(ALICE, live)
    disable(str(root), disk=Disk())
    assert look(root) == (NAMES, MODE, ALICE, OLD_NS)


# --- going back -------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.EPERM, errno.EIO, errno.ENOSPC])
def test_an_enabling_that_fails_half_way_leaves_all_as_it_was(tmp_path: Path, number: int) -> None:
    root = share(tmp_path)
    before = look(root)

    def fail(moved: int) -> None:
        if moved == 3:
            disk.between = lambda _: None
            raise OSError(number, os.strerror(number))

    disk = Watched(fail)
    with pytest.raises((UsageError, OSError)):
        make_volume(root, disk)
    assert disk.moved == 6, "three went there, and three back"
    assert look(root) == before


def test_where_going_back_fails_too_both_reasons_and_the_way_are_told(tmp_path: Path) -> None:
    root = share(tmp_path)

    def fail(moved: int) -> None:
        if moved >= 3:
            raise OSError(errno.EIO, "the disk is broken")

    with pytest.raises(
        DedupdError, match=r"broken; not all entries could be moved back.* `dedupd disable .*`"
    ):
        make_volume(root, Watched(fail))
    disable(str(root), disk=Disk())
    assert look(root)[0] == NAMES


@pytest.mark.root
@pytest.mark.parametrize("flag", ["i", "a"])
@pytest.mark.parametrize("kind", [Path.touch, Path.mkdir])
def test_an_entry_that_may_not_move_is_told_of_before_any_other_does(
    loop_fs: MakeFileSystem, flag: str, kind: Callable[[Path], None]
) -> None:
    root = share(loop_fs())
    for name in ("m", "n"):
        kind(root / name)
    before = look(root)
    subprocess.run(["chattr", f"+{flag}", root / "m", root / "n"], check=True)
    try:
        disk = Watched(lambda _: None)
        with pytest.raises(UsageError, match=r"nothing was changed: .*: m, n; .*`chattr -i -a`"):
            make_volume(root, disk)
        assert (disk.moved, look(root)) == (0, before)
        found = check(root, "entries that cannot move")
        assert found.verdict is Verdict.BAD and found.found.endswith(": m, n")
    finally:
        subprocess.run(["chattr", f"-{flag}", root / "m", root / "n"], check=True)
    make_volume(root)


# --- what lies inside -------------------------------------------------------------------------


def check(path: Path, what: str) -> Check:
    return next(one for one in check_path(str(path)) if one.what == what)


def subvolume(path: Path) -> Path:
    subprocess.run(["btrfs", "-q", "subvolume", "create", path], check=True)
    return path


@pytest.mark.root
def test_subvolumes_inside_are_refused_each_by_its_name(loop_fs: MakeFileSystem) -> None:
    root = share(loop_fs("btrfs"))
    (root / "deep/er").mkdir(parents=True)
    inside = [subvolume(root / "alice"), subvolume(root / "deep/er/bob")]
    (root / "alice/f").write_bytes(b"hers")
    before = look(root)
    with pytest.raises(UsageError) as refused:
        make_volume(root)
    assert all(
        f"{one} is a subvolume (replace it by a directory" in str(refused.value) for one in inside
    )
    assert look(root) == before
    found = check(root, "volumes and mounts in it")
    assert found.verdict is Verdict.BAD and all(str(one) in found.found for one in inside)


@pytest.mark.root
def test_a_subvolume_that_appears_later_is_counted(loop_fs: MakeFileSystem, tmp_path: Path) -> None:
    with mounted_lab(loop_fs("btrfs")) as lab:
        (lab.view / "f").write_bytes(b"f")
        assert check(lab.root, "other file systems in it").verdict is Verdict.FINE
        subvolume(lab.data / "alice")
        found = check(lab.view, "other file systems in it")
        assert found.verdict is Verdict.BAD and "1 place not accessible to users" in found.found
        assert "data/alice is a subvolume" in found.found
        report = lab.optimize()
        assert (report.errors, report.messages[0][:7]) == (1, "alice: ")


# --- places -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "place",
    [
        *("/", "/dev", "/dev/shm", "/proc/self", "/run/x", "/usr", "/usr/share/doc", "/etc"),
        *("/etc/x", "/boot", "/var", "/var/lib", "/var/lib/dpkg"),
    ],
)
def test_the_system_itself_is_no_volume(place: str) -> None:
    with pytest.raises(UsageError, match="choose the directory of a share"):
        refuse_place(place, place)


@pytest.mark.parametrize("place", ["/srv", "/home", "/var/lib/libvirt/images", "/usrx", "/devel"])
def test_shares_are_not_mistaken_for_it(place: str) -> None:
    refuse_place(place, place)


@pytest.mark.root
def test_a_file_system_in_memory_is_refused_forced_or_not(tmp_path: Path) -> None:
    point = tmp_path / "memory"
    point.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", point], check=True)
    try:
        with pytest.raises(UnsuitableFileSystem, match="tmpfs keeps files in memory"):
            make_volume(share(point))
        assert check(point, "file system").verdict is Verdict.BAD
    finally:
        subprocess.run(["umount", point], check=True)
