"""Idmapped mounts of the mount: owners are what they are on one of the file system below."""

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from dedupd_core.system.files import opened
from tests.support.idmaps import idmapped
from tests.support.lab import let_others_pass, noise
from tests.support.mounts import MountedLab, Nursery, as_user, mounted_lab, serve_without

pytestmark = pytest.mark.root

BELOW, SEEN, COUNT = 41000, 61000, 100
"""Users in the file system, and as the idmapped mount has them."""

CAROL, DAVE = SEEN + 1, SEEN + 2
CREW = SEEN + 3

ALLOW_IDMAP = 1 << 40
"""``FUSE_ALLOW_IDMAP``"""


@pytest.fixture(scope="module")
def lab(way: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MountedLab]:
    with mounted_lab(tmp_path_factory.mktemp("idmapped")) as lab:
        yield lab


@contextmanager
def seen_otherwise(here: Path, target: Path) -> Iterator[Path]:
    """A new directory that is one of the mapped users', and where it shows."""
    here.mkdir()
    os.chown(here, BELOW + 1, BELOW + 1)
    target.mkdir()
    with idmapped(here, target, BELOW, SEEN, COUNT) as shown:
        yield shown


def as_they_are(root: Path) -> dict[str, tuple[int, int, int, str]]:
    """Of all inodes from ``root`` on: user, group, mode and ACL."""
    found = {}
    for path in (root, *root.rglob("*")):
        status, acl = path.lstat(), ""
        if not path.is_symlink():
            command = ["getfacl", "--omit-header", "--numeric", "--absolute-names", str(path)]
            acl = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        key = str(path.relative_to(root))
        found[key] = (status.st_uid, status.st_gid, status.st_mode, acl)
    return found


def told(uid: int, actions: dict[str, Callable[[], object]]) -> list[str]:
    """What a user is told who does some things."""
    read_fd, write_fd = os.pipe()

    def act() -> None:
        for name, action in actions.items():
            code = 0
            try:
                action()
            except OSError as error:
                code = error.errno or 0
            os.write(write_fd, f"{name}: {errno.errorcode.get(code)}\n".encode())

    with opened(read_fd):
        try:
            as_user(uid, act)
        finally:
            os.close(write_fd)
        return os.read(read_fd, 1 << 16).decode().splitlines()


def make_all(here: Path) -> None:
    """What one user makes: an inode of each kind, with rights of all kinds."""
    (here / "file").write_bytes(b"content")
    (here / "directory").mkdir()
    (here / "link").symlink_to("file")
    os.mkfifo(here / "fifo")
    os.link(here / "file", here / "second")
    with (
        opened(os.open(here, os.O_RDONLY | os.O_DIRECTORY)) as to_fd,
        opened(os.open(here, os.O_TMPFILE | os.O_RDWR, 0o640)) as fd,
    ):
        os.link(f"/proc/self/fd/{fd}", "named", dst_dir_fd=to_fd, follow_symlinks=True)
    (here / "group").mkdir()
    os.chown(here / "group", -1, CREW)
    os.chmod(here / "group", 0o2775)
    (here / "group" / "inherits").write_bytes(b"")
    (here / "private").write_bytes(b"private")
    os.chmod(here / "private", 0o600)
    (here / "program").write_bytes(b"")
    os.chown(here / "program", -1, CREW)
    os.chmod(here / "program", 0o6777)
    subprocess.run(["setfacl", "-m", f"u:{DAVE}:rw", here / "private"], check=True)
    subprocess.run(["setfacl", "-d", "-m", f"u:{DAVE}:rwx", here / "directory"], check=True)
    # An ACL takes the set-group-id bit of those that are not in the group.
    for name in ("of the crew", "of others"):
        (here / name).write_bytes(b"")
        os.chown(here / name, -1, CREW)
        os.chmod(here / name, 0o2775)
    (here / "directory" / "inherits").write_bytes(b"")
    (here / "gone").write_bytes(b"")
    (here / "gone").unlink()
    os.chmod(here, 0o777)


