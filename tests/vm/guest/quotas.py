"""Quotas of users and groups on ext4 and XFS: a mount holds users to them."""

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from dedupd_core.units import KIB, MIB
from tests.support.lab import noise, prose, run_cli
from tests.support.mounts import ALICE, BOB, TEAM, MountedLab, as_user, mounted_lab
from tests.vm.guest.disks import made, run
from tests.vm.guest.kernel_features import need_modules

MAKE = {
    "ext4": ["mkfs.ext4", "-q", "-O", "quota", "-E", "quotatype=usrquota:grpquota"],
    "xfs": ["mkfs.xfs", "-q"],
}
LIMIT = 8 * MIB
SLACK = 512 * KIB
"""Blocks of maps and attributes count as well."""


@dataclass
class Share:
    """A volume on a file system with quotas, and a directory beside it. Both are Alice's."""

    kind: str
    lab: MountedLab
    point: Path
    beside: Path

    def limit(self, what: str, identity: int, *, inodes: int = 0) -> None:
        """``what``: ``-u`` for a user, ``-g`` for a group."""
        blocks = "0" if inodes else str(LIMIT // KIB)
        run("setquota", what, str(identity), "0", blocks, "0", str(inodes), self.point)

    def used(self, what: str, identity: int) -> int:
        """Bytes that count for a user or a group."""
        os.sync()
        rows = run("repquota", what, "-n", "-p", self.point).splitlines()
        found = [row.split() for row in rows if row.startswith(f"#{identity} ")]
        return int(found[0][2]) * KIB if found else 0


@pytest.fixture(params=["ext4", "xfs"])
def share(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Share]:
    if request.param == "ext4":
        need_modules("quota_v2")
    with made(tmp_path, MAKE[request.param], "usrquota,grpquota") as point:
        if request.param == "ext4":
            assert "usrquota" in run("findmnt", "-n", "-o", "OPTIONS", point)
        with mounted_lab(point) as lab:
            beside = point / "beside"
            beside.mkdir()
            for directory in (lab.view, beside):
                os.chown(directory, ALICE, TEAM)
                directory.chmod(0o2775)
            yield Share(request.param, lab, point, beside)
            lab.unmount()
            lab.verify_clean()


def write_until_refused(path: Path) -> None:
    """Write a file until a quota refuses it."""
    with open(path, "wb", buffering=0) as file:
        try:
            for number in range(4 * LIMIT // (64 * KIB)):
                file.write(noise(64 * KIB, number))
        except OSError as error:
            assert error.errno == errno.EDQUOT, error
            return
    raise AssertionError("no quota refused anything")


def refused(action: Callable[[], object]) -> None:
    with pytest.raises(OSError) as caught:
        action()
    assert caught.value.errno == errno.EDQUOT


@pytest.mark.parametrize("what", ["-u", "-g"])
def test_a_user_gets_no_more_through_the_mount_than_below(share: Share, what: str) -> None:
    share.limit(what, ALICE if what == "-u" else TEAM)
    sizes = []
    for directory in (share.beside, share.lab.view):
        as_user(ALICE, partial(write_until_refused, directory / "f"), TEAM)
        sizes.append((directory / "f").stat().st_size)
        (directory / "f").unlink()
        os.sync()
    below, through = sizes
    assert LIMIT - SLACK <= through <= LIMIT
    assert abs(through - below) <= SLACK


INODES = 20
MAKE_INODE: dict[str, Callable[[Path], object]] = {
    "file": Path.touch,
    "directory": Path.mkdir,
    "link": lambda path: path.symlink_to("nowhere"),
    "pipe": os.mkfifo,
}


@pytest.mark.parametrize("kind", MAKE_INODE)
def test_a_user_gets_no_more_inodes_through_the_mount(share: Share, kind: str) -> None:
    """XFS counts them, and does not refuse them (docs/guide/mount.md)."""
    share.limit("-u", ALICE, inodes=INODES)
    share.lab.view.chmod(0o2777)

    def fill() -> None:
        for number in range(5 * INODES):
            MAKE_INODE[kind](share.lab.view / f"{number}")

    if share.kind == "xfs":
        as_user(ALICE, fill, TEAM)
        return
    as_user(ALICE, lambda: refused(fill), TEAM)
    made = [path.lstat() for path in share.lab.view.iterdir()]
    assert INODES - 2 <= len(made) <= INODES
    assert {(found.st_uid, found.st_gid) for found in made} == {(ALICE, TEAM)}
    as_user(BOB, (share.lab.view / "of bob").touch)
    assert (share.lab.view / "of bob").stat().st_uid == BOB


@pytest.mark.parametrize("mode", [0o755, 0o2777])
def test_files_of_users_get_the_mode_and_the_owner_that_they_get_below(
    share: Share, mode: int
) -> None:
    def make(directory: Path) -> None:
        os.umask(0o027)
        with open(os.open(directory / "file", os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o4777), "w"):
            pass
        os.mkdir(directory / "directory", 0o777)
        os.mkfifo(directory / "pipe", 0o666)
        os.symlink("file", directory / "link")
        nameless = os.open(directory, os.O_TMPFILE | os.O_RDWR, 0o644)
        os.link(f"/proc/self/fd/{nameless}", directory / "nameless", src_dir_fd=nameless)
        os.close(nameless)

    found = []
    for directory in (share.beside, share.lab.view):
        directory.chmod(mode)
        as_user(ALICE, partial(make, directory), TEAM)
        states = {path.name: path.lstat() for path in directory.iterdir()}
        found.append({n: (s.st_mode, s.st_uid, s.st_gid) for n, s in states.items()})
    below, through = found
    assert through == below and len(below) == 5


def test_a_stub_counts_its_own_blocks_only(share: Share) -> None:
    share.limit("-u", ALICE)
    content = prose(6 * MIB)
    path = share.lab.view / "f"
    as_user(ALICE, lambda: path.write_bytes(content), TEAM)
    assert share.used("-u", ALICE) >= 6 * MIB
    share.lab.optimize()
    assert share.lab.stub("f") is not None
    assert share.used("-u", ALICE) <= SLACK
    as_user(ALICE, lambda: (share.lab.view / "g").write_bytes(noise(6 * MIB)), TEAM)
    os.sync()  # XFS frees what it has allocated behind the end of a file if no page is dirty

    def overwrite() -> None:
        """Blocks of the stub itself count."""
        with open(path, "r+b", buffering=0) as file:
            for at in range(0, 6 * MIB, 64 * KIB):
                file.seek(at)
                file.write(b"x" * 64 * KIB)

    as_user(ALICE, lambda: refused(overwrite), TEAM)
    now = path.read_bytes()
    changed = len(now) - len(now.lstrip(b"x"))
    assert 0 < changed < 2 * MIB + SLACK and now[changed:] == content[changed:]
    assert share.used("-u", ALICE) <= LIMIT + SLACK


def test_jobs_respect_a_quota_that_is_used_up(share: Share) -> None:
    """A stub needs a block for its attribute at most, also one that undelete restores."""
    share.lab.write_policy('min_age = "0s"\nmin_size = "1"\nmin_file_saving = 0\n')
    share.limit("-u", ALICE)
    kept, lost = prose(4 * MIB, 1), prose(3 * MIB, 2)
    as_user(ALICE, lambda: (share.lab.view / "kept").write_bytes(kept), TEAM)
    os.sync()
    as_user(ALICE, lambda: (share.lab.view / "lost").write_bytes(lost), TEAM)
    share.lab.optimize()
    as_user(ALICE, (share.lab.view / "lost").unlink, TEAM)
    as_user(ALICE, lambda: write_until_refused(share.lab.view / "full"), TEAM)
    first = share.lab.optimize()
    os.truncate(share.lab.view / "full", (share.lab.view / "full").stat().st_size - SLACK)
    full = (share.lab.view / "full").read_bytes()
    done = run_cli("undelete", share.lab.view / "lost")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (share.lab.view / "lost").read_bytes() == lost
    assert (share.lab.view / "lost").stat().st_uid == ALICE
    assert share.used("-u", ALICE) <= LIMIT + SLACK
    report = share.lab.optimize()
    assert report.errors == 0, (report.messages, report.files_left)
    share.lab.collect()
    assert (share.lab.view / "kept").read_bytes() == kept
    assert (share.lab.view / "full").read_bytes() == full
    assert not first.messages, first.messages


def test_what_becomes_plain_beyond_a_quota(share: Share) -> None:
    """The job that expands stubs is root's, whom ext4 does not limit; XFS refuses it."""
    share.limit("-u", ALICE)
    content = prose(6 * MIB)
    as_user(ALICE, lambda: (share.lab.view / "f").write_bytes(content), TEAM)
    share.lab.optimize()
    as_user(ALICE, lambda: (share.lab.view / "g").write_bytes(noise(6 * MIB)), TEAM)
    report = share.lab.unoptimize()
    assert (share.lab.view / "f").read_bytes() == content
    if report.errors:
        assert "f: a quota is used up" in report.messages[0], report.messages
        assert share.lab.stub("f") is not None
        assert share.used("-u", ALICE) <= LIMIT + SLACK
    else:
        assert share.lab.stub("f") is None
