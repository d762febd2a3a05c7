"""What root takes over of files that users can change, and directories that users exchange."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from dedupd_core.errors import UsageError
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import opened
from dedupd_core.system.tree.takeover import (
    Rights,
    is_privileged,
    make_directory_of,
    permissions,
    refuse_others_directory,
    takes_attribute,
)
from tests.support.lab import let_others_pass
from tests.support.mounts import ALICE, BOB, as_user

PRIVATE = b".private-0"


class RacingDisk(Disk):
    """Has something happen after a step, once."""

    def __init__(self, after: str, action: Callable[[], None]) -> None:
        self._after = after
        self._action: Callable[[], None] | None = action

    def make_dir(self, dir_fd: int, name: bytes) -> None:
        super().make_dir(dir_fd, name)
        if os.fsdecode(name) == self._after and self._action is not None:
            action, self._action = self._action, None
            action()


@pytest.fixture
def hers(tmp_path: Path) -> Path:
    """A directory of a user's, in which one of another user's lies, and one of root's."""
    let_others_pass(tmp_path)
    path = tmp_path / "hers"
    for one, uid in ((path, ALICE), (path / "his", BOB), (path / "roots", 0)):
        one.mkdir()
        one.chmod(0o700 if uid != ALICE else 0o755)
        os.chown(one, uid, uid)
    return path


def make(hers: Path, disk: Disk) -> None:
    with opened(os.open(hers, os.O_RDONLY)) as fd:
        os.close(make_directory_of(disk, fd, b"new", PRIVATE, ALICE, ALICE))


def owners(hers: Path) -> dict[str, int]:
    return {entry.name: entry.stat(follow_symlinks=False).st_uid for entry in os.scandir(hers)}


@pytest.mark.root
def test_a_directory_gets_its_owner_before_users_can_reach_it(hers: Path) -> None:
    make(hers, Disk())
    status = (hers / "new").stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (ALICE, ALICE, 0o700)
    assert owners(hers) == {"his": BOB, "roots": 0, "new": ALICE}


@pytest.mark.root
@pytest.mark.parametrize("other", ["his", "link", "hers"])
def test_a_directory_that_was_put_in_place_of_the_private_one_is_given_to_nobody(
    hers: Path, other: str
) -> None:
    private = hers / os.fsdecode(PRIVATE)

    def exchange() -> None:
        os.rename(private, hers / "away")
        if other == "link":
            private.symlink_to(hers / "his")
        elif other == "hers":
            private.mkdir(0o700)
        else:
            os.rename(hers / other, private)

    disk = RacingDisk(private.name, lambda: as_user(ALICE, exchange))
    with pytest.raises((UsageError, OSError)):
        make(hers, disk)
    uids = {one.stat(follow_symlinks=False).st_uid for one in (hers / "away", hers / "roots")}
    assert uids == {0}
    moved = private if other == "his" else hers / "his"
    assert moved.stat(follow_symlinks=False).st_uid == BOB
    assert not (hers / "new").exists()


@pytest.mark.root
def test_another_directory_of_root_in_its_place_is_given_to_nobody(hers: Path) -> None:
    """It is used as the private one, which it can be: users cannot change it."""
    private = hers / os.fsdecode(PRIVATE)

    def exchange() -> None:
        os.rename(private, hers / "away")
        os.rename(hers / "roots", private)

    make(hers, RacingDisk(private.name, lambda: as_user(ALICE, exchange)))
    assert owners(hers) == {"his": BOB, "away": 0, "new": ALICE}


@pytest.mark.root
def test_nobody_reaches_a_directory_before_it_has_its_owner(hers: Path) -> None:
    def exchange() -> None:
        with pytest.raises(PermissionError):
            os.rename(hers / os.fsdecode(PRIVATE) / "new", hers / "taken")
        with pytest.raises(PermissionError):
            os.rename(hers / "his", hers / os.fsdecode(PRIVATE) / "new")

    make(hers, RacingDisk("new", lambda: as_user(ALICE, exchange)))
    assert owners(hers) == {"his": BOB, "roots": 0, "new": ALICE}


@pytest.mark.root
def test_what_exists_keeps_its_owner(hers: Path) -> None:
    (hers / "new").mkdir()
    with pytest.raises(FileExistsError):
        make(hers, Disk())
    assert owners(hers) == {"his": BOB, "roots": 0, "new": 0}


@pytest.mark.root
@pytest.mark.parametrize(
    ("owner", "uid", "refused"),
    [(0, ALICE, False), (ALICE, ALICE, False), (BOB, ALICE, True), (ALICE, 0, True), (0, 0, False)],
)
def test_a_file_comes_into_a_directory_of_root_or_of_its_owner(
    tmp_path: Path, owner: int, uid: int, refused: bool
) -> None:
    os.chown(tmp_path, owner, owner)
    with opened(os.open(tmp_path, os.O_RDONLY)) as fd:
        if not refused:
            refuse_others_directory(fd, b"some/where", uid)
            return
        with pytest.raises(UsageError, match=f"^some/where: .* user {owner}, .* user {uid}; .*--"):
            refuse_others_directory(fd, b"some/where", uid)


@pytest.mark.parametrize(
    ("mode", "rights", "same_group", "expected"),
    [
        (0o106755, Rights.PRIVILEGED, True, 0o6755),
        (0o106755, Rights.ROOT, True, 0o755),
        (0o101777, Rights.ROOT, True, 0o777),
        (0o104770, Rights.USER, True, 0o770),
        (0o100674, Rights.USER, False, 0o644),
        (0o100660, Rights.USER, False, 0o600),
        (0o100646, Rights.USER, False, 0o646),
    ],
)
def test_permissions(mode: int, rights: Rights, same_group: bool, expected: int) -> None:
    assert permissions(mode, rights, same_group=same_group) == expected


def test_attributes_that_an_owner_cannot_set_need_a_request_of_root() -> None:
    owned = [b"user.x", b"system.posix_acl_access"]
    others = [b"security.capability", b"security.selinux", b"trusted.overlay.opaque", b"system.x"]
    for rights in (Rights.ROOT, Rights.USER):
        assert all(takes_attribute(name, rights, same_group=True) for name in owned)
        assert not any(takes_attribute(name, rights, same_group=True) for name in others)
    assert all(takes_attribute(name, Rights.PRIVILEGED, same_group=True) for name in others)
    assert not takes_attribute(owned[1], Rights.USER, same_group=False)


def test_what_gives_rights_is_privileged() -> None:
    assert is_privileged(0o102755, [])
    assert is_privileged(0o100755, [b"security.capability"])
    assert not is_privileged(0o101777, [b"security.selinux", b"user.x"])
