"""A file system without free inodes: it is said as such, and the last ones are for users."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dedupd_core.config.reserve import Reserve
from dedupd_core.config.room import INODES_RESERVED, NO_RESERVE, Room
from dedupd_core.errors import EXIT_FINDINGS, NoSpace
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import opened
from dedupd_core.system.paths import explain
from tests.support import crash
from tests.support.lab import noise, run_cli
from tests.support.mounts import MountedLab, mounted_lab

pytestmark = pytest.mark.root


@pytest.fixture
def point(tmp_path: Path) -> Iterator[Path]:
    """A file system with few inodes and much space."""
    with crash.ext4(tmp_path, 64, ("-N", "256")) as point:
        yield point


@pytest.fixture
def lab(point: Path) -> Iterator[MountedLab]:
    with mounted_lab(point) as lab:
        yield lab


def use_up(directory: Path, left: int = 0) -> list[Path]:
    """Take all inodes but so many; the files that have them."""
    made = list[Path]()
    while os.statvfs(directory).f_favail > left:
        made.append(directory / f"empty{len(made)}")
        made[-1].touch()
    return made


def test_messages_name_inodes_and_no_descriptor(lab: MountedLab) -> None:
    for name in ("a", "b"):
        (lab.view / name).write_bytes(noise(200_000))
    use_up(lab.view)
    run_cli("status", lab.root)
    done = run_cli("run", "optimize", lab.root)
    told = done.stdout + done.stderr
    assert done.returncode == EXIT_FINDINGS, done
    assert "no inode left for a new" in told
    assert "/proc/self" not in told and "No space left" not in told


@pytest.mark.parametrize("job", ["gc", "optimize", "scrub", "compact", "refine"])
def test_jobs_leave_users_the_last_inodes(lab: MountedLab, job: str) -> None:
    lab.make_stub("stub", noise(200_000))
    for name in ("a", "b"):
        (lab.view / name).write_bytes(noise(300_000, seed=3))
    made = use_up(lab.data)
    for path in made[:2]:
        path.unlink()
    assert os.statvfs(lab.root).f_favail == 2
    run_cli("run", job, lab.root)
    assert os.statvfs(lab.root).f_favail == 2
    made[0].touch()


def test_a_room_has_a_reserve_of_inodes(point: Path) -> None:
    with opened(os.open(point, os.O_RDONLY)) as fd:
        room = Room(fd, Reserve(size_bytes=1), "share")
        made = use_up(point, INODES_RESERVED)
        room.require(1, "bytes")
        for files in (1, 2):
            with pytest.raises(NoSpace, match=r"^share: no inode left for a log: 16 are free"):
                room.require(0, "a log", files=files)
        Room(fd, NO_RESERVE, "share").require(0, "a log", files=1)
        made[0].unlink()
        room.require(0, "a log", files=1)


def test_every_way_to_make_a_file_says_what_is_used_up(point: Path) -> None:
    disk = Disk()
    (point / "old").touch()
    use_up(point)
    with opened(os.open(point, os.O_RDONLY)) as fd:
        with pytest.raises(NoSpace, match=f"^{point}: no inode is left for another file"):
            disk.create(fd, b"new")
        ways: tuple[Callable[[], object], ...] = (
            lambda: disk.make_dir(fd, b"new"),
            lambda: disk.make_symlink(b"target", fd, b"new"),
            lambda: disk.make_node(fd, b"new", 0o010600, 0),
        )
        for make in ways:
            with pytest.raises(OSError) as refusal:
                make()
            assert refusal.value.errno == errno.ENOSPC
            assert "no inode is left" in explain(refusal.value)
        with pytest.raises(OSError) as refusal:
            (point / "other").touch()
        assert explain(refusal.value).startswith(f"{point}/other: no inode is left")
        for path in (f"/proc/self/fd/{fd}/other", f"/proc/thread-self/fd/{fd}/other"):
            error = OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            assert explain(error) == f"{point}/other: No such file or directory"
        assert explain(OSError(errno.EIO, "error", fd)) == "error"
