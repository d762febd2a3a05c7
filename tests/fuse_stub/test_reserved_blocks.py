"""Blocks that ext4 reserves for root: users of the mount have none of them, and root has all."""

import errno
import mmap
import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count, islice
from pathlib import Path

import pytest

from dedupd_core.system.files import opened
from dedupd_core.units import KIB, MIB
from tests.support.crash import ext4
from tests.support.lab import noise, write_out
from tests.support.mounts import (
    ALICE,
    BOB,
    GROUP_OBJ,
    MASK,
    NOBODY,
    OTHER,
    TEAM,
    USER,
    USER_OBJ,
    MountedLab,
    acl,
    as_user,
    mounted_lab,
)

pytestmark = pytest.mark.root

BLOCK = 4 * KIB
MKFS = ("-m", "25", "-b", str(BLOCK))

ROOM_BLOCKS = 40
"""What users are left."""

NEAR_BLOCKS = 8
"""Blocks of the file system's own, which come and go with what users write."""

STUB_BYTES = 4 * MIB

Takes = Iterator[None]


class Disk:
    """A volume on an ext4, mounted, and how many blocks the ext4 reserves."""

    def __init__(self, lab: MountedLab, point: Path) -> None:
        self.lab, self.point = lab, point
        found = os.statvfs(point)
        self.reserved = found.f_bfree - found.f_bavail
        assert self.reserved > 1000

    @property
    def free(self) -> int:
        write_out(self.point)
        return os.statvfs(self.point).f_bfree

    def fill(self, left: int = ROOM_BLOCKS) -> None:
        """Root takes, below, all that users can have but so many blocks."""
        with open(self.point / "others", "wb") as file:
            need = (self.free - self.reserved - left) * BLOCK
            os.posix_fallocate(file.fileno(), 0, need)
        assert abs(self.free - self.reserved - left) < NEAR_BLOCKS


@contextmanager
def disk_in(tmp_path: Path, options: str = "") -> Iterator[Disk]:
    with ext4(tmp_path, 64, MKFS) as point:
        if options:
            remount = ["mount", "-o", f"remount,{options}", str(point)]
            subprocess.run(remount, check=True)
        with mounted_lab(point, {"reserve": "0 B"}) as lab:
            yield Disk(lab, point)


@pytest.fixture(scope="module")
def whole(way: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disk]:
    with disk_in(tmp_path_factory.mktemp("reserved")) as disk:
        yield disk


@pytest.fixture
def disk(whole: Disk) -> Iterator[Disk]:
    """With nothing on it."""
    try:
        yield whole
    finally:
        (whole.point / "others").unlink(missing_ok=True)
        for entry in whole.lab.view.iterdir():
            shutil.rmtree(entry)
        write_out(whole.point)


def home_of(lab: MountedLab, uid: int) -> Path:
    home = lab.view / f"home-{uid}"
    home.mkdir()
    os.chown(home, uid, uid)
    return home


# --- ways to take blocks, one or a few at a time ----------------------------------------------


def written(home: Path) -> Takes:
    with open(home / "written", "ab", buffering=0) as file:
        while True:
            file.write(bytes(BLOCK))
            yield


def written_into_holes(home: Path) -> Takes:
    with open(home / "sparse", "wb", buffering=0) as file:
        file.truncate(1 << 40)
        for at in count():
            os.pwrite(file.fileno(), b"x", at * 3 * BLOCK)
            yield


def written_directly(home: Path) -> Takes:
    flags = os.O_RDWR | os.O_CREAT | os.O_DIRECT
    with opened(os.open(home / "direct", flags)) as fd, mmap.mmap(-1, BLOCK) as block:
        for at in count():
            os.pwrite(fd, block, at * BLOCK)
            yield


def allocated(home: Path) -> Takes:
    with open(home / "allocated", "wb") as file:
        for at in count():
            os.posix_fallocate(file.fileno(), at * BLOCK, BLOCK)
            yield


