"""Inodes that are made as the user who gets them have all that they have below.

The mount does so on an XFS that enforces quotas of users. ``tests/vm/guest/quotas.py`` tries these
quotas, for which a kernel needs support.
"""

import os
import stat
import subprocess
from collections.abc import Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from fuse_stub import process
from tests.conftest import MakeFileSystem
from tests.support.mounts import ALICE, BOB, TEAM, Nursery, as_user, mounted_lab, serve_for_test

pytestmark = pytest.mark.root

OTHER_USER = 65_533
KINDS = ["ext4", "xfs", "btrfs"]


def serve_as_owner(path: str, mountpoint: str, cache_bytes: int, answer: Connection) -> None:
    """Serve a mount as on an XFS with quotas of users."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            process, "obey_inode_quotas", lambda inodes, *_, **__: inodes.make_as_owner(OTHER_USER)
        )
        serve_for_test(path, mountpoint, cache_bytes, answer)


@pytest.fixture(params=KINDS)
def sides(request: pytest.FixtureRequest, loop_fs: MakeFileSystem) -> Iterator[list[Path]]:
    """A directory beside a volume, and one in the volume, on the same file system."""
    point = loop_fs(request.param)
    with mounted_lab(point, nursery=Nursery(serve_as_owner)) as lab:
        sides = [point / "beside", lab.view / "inside"]
        for directory in sides:
            directory.mkdir()
        yield sides


def fill(directory: Path) -> None:
    """Make an inode of each kind."""
    os.umask(0o027)
    for name, mode in (("file", 0o666), ("program", 0o6777)):
        os.close(os.open(directory / name, os.O_CREAT | os.O_EXCL | os.O_RDWR, mode))
    os.mkdir(directory / "directory", 0o777)
    os.mkfifo(directory / "pipe", 0o666)
    os.symlink("file", directory / "link")
    nameless = os.open(directory, os.O_TMPFILE | os.O_RDWR, 0o644)
    os.link(f"/proc/self/fd/{nameless}", directory / "nameless", src_dir_fd=nameless)
    os.close(nameless)


def inodes(directory: Path) -> dict[str, tuple[object, ...]]:
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(directory.iterdir()):
        status = path.lstat()
        acl = ""
        if not stat.S_ISLNK(status.st_mode):
            done = subprocess.run(
                ["getfacl", "-cn", path], capture_output=True, text=True, check=True
            )
            acl = done.stdout
        found[path.name] = (oct(status.st_mode), status.st_uid, status.st_gid, acl)
    return found


@pytest.mark.parametrize("how", ["plain", "of a group", "with a default ACL"])
def test_owner_mode_and_acl_are_those_of_the_file_system(sides: list[Path], how: str) -> None:
    for directory in sides:
        os.chown(directory, BOB, TEAM)
        directory.chmod(0o2777 if how == "of a group" else 0o777)
        if how == "with a default ACL":
            subprocess.run(["setfacl", "-d", "-m", f"u:{BOB}:rwx,g::rx", directory], check=True)
        as_user(ALICE, partial(fill, directory))
    below, through = map(inodes, sides)
    assert through == below and len(below) == 6
    assert {found[1] for found in below.values()} == {ALICE}


def test_a_user_makes_nothing_without_the_right_to(sides: list[Path]) -> None:
    _, inside = sides
    inside.chmod(0o755)

    def attempt() -> None:
        with pytest.raises(PermissionError):
            (inside / "file").touch()

    as_user(ALICE, attempt)
    assert list(inside.iterdir()) == []


def test_root_makes_its_own_beside_users(sides: list[Path]) -> None:
    _, inside = sides
    inside.chmod(0o777)
    for number in range(3):
        as_user(ALICE, (inside / f"alice {number}").touch)
        (inside / f"root {number}").touch()
    owners = {path.name: path.stat().st_uid for path in inside.iterdir()}
    assert owners == {
        **{f"alice {number}": ALICE for number in range(3)},
        **{f"root {number}": 0 for number in range(3)},
    }