def use(here: Path) -> list[str]:
    """What several users are told in a directory that is Carol's."""

    def own(prefix: str) -> Path:
        return here / f"{prefix}-{os.getuid()}"

    as_user(CAROL, partial(make_all, here), groups=[CREW])
    for groups, names in {CREW: ["of the crew", "group"], DAVE: ["of others", "program"]}.items():
        command = ["setfacl", "-m", f"u:{DAVE}:rw", *(here / name for name in names)]
        as_user(CAROL, partial(subprocess.run, command, check=True), groups=[groups])
    actions: dict[str, Callable[[], object]] = {
        "read": (here / "private").read_bytes,
        "write": lambda: (here / "program").write_bytes(b"new"),
        "create": lambda: own("f").write_bytes(b"content"),
        "directory": lambda: own("d").mkdir(0o755),
        "rename": lambda: os.rename(here / "second", here / "renamed"),
        "rename back": lambda: os.rename(here / "renamed", here / "second"),
        "times": lambda: os.utime(here / "file"),
        "give away": lambda: os.chown(own("f"), SEEN + 9, SEEN + 9),
        "give to a user who is not mapped": lambda: os.chown(here / "file", BELOW + 1, -1),
        "remove": lambda: os.unlink(own("f")),
    }
    # By the numbers that they have in the file system, users are not known there.
    users = {
        "Carol": CAROL,
        "Dave": DAVE,
        "not mapped": BELOW + 1,
        "other": SEEN + COUNT,
        "root": 0,
    }
    return [f"{name}, {line}" for name, uid in users.items() for line in told(uid, actions)]


def test_owners_and_rights_are_those_of_the_file_system_below(
    lab: MountedLab, tmp_path: Path
) -> None:
    plain = tmp_path / "plain"
    let_others_pass(tmp_path)
    try:
        with seen_otherwise(plain, tmp_path / "plain-seen") as shown:
            expected = use(shown), as_they_are(shown), as_they_are(plain)
    except OSError as error:
        pytest.skip(f"no idmapped mounts of the file system of the tests: {error}")
    with seen_otherwise(lab.view / "here", tmp_path / "seen") as shown:
        assert (use(shown), as_they_are(shown), as_they_are(lab.view / "here")) == expected
        assert (shown / "file").stat().st_uid == CAROL
    assert (lab.data / "here" / "file").stat().st_uid == BELOW + 1


def test_stubs_are_read_and_written(lab: MountedLab, tmp_path: Path) -> None:
    let_others_pass(tmp_path)
    content = noise(700_000)
    with seen_otherwise(lab.view / "stubs", tmp_path / "seen") as shown:
        as_user(CAROL, lambda: (shown / "f").write_bytes(content))
        lab.optimize()
        assert lab.stub("stubs/f") is not None

        def acts() -> None:
            assert (shown / "f").read_bytes() == content
            with open(shown / "f", "r+b") as file:
                file.write(b"new")
                os.fsync(file.fileno())

        as_user(CAROL, acts)
        assert (lab.view / "stubs" / "f").read_bytes() == b"new" + content[3:]
        assert (shown / "f").stat().st_uid == CAROL


def test_whose_a_request_is_counts_without_an_idmapped_mount_too(lab: MountedLab) -> None:
    """The kernel tells the user of new inodes only, on all mounts of the file system."""
    (lab.view / "d").mkdir()
    os.chmod(lab.view / "d", 0o777)
    path = lab.view / "d" / "f"
    path.write_bytes(b"content")
    os.chmod(path, 0o666)
    try:
        os.setxattr(lab.data / "d" / "f", "trusted.other", b"1")
    except OSError:
        pytest.skip("no trusted attributes here")
    assert "trusted.other" in os.listxattr(path)

    def acts() -> None:
        assert "trusted.other" not in os.listxattr(path)

    as_user(CAROL, acts)


def test_a_kernel_that_has_none_refuses_them(way: str, tmp_path: Path) -> None:
    with mounted_lab(tmp_path, nursery=Nursery(partial(serve_without, ALLOW_IDMAP))) as lab:
        with (
            pytest.raises(OSError) as caught,
            seen_otherwise(lab.view / "here", tmp_path / "seen"),
        ):
            pass
        assert caught.value.errno == errno.EINVAL
        (lab.view / "f").write_bytes(b"content")
        assert (lab.data / "f").read_bytes() == b"content"