def copied(home: Path) -> Takes:
    (home / "source").write_bytes(bytes(BLOCK))
    with open(home / "source", "rb") as source, open(home / "copy", "wb") as copy:
        for at in count():
            os.copy_file_range(source.fileno(), copy.fileno(), BLOCK, 0, at * BLOCK)
            yield


def mapped(home: Path) -> Takes:
    with open(home / "mapped", "w+b") as file:
        file.truncate(16 * MIB)
        with mmap.mmap(file.fileno(), 16 * MIB) as mapping:
            for at in range(0, 16 * MIB, BLOCK):
                mapping[at] = 1
                mapping.flush(at, BLOCK)
                yield


def directories(home: Path) -> Takes:
    for number in count():
        (home / f"directory-{number}").mkdir()
        yield


def links(home: Path) -> Takes:
    for number in count():
        (home / f"link-{number}").symlink_to("x" * 500)
        yield


def names(home: Path) -> Takes:
    (home / "file").touch()
    for number in count():
        name = home / f"{number}-{'x' * 240}"
        if number % 3:
            name.touch()
        else:
            name.hardlink_to(home / "file")
        yield


def attributes(home: Path) -> Takes:
    for number in count():
        path = home / f"attributes-{number}"
        path.touch()
        # Files with the same attributes share their block.
        os.setxattr(path, "user.large", bytes(path) + noise(3000, number))
        yield


def acls(home: Path) -> Takes:
    """Of more entries than an inode has room for, each another one."""
    for number in count():
        path = home / f"acl-{number}"
        path.touch()
        own = path.stat().st_ino
        users = tuple((USER, 6, own + at) for at in range(60))
        rest = (GROUP_OBJ, 4, NOBODY), (MASK, 6, NOBODY), (OTHER, 4, NOBODY)
        value = acl((USER_OBJ, 6, NOBODY), *users, *rest)
        os.setxattr(path, "system.posix_acl_access", value)
        yield


def in_a_stub(home: Path) -> Takes:
    with opened(os.open(home / "stub", os.O_RDWR)) as fd:
        for at in range(0, STUB_BYTES, BLOCK):
            os.pwrite(fd, bytes(BLOCK), at)
            yield


def in_blocks_of_a_stub(home: Path) -> Takes:
    with opened(os.open(home / "stub", os.O_RDWR)) as fd:
        for at in range(0, STUB_BYTES, BLOCK):
            os.pwrite(fd, b"part", at + 100)
            yield


def behind_a_stub(home: Path) -> Takes:
    with open(home / "stub", "ab", buffering=0) as file:
        while True:
            file.write(bytes(BLOCK))
            yield


def allocated_in_a_stub(home: Path) -> Takes:
    with opened(os.open(home / "stub", os.O_RDWR)) as fd:
        for at in range(0, STUB_BYTES, BLOCK):
            os.posix_fallocate(fd, at, BLOCK)
            yield


def mapped_in_a_stub(home: Path) -> Takes:
    with open(home / "stub", "r+b") as file, mmap.mmap(file.fileno(), STUB_BYTES) as mapping:
        for at in range(0, STUB_BYTES, BLOCK):
            mapping[at] ^= 1
            mapping.flush(at, BLOCK)
            yield


WAYS = [
    written,
    written_into_holes,
    written_directly,
    allocated,
    copied,
    mapped,
    directories,
    links,
    names,
    attributes,
    acls,
    in_a_stub,
    in_blocks_of_a_stub,
    behind_a_stub,
    allocated_in_a_stub,
    mapped_in_a_stub,
]


def until_full(takes: Iterator[object]) -> None:
    with pytest.raises(OSError) as caught:
        for _ in takes:
            pass
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize("take", WAYS, ids=lambda take: take.__name__)
def test_users_take_none_of_them_and_root_does(disk: Disk, take: Callable[[Path], Takes]) -> None:
    home, own = home_of(disk.lab, ALICE), home_of(disk.lab, 0)
    own.chmod(0o700)
    for number, directory in enumerate((home, own)):
        (directory / "stub").write_bytes(noise(STUB_BYTES, number))
    disk.lab.optimize()
    for directory in (home, own):
        assert disk.lab.stub(f"{directory.name}/stub") is not None
        os.chown(directory / "stub", directory.stat().st_uid, -1)
    disk.fill()

    as_user(ALICE, lambda: until_full(take(home)))
    left = disk.free
    assert abs(left - disk.reserved) < NEAR_BLOCKS

    for _ in islice(take(own), 30):
        pass
    assert left - disk.free >= (2 if take is names else 25)
    as_user(ALICE, lambda: until_full(written(home)))


def test_users_stop_where_they_do_below(disk: Disk) -> None:
    home, below = home_of(disk.lab, ALICE), disk.point / "below"
    below.mkdir()
    os.chown(below, ALICE, ALICE)
    disk.fill(1000)
    shown = os.statvfs(disk.lab.view)
    assert shown.f_bavail == os.statvfs(disk.point).f_bavail
    assert abs(shown.f_bavail - 1000) < NEAR_BLOCKS
    left = []
    for directory in (below, home):
        as_user(ALICE, lambda at=directory: until_full(written(at)))  # type: ignore[misc]
        left.append(disk.free)
        (directory / "written").unlink()
    shutil.rmtree(below)
    assert abs(left[0] - left[1]) < 4


def test_a_user_writes_over_what_there_is_on_a_full_disk(disk: Disk) -> None:
    home = home_of(disk.lab, ALICE)
    (home / "file").write_bytes(bytes(100_000))
    os.chown(home / "file", ALICE, ALICE)
    disk.fill(0)

    def act() -> None:
        with open(home / "file", "r+b", buffering=0) as file:
            file.write(noise(100_000))
            os.fsync(file.fileno())
        os.truncate(home / "file", 50_000)
        os.rename(home / "file", home / "renamed")
        os.utime(home / "renamed")
        os.unlink(home / "renamed")

    as_user(ALICE, act)


def test_a_mapping_loses_nothing_without_an_error(disk: Disk) -> None:
    """The kernel takes what it writes of one for written unless all of it fails."""
    home, length = home_of(disk.lab, ALICE), 400 * KIB
    content = noise(length)
    disk.fill(length // BLOCK // 2)

    def act() -> None:
        with open(home / "mapped", "w+b") as file:
            file.truncate(length)
            with mmap.mmap(file.fileno(), length) as mapping:
                mapping[:] = content
                with pytest.raises(OSError) as caught:
                    mapping.flush()
                assert caught.value.errno == errno.ENOSPC

    as_user(ALICE, act)


def test_a_mapping_of_a_file_that_others_may_write_to_has_none(disk: Disk) -> None:
    own = home_of(disk.lab, 0)
    disk.fill(0)
    (own / "mapped").touch()
    os.chmod(own / "mapped", 0o666)
    until_full(mapped(own))


def test_roots_writes_by_another_user_in_the_same_process_are_that_users(disk: Disk) -> None:
    """As servers write, which act for their users."""
    home = home_of(disk.lab, ALICE)
    home.chmod(0o777)
    disk.fill(0)
    with opened(os.open(home / "roots", os.O_RDWR | os.O_CREAT)) as fd:
        os.pwrite(fd, bytes(BLOCK), 0)

        def act() -> None:
            os.pwrite(fd, bytes(BLOCK), BLOCK)
            os.setresuid(-1, ALICE, -1)
            until_full(iter(lambda: os.pwrite(fd, bytes(BLOCK), 2 * BLOCK), 0))
            os.setresuid(-1, 0, -1)
            os.pwrite(fd, bytes(BLOCK), 2 * BLOCK)

        as_user(0, act)


@pytest.mark.parametrize("options", [f"resuid={ALICE}", f"resgid={TEAM}", "resuid=65533"])
def test_who_may_have_them_is_as_the_file_system_says(tmp_path: Path, options: str) -> None:
    with disk_in(tmp_path, options) as disk:
        homes = {uid: home_of(disk.lab, uid) for uid in (ALICE, BOB, 0)}
        disk.fill(0)
        for take in (written, allocated, directories, attributes):
            takes = {uid: partial(islice, take(home), 10) for uid, home in homes.items()}
            user, groups = (ALICE, ()) if "resuid" in options else (BOB, (TEAM,))
            if options != "resuid=65533":
                as_user(user, lambda of=takes[user]: list(of()), groups=groups)  # type: ignore[misc]
            for _ in takes[0]():
                pass
            other = BOB if user == ALICE else ALICE
            as_user(other, lambda at=homes[other], by=take: until_full(by(at)))  # type: ignore[misc]
            owners = {path.stat().st_uid for path in homes[0].rglob("*")}
            assert owners == {0}


def test_the_mount_writes_files_of_its_own_as_root_on_a_full_disk(tmp_path: Path) -> None:
    with ext4(tmp_path, 64, MKFS) as point:
        policy = {"reserve": "0 B", "keep_deleted": "1h", "space_low": "0", "space_critical": "0"}
        with mounted_lab(point, policy) as lab:
            disk, home, content = Disk(lab, point), home_of(lab, ALICE), noise(200_000)
            lab.make_stub(f"{home.name}/stub", content)
            os.chown(home / "stub", ALICE, ALICE)
            (home / "same").write_bytes(content)
            disk.fill(4)

            def act() -> None:
                until_full(written(home))
                os.unlink(home / "stub")

            as_user(ALICE, act)
            assert b"stub" in os.getxattr(home, "user.dedupd.deleted")
            (point / "others").unlink()
            lab.optimize()
            assert lab.stub(f"{home.name}/same") is not None
            assert (home / "same").read_bytes() == content
            base = lab.root / ".dedupd"
            own = [path for path in base.rglob("*") if base / "data" not in path.parents]
            assert len(own) > 10
            assert {path.lstat().st_uid for path in own} == {0}


# --- nothing but the space differs ------------------------------------------------------------


def made(home: Path) -> dict[str, tuple[int, int, int]]:
    os.umask(0o022)
    for name, mode in {
        "plain": 0o644,
        "set-ids": 0o6755,
        "closed": 0o000,
        "sticky": 0o1666,
    }.items():
        os.close(os.open(home / name, os.O_RDWR | os.O_CREAT, mode))
    (home / "directory").mkdir(0o2775)
    (home / "directory" / "inside").touch()
    os.mkfifo(home / "fifo", 0o4600)
    (home / "link").symlink_to("nowhere")
    flags = os.O_TMPFILE | os.O_RDWR
    with opened(os.open(home, os.O_PATH)) as here, opened(os.open(home, flags, 0o4711)) as fd:
        # Without the directory's descriptor Python follows no link.
        os.link(f"/proc/self/fd/{fd}", "nameless", dst_dir_fd=here, follow_symlinks=True)
    found = {}
    for path in sorted(home.rglob("*")):
        status = path.lstat()
        found[path.relative_to(home).as_posix()] = status.st_mode, status.st_uid, status.st_gid
    return found


@pytest.mark.parametrize(("uid", "gid"), [(0, 0), (0, TEAM), (ALICE, TEAM), (65_533, 65_533)])
@pytest.mark.parametrize("set_group", [False, True])
def test_what_is_made_belongs_to_its_maker(disk: Disk, uid: int, gid: int, set_group: bool) -> None:
    home, below = disk.lab.view / "home", disk.point / "below"

    def act() -> None:
        assert made(home) == made(below)

    try:
        for directory in (home, below):
            directory.mkdir()
            os.chown(directory, uid, BOB)
            directory.chmod(0o2777 if set_group else 0o777)
        as_user(uid, act, gid)
    finally:
        shutil.rmtree(below)


def rights(home: Path, roots: Path) -> list[int]:
    """Error numbers of things that depend on rights, with files that are open already."""
    results = []

    def tried(action: Callable[[], object]) -> None:
        try:
            action()
            results.append(0)
        except OSError as error:
            results.append(error.errno or -1)

    with opened(os.open(home / "own", os.O_RDWR | os.O_CREAT | os.O_APPEND)) as fd:
        os.chmod(home / "own", 0)
        tried(lambda: os.write(fd, b"abc"))
        tried(lambda: os.pwrite(fd, b"abc", 0))
        tried(lambda: os.ftruncate(fd, 4))
        tried(lambda: os.posix_fallocate(fd, 0, 10_000))
        results.append(os.fstat(fd).st_size)
    tried(lambda: os.open(home / "own", os.O_WRONLY))
    tried(lambda: os.setxattr(home / "own", "user.a", b"a"))
    tried(lambda: os.setxattr(home / "own", "trusted.a", b"a"))
    tried(lambda: os.setxattr(home / "own", "security.a", b"a"))
    tried(lambda: os.chown(home / "own", BOB, -1))
    tried(lambda: os.open(roots / "shut", os.O_WRONLY))
    tried(lambda: os.unlink(roots / "shut"))
    tried(lambda: os.rename(roots / "sticky" / "file", roots / "sticky" / "renamed"))
    tried(lambda: os.link(roots / "shut", home / "linked"))
    tried(lambda: os.setxattr(roots / "sticky", "user.a", b"a"))
    tried(lambda: os.truncate(roots / "immutable", 0))
    with opened(os.open(roots / "open-set-ids", os.O_WRONLY)) as fd:
        tried(lambda: os.write(fd, b"abc"))
        results.append(stat.S_IMODE(os.fstat(fd).st_mode))
    with opened(os.open(roots / "capable", os.O_WRONLY)) as fd:
        tried(lambda: os.write(fd, b"abc"))
    tried(lambda: os.getxattr(roots / "capable", "security.capability"))
    return results


CAPABILITY = bytes.fromhex("0100000200040000000000000000000000000000")


@pytest.mark.parametrize("uid", [0, ALICE])
def test_rights_are_as_below(disk: Disk, uid: int) -> None:
    below = disk.point / "below"
    (disk.lab.view / "home").mkdir()
    below.mkdir()
    immutable = []
    try:
        found = []
        for top in (disk.lab.view / "home", below):
            home, roots = top / "home", top / "roots"
            home.mkdir()
            roots.mkdir()
            os.chown(home, uid, uid)
            for name, mode in {"shut": 0o600, "open-set-ids": 0o6777, "capable": 0o777}.items():
                (roots / name).write_bytes(b"content")
                (roots / name).chmod(mode)
            os.setxattr(roots / "capable", "security.capability", CAPABILITY)
            (roots / "sticky").mkdir()
            (roots / "sticky" / "file").touch()
            (roots / "sticky").chmod(0o1777)
            (roots / "immutable").touch(0o666)
            (roots / "immutable").chmod(0o666)
            subprocess.run(["chattr", "+i", roots / "immutable"], check=True)
            immutable.append(roots / "immutable")

            def act(home: Path = home, roots: Path = roots) -> None:
                (home / "results").write_text(repr(rights(home, roots)))

            as_user(uid, act)
            found.append((home / "results").read_text())
        assert found[0] == found[1]
    finally:
        for path in immutable:
            subprocess.run(["chattr", "-i", path], check=True)
        shutil.rmtree(below)


def test_root_allocates_in_a_stub_with_set_user_id(disk: Disk) -> None:
    stub = disk.lab.make_stub("home/stub", noise(300_000))
    stub.chmod(0o4755)
    with opened(os.open(stub, os.O_RDWR)) as fd:
        os.posix_fallocate(fd, 0, 10_000)
    assert stat.S_IMODE(stub.stat().st_mode) == 0o4755
    assert stub.read_bytes() == noise(300_000)
