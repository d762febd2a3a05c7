"""Names, owners, modes and attributes through the mount: as on the file system below."""

import ctypes
import errno
import os
import socket
import stat
import struct
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from dedupd_core.system.files import opened
from tests.support.lab import let_others_pass, noise
from tests.support.mounts import (
    ALICE,
    BOB,
    GROUP,
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
    rename_with,
)
from tests.support.service import eventually

pytestmark = pytest.mark.root

NOREPLACE, EXCHANGE = 1, 2

GETDENTS64 = 61 if os.uname().machine == "aarch64" else 217


@pytest.fixture(scope="module")
def lab(way: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MountedLab]:
    with mounted_lab(tmp_path_factory.mktemp("names")) as lab:
        yield lab


@pytest.fixture
def here(lab: MountedLab, request: pytest.FixtureRequest) -> Path:
    """A directory of its own for the test, which anybody may use."""
    path: Path = lab.view / request.node.name.replace("/", "_")[:200]
    path.mkdir()
    os.chmod(path, 0o777)
    return path


def code(action: object, *arguments: object) -> int:
    """The error number that a call fails with."""
    with pytest.raises(OSError) as caught:
        action(*arguments)  # type: ignore[operator]
    return caught.value.errno or 0


# --- making -----------------------------------------------------------------------------------


def test_a_new_file_belongs_to_its_creator(here: Path) -> None:
    as_user(ALICE, lambda: (here / "f").write_text("x"), gid=TEAM)
    status = (here / "f").stat()
    assert (status.st_uid, status.st_gid) == (ALICE, TEAM)


@pytest.mark.parametrize("make", ["mkdir", "mkfifo", "symlink", "socket"])
def test_every_new_inode_belongs_to_its_creator(here: Path, make: str) -> None:
    path = here / "made"

    def action() -> None:
        if make == "mkdir":
            path.mkdir()
        elif make == "mkfifo":
            os.mkfifo(path)
        elif make == "symlink":
            path.symlink_to("nowhere")
        else:
            os.chdir(here)
            socket.socket(socket.AF_UNIX).bind("made")

    as_user(ALICE, action, gid=TEAM)
    status = path.lstat()
    assert (status.st_uid, status.st_gid) == (ALICE, TEAM)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o027, 0o077])
def test_the_umask_applies(here: Path, umask: int) -> None:
    def action() -> None:
        os.umask(umask)
        os.close(os.open(here / "f", os.O_CREAT | os.O_WRONLY, 0o666))
        os.mkdir(here / "d", 0o777)

    as_user(ALICE, action)
    assert stat.S_IMODE((here / "f").stat().st_mode) == 0o666 & ~umask
    assert stat.S_IMODE((here / "d").stat().st_mode) == 0o777 & ~umask


def test_special_bits_survive_creation(here: Path) -> None:
    def action() -> None:
        os.umask(0)
        os.close(os.open(here / "f", os.O_CREAT | os.O_WRONLY, 0o4755))

    as_user(ALICE, action)
    assert stat.S_IMODE((here / "f").stat().st_mode) == 0o4755


def test_a_set_group_id_directory_hands_its_group_on(here: Path) -> None:
    shared = here / "shared"
    shared.mkdir()
    os.chown(shared, 0, TEAM)
    os.chmod(shared, 0o2777)

    def action() -> None:
        (shared / "f").write_text("x")
        (shared / "d").mkdir()

    as_user(ALICE, action)
    assert ((shared / "f").stat().st_uid, (shared / "f").stat().st_gid) == (ALICE, TEAM)
    assert (shared / "d").stat().st_gid == TEAM
    assert (shared / "d").stat().st_mode & stat.S_ISGID


def test_o_excl_fails_where_the_name_exists(here: Path) -> None:
    (here / "f").write_text("x")
    assert code(os.open, here / "f", os.O_CREAT | os.O_EXCL | os.O_WRONLY) == errno.EEXIST


def test_a_file_made_past_the_mount_is_opened_only_with_the_right_to(
    lab: MountedLab, here: Path
) -> None:
    assert not (here / "f").exists()
    below = lab.data / here.name / "f"
    below.write_text("secret")
    below.chmod(0o600)

    def alice() -> None:
        assert code(os.open, here / "f", os.O_RDWR | os.O_CREAT, 0o666) == errno.EACCES

    as_user(ALICE, alice)
    with open(here / "f", "a") as file:
        file.write(", for root")
    assert below.read_text() == "secret, for root"


def test_what_was_looked_for_in_vain_can_be_made_and_removed(here: Path) -> None:
    for _ in range(3):
        assert not (here / "f").exists()
        (here / "f").write_text("x")
        assert (here / "f").read_text() == "x"
        (here / "f").unlink()


def test_devices_keep_their_numbers(here: Path) -> None:
    os.mknod(here / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    assert (here / "null").stat().st_rdev == os.makedev(1, 3)
    with open(here / "null", "wb") as null:
        null.write(b"gone")


def test_names_are_bytes(here: Path) -> None:
    for name in (b"odd \xff\xfe", b"new\nline", b"n" * 255, "größe".encode()):
        path = os.fsencode(here) + b"/" + name
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
        assert name in os.listdir(os.fsencode(here))
        os.unlink(path)
    assert code(os.mkdir, os.fsencode(here) + b"/" + b"n" * 256) == errno.ENAMETOOLONG


# --- permissions ------------------------------------------------------------------------------


def test_others_get_only_what_the_mode_allows(here: Path) -> None:
    (here / "f").write_text("secret")
    os.chmod(here / "f", 0o640)
    os.chown(here / "f", ALICE, TEAM)

    def may_read() -> None:
        assert (here / "f").read_text() == "secret"

    def may_not_read() -> None:
        assert code(open, here / "f") == errno.EACCES

    as_user(ALICE, may_read)
    as_user(BOB, may_read, groups=[TEAM])
    as_user(BOB, may_not_read)


def test_the_sticky_bit_protects_the_files_of_others(here: Path) -> None:
    os.chmod(here, 0o1777)
    as_user(ALICE, lambda: (here / "f").write_text("x"))

    def bob() -> None:
        assert code(os.unlink, here / "f") == errno.EPERM
        assert code(os.rename, here / "f", here / "g") == errno.EPERM

    as_user(BOB, bob)
    as_user(ALICE, (here / "f").unlink)


def test_only_the_owner_changes_modes_and_only_root_gives_files_away(here: Path) -> None:
    as_user(ALICE, lambda: (here / "f").write_text("x"))

    def bob() -> None:
        assert code(os.chmod, here / "f", 0o777) == errno.EPERM

    def alice() -> None:
        assert code(os.chown, here / "f", BOB, -1) == errno.EPERM
        os.chmod(here / "f", 0o600)

    as_user(BOB, bob)
    as_user(ALICE, alice)
    os.chown(here / "f", BOB, TEAM)
    status = (here / "f").stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (BOB, TEAM, 0o600)


@pytest.mark.parametrize("how", ["write", "truncate", "O_TRUNC", "chown"])
def test_a_users_change_clears_set_user_id(here: Path, how: str) -> None:
    path = here / "f"
    path.write_text("some content")
    os.chown(path, ALICE, ALICE)
    os.chmod(path, 0o6777)

    def action() -> None:
        if how == "write":
            with open(path, "r+b") as file:
                file.write(b"y")
        elif how == "truncate":
            os.truncate(path, 3)
        elif how == "O_TRUNC":
            os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))
        else:
            os.chown(path, -1, TEAM)

    as_user(ALICE, action, groups=[TEAM])
    assert stat.S_IMODE(path.stat().st_mode) == 0o777


@pytest.mark.parametrize("command", ["echo x >> f", "truncate -s 3 f", ": > f"])
def test_a_superuser_without_rights_clears_set_user_id_as_others_do(
    here: Path, command: str
) -> None:
    path = here / "f"
    path.write_bytes(b"content")
    os.chown(path, ALICE, ALICE)
    for rights, kept in ([], 0o6777), (["--inh-caps=-all", "--bounding-set=-all"], 0o777):
        os.chmod(path, 0o6777)
        subprocess.run(["setpriv", *rights, "sh", "-c", command], cwd=here, check=True)
        assert stat.S_IMODE(path.stat().st_mode) == kept


def test_reading_keeps_set_user_id(here: Path) -> None:
    path = here / "f"
    path.write_text("some content")
    os.chmod(path, 0o4755)
    as_user(ALICE, path.read_text)
    assert stat.S_IMODE(path.stat().st_mode) == 0o4755


def test_chmod_clears_set_group_id_for_users_outside_of_the_group(here: Path) -> None:
    path = here / "f"
    path.write_text("x")
    os.chown(path, ALICE, TEAM)
    as_user(ALICE, lambda: os.chmod(path, 0o2755))
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    as_user(ALICE, lambda: os.chmod(path, 0o2755), groups=[TEAM])
    assert stat.S_IMODE(path.stat().st_mode) == 0o2755


# --- ACLs and extended attributes -------------------------------------------------------------

ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"


def shared_acl(user: int) -> bytes:
    return acl(
        (USER_OBJ, 7, NOBODY),
        (USER, 7, user),
        (GROUP_OBJ, 5, NOBODY),
        (MASK, 7, NOBODY),
        (OTHER, 0, NOBODY),
    )


def test_an_acl_lets_one_more_user_in(here: Path) -> None:
    path = here / "f"
    path.write_text("for bob")
    os.chmod(path, 0o600)
    as_user(BOB, lambda: code(open, path) == errno.EACCES)
    os.setxattr(path, ACCESS, shared_acl(BOB))
    as_user(BOB, path.read_text)
    assert os.getxattr(path, ACCESS) == shared_acl(BOB)
    assert path.stat().st_mode & 0o070 == 0o070, "the mask shows as the group's bits"


def test_a_default_acl_is_inherited_in_place_of_the_umask(here: Path) -> None:
    os.setxattr(here, DEFAULT, shared_acl(BOB))

    def alice() -> None:
        os.umask(0o022)
        (here / "f").write_text("from alice")
        (here / "d").mkdir()

    as_user(ALICE, alice)
    assert os.getxattr(here / "d", DEFAULT) == shared_acl(BOB)

    def bob() -> None:
        with open(here / "f", "a") as file:
            file.write(", and bob")
        (here / "d" / "g").write_text("x")

    as_user(BOB, bob)
    assert (here / "f").read_text() == "from alice, and bob"


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o027, 0o077])
@pytest.mark.parametrize("mode", [0o777, 0o666, 0o644, 0o640, 0o400, 0o022])
def test_a_new_file_gets_the_mode_that_the_default_acl_leaves(
    here: Path, mode: int, umask: int
) -> None:
    """Whatever the umask, which has no part in it: as on the file system below."""
    os.setxattr(here, DEFAULT, shared_acl(BOB))

    def alice() -> None:
        os.umask(umask)
        os.chdir(here)
        os.close(os.open("f", os.O_CREAT | os.O_WRONLY, mode))
        os.mkdir("d", mode)
        os.mknod("p", mode | stat.S_IFIFO)

    as_user(ALICE, alice)
    granted = os.stat(here / "f").st_mode & 0o777
    assert granted == mode & 0o770
    assert os.stat(here / "d").st_mode & 0o777 == granted
    assert os.stat(here / "p").st_mode & 0o777 == granted


def test_a_private_file_stays_private_in_spite_of_a_default_acl(here: Path) -> None:
    os.setxattr(here, DEFAULT, shared_acl(BOB))

    def alice() -> None:
        os.umask(0o022)
        os.close(os.open(here / "f", os.O_CREAT | os.O_WRONLY, 0o600))

    as_user(ALICE, alice)
    as_user(BOB, lambda: code(open, here / "f") == errno.EACCES)


def test_setfacl_and_getfacl_work(here: Path) -> None:
    (here / "f").write_text("x")
    subprocess.run(["setfacl", "-m", f"u:{BOB}:rw,g:{TEAM}:r", here / "f"], check=True)
    shown = subprocess.run(["getfacl", "-cn", here / "f"], check=True, capture_output=True).stdout
    assert f"user:{BOB}:rw-".encode() in shown
    assert f"group:{TEAM}:r--".encode() in shown
    assert GROUP  # the tag that setfacl has used


@pytest.mark.root
def test_labels_are_not_asked_for_again_where_there_are_none(lab: MountedLab) -> None:
    if os.path.isdir("/sys/fs/selinux"):
        pytest.skip("this machine has SELinux")
    path = lab.view / "labelled"
    path.touch()
    assert code(os.getxattr, path, "security.selinux") == errno.EOPNOTSUPP
    os.setxattr(path, "security.selinux", b"label")
    assert os.getxattr(path, "security.selinux") == b"label"


def test_extended_attributes_are_kept(here: Path) -> None:
    path = here / "f"
    path.write_text("x")
    os.setxattr(path, "user.colour", b"green \0 blue")
    os.setxattr(path, "user.empty", b"")
    assert sorted(os.listxattr(path)) == ["user.colour", "user.empty"]
    assert os.getxattr(path, "user.colour") == b"green \0 blue"
    assert code(os.setxattr, path, "user.empty", b"", os.XATTR_CREATE) == errno.EEXIST
    assert code(os.setxattr, path, "user.none", b"", os.XATTR_REPLACE) == errno.ENODATA
    os.removexattr(path, "user.colour")
    assert os.listxattr(path) == ["user.empty"]
    assert code(os.getxattr, path, "user.colour") == errno.ENODATA


def test_trusted_attributes_are_for_root(here: Path) -> None:
    path = here / "f"
    path.write_text("x")
    os.chmod(path, 0o666)
    os.setxattr(path, "trusted.note", b"root's")
    assert os.listxattr(path) == ["trusted.note"]

    def alice() -> None:
        assert os.listxattr(path) == []
        assert code(os.getxattr, path, "trusted.note") == errno.ENODATA
        assert code(os.setxattr, path, "trusted.note", b"mine") == errno.EPERM

    as_user(ALICE, alice)


@pytest.mark.parametrize("stub", [False, True])
def test_the_reserved_attribute_is_out_of_reach(lab: MountedLab, here: Path, stub: bool) -> None:
    path = here / "f"
    path.write_bytes(b"content" * 9000)
    if stub:
        lab.optimize()
    name = str(path.relative_to(lab.view))
    before = lab.stub(name)
    assert (before is not None) == stub
    for reserved in ("trusted.dedupd",):
        assert code(os.setxattr, path, reserved, b"x" * 48) == errno.EPERM
        assert code(os.removexattr, path, reserved) == errno.EPERM
        assert code(os.getxattr, path, reserved) == errno.ENODATA
        assert reserved not in os.listxattr(path)
    assert lab.stub(name) == before
    assert path.read_bytes() == b"content" * 9000


# --- links and renames ------------------------------------------------------------------------


def test_hard_links_share_everything(here: Path) -> None:
    (here / "a").write_text("one")
    os.link(here / "a", here / "b")
    assert (here / "a").stat().st_nlink == 2
    assert (here / "a").stat().st_ino == (here / "b").stat().st_ino
    with open(here / "b", "a") as file:
        file.write(" two")
    assert (here / "a").read_text() == "one two"
    (here / "a").unlink()
    assert (here / "b").stat().st_nlink == 1
    assert (here / "b").read_text() == "one two"


def test_symbolic_links(here: Path) -> None:
    (here / "l").symlink_to("target")
    assert os.readlink(here / "l") == "target"
    os.lchown(here / "l", ALICE, TEAM)
    os.utime(here / "l", ns=(1, 1_500_000_000_000_000_002), follow_symlinks=False)
    status = (here / "l").lstat()
    assert (status.st_uid, status.st_mtime_ns) == (ALICE, 1_500_000_000_000_000_002)
    os.link(here / "l", here / "l2", follow_symlinks=False)
    assert os.readlink(here / "l2") == "target"


def test_directories_count_their_subdirectories(here: Path) -> None:
    assert here.stat().st_nlink == 2
    (here / "d").mkdir()
    assert here.stat().st_nlink == 3
    assert code(os.rmdir, here) == errno.ENOTEMPTY
    (here / "d").rmdir()
    assert here.stat().st_nlink == 2


def test_rename_replaces_a_file_at_once(here: Path) -> None:
    (here / "a").write_text("new")
    (here / "b").write_text("old")
    with open(here / "b") as old:
        os.rename(here / "a", here / "b")
        assert (here / "b").read_text() == "new"
        assert old.read() == "old", "who had it open keeps it"
    assert os.listdir(here) == ["b"]


def test_rename_noreplace_replaces_nothing(here: Path) -> None:
    (here / "a").write_text("a")
    (here / "b").write_text("b")
    assert code(rename_with, here / "a", here / "b", NOREPLACE) == errno.EEXIST
    rename_with(here / "a", here / "c", NOREPLACE)
    assert (here / "c").read_text() == "a"


def test_rename_exchange_swaps(here: Path) -> None:
    (here / "a").write_text("a")
    (here / "d").mkdir()
    (here / "d" / "inside").write_text("d")
    rename_with(here / "a", here / "d", EXCHANGE)
    assert (here / "d").read_text() == "a"
    assert (here / "a" / "inside").read_text() == "d"


def test_a_directory_that_moved_is_still_the_one_that_is_open(here: Path) -> None:
    (here / "a" / "b").mkdir(parents=True)
    (here / "a" / "b" / "f").write_text("x")
    (here / "elsewhere").mkdir()
    fd = os.open(here / "a" / "b", os.O_RDONLY)
    try:
        os.rename(here / "a", here / "elsewhere" / "moved")
        with open(os.open("f", os.O_RDONLY, dir_fd=fd)) as file:
            assert file.read() == "x"
        os.close(os.open("g", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    finally:
        os.close(fd)
    assert sorted(os.listdir(here / "elsewhere" / "moved" / "b")) == ["f", "g"]


def test_a_removed_working_directory_is_empty(here: Path) -> None:
    (here / "d").mkdir()
    fd = os.open(here / "d", os.O_RDONLY)
    try:
        (here / "d").rmdir()
        assert os.fstat(fd).st_nlink == 0
        assert os.listdir(fd) == []
        assert code(lambda: os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=fd)) == errno.ENOENT
    finally:
        os.close(fd)


def test_a_removed_file_lives_as_long_as_it_is_in_use(here: Path) -> None:
    (here / "f").write_text("x")
    fd = os.open(here / "f", os.O_PATH)
    try:
        (here / "f").unlink()
        assert os.fstat(fd).st_nlink == 0
        assert Path(f"/proc/self/fd/{fd}").read_text() == "x"
    finally:
        os.close(fd)


# --- times and numbers ------------------------------------------------------------------------


def test_times_have_nanoseconds(here: Path) -> None:
    (here / "f").write_text("x")
    os.utime(here / "f", ns=(1_400_000_000_123_456_789, 1_500_000_000_987_654_321))
    status = (here / "f").stat()
    assert status.st_atime_ns == 1_400_000_000_123_456_789
    assert status.st_mtime_ns == 1_500_000_000_987_654_321


def test_changes_move_the_times_of_file_and_directory(here: Path) -> None:
    (here / "f").write_text("x")
    old = 1_500_000_000_000_000_000
    for path in (here / "f", here):
        os.utime(path, ns=(old, old))
    with open(here / "f", "a") as file:
        file.write("y")
    assert (here / "f").stat().st_mtime_ns > old
    assert here.stat().st_mtime_ns == old
    (here / "g").write_text("x")
    assert here.stat().st_mtime_ns > old


def test_inode_numbers_are_those_below(lab: MountedLab, here: Path) -> None:
    (here / "f").write_text("x")
    below = lab.data / here.name
    for name in (".", "f"):
        assert (here / name).stat().st_ino == (below / name).stat().st_ino
    assert {entry.inode() for entry in os.scandir(here)} == {(here / "f").stat().st_ino}
    assert lab.view.stat().st_ino == lab.data.stat().st_ino


def test_statfs_is_that_of_the_file_system_below(lab: MountedLab) -> None:
    def figures(path: Path) -> list[int]:
        names = ("f_bsize", "f_frsize", "f_blocks", "f_files", "f_namemax")
        return [getattr(os.statvfs(path), name) for name in names]

    # Where inodes are made as they are needed, their number changes with what others write.
    eventually(lambda: figures(lab.view) == figures(lab.data), "the figures are the same")


# --- directories ------------------------------------------------------------------------------


def test_a_listing_shows_every_name_once(here: Path) -> None:
    names = {f"name {n}" for n in range(3000)}
    for name in names:
        os.close(os.open(here / name, os.O_CREAT | os.O_WRONLY))
    listed = os.listdir(here)
    assert len(listed) == 3000
    assert set(listed) == names


def test_a_listing_survives_that_its_names_are_removed_as_it_goes(here: Path) -> None:
    for n in range(1500):
        os.close(os.open(here / str(n), os.O_CREAT | os.O_WRONLY))
    seen = []
    with os.scandir(here) as entries:
        for entry in entries:
            seen.append(entry.name)
            os.unlink(entry.path)
    assert sorted(seen, key=int) == [str(n) for n in range(1500)]
    assert os.listdir(here) == []


def test_a_listing_that_is_rewound_shows_what_is_new(here: Path) -> None:
    fd = os.open(here, os.O_RDONLY)
    try:
        assert os.listdir(fd) == []
        (here / "f").write_text("x")
        os.lseek(fd, 0, os.SEEK_SET)
        assert os.listdir(fd) == ["f"]
    finally:
        os.close(fd)


def entries(fd: int) -> list[tuple[str, int]]:
    """Some names behind the position of a directory, and the offset behind each."""
    buffer = ctypes.create_string_buffer(2048)
    length = ctypes.CDLL(None).syscall(GETDENTS64, fd, buffer, len(buffer))
    found = []
    at = 0
    while at < length:
        offset, size = struct.unpack_from("<qH", buffer, at + 8)
        found.append((os.fsdecode(buffer.raw[at + 19 : at + size].split(b"\0")[0]), offset))
        at += size
    return [one for one in found if one[0] not in (".", "..")]


def test_another_descriptor_goes_on_where_a_listing_was(here: Path) -> None:
    """As the kernel's NFS server does, which opens a directory for each part of a listing."""
    names = [f"name {n}" for n in range(1000)]
    for name in names:
        (here / name).touch()
    seen: list[str] = []
    position = 0
    while True:
        with opened(os.open(here, os.O_RDONLY)) as fd:
            os.lseek(fd, position, os.SEEK_SET)
            part = entries(fd)
        if not part:
            break
        for name, _ in part:
            # A client that removes what it has seen misses nothing of the rest.
            (here / name).unlink()
        seen += [name for name, _ in part]
        position = part[-1][1]
    assert sorted(seen) == sorted(names)


def test_all_of_a_large_directory_follows_through_another_descriptor(here: Path) -> None:
    names = {f"name {n}" for n in range(5000)}
    for name in names:
        os.close(os.open(here / name, os.O_CREAT | os.O_WRONLY))
    with opened(os.open(here, os.O_RDONLY)) as fd:
        seen = entries(fd)
    with opened(os.open(here, os.O_RDONLY)) as fd:
        os.lseek(fd, seen[-1][1], os.SEEK_SET)
        while part := entries(fd):
            seen += part
        assert len(seen) == 5000 and {name for name, _ in seen} == names
        os.lseek(fd, seen[10][1], os.SEEK_SET)
        assert entries(fd)[:5] == seen[11:16]


def test_a_listing_can_be_gone_back_in(here: Path) -> None:
    for n in range(500):
        (here / str(n)).touch()
    with opened(os.open(here, os.O_RDONLY)) as fd:
        first = entries(fd)
        second = entries(fd)
        assert second and not {*first} & {*second}
        os.lseek(fd, first[-1][1], os.SEEK_SET)
        assert entries(fd) == second
        os.lseek(fd, first[0][1], os.SEEK_SET)
        assert entries(fd)[: len(first)] == [*first, *second][1 : len(first) + 1]


def test_the_store_is_not_in_the_view(lab: MountedLab) -> None:
    assert ".dedupd" not in os.listdir(lab.view)
    assert not (lab.view / ".dedupd").exists()
    assert (lab.view / "..").resolve() == lab.view.parent


def test_another_file_system_over_a_directory_below_hides_nothing(
    lab: MountedLab, here: Path
) -> None:
    below = lab.data / here.name / "other"
    below.mkdir()
    (below / "covered").write_text("the volume's")
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", below], check=True)
    try:
        (below / "f").write_text("not the volume's")
        assert os.listdir(here) == ["other"]
        assert os.listdir(here / "other") == ["covered"]
        assert code(os.stat, here / "other" / "f") == errno.ENOENT
        (here / "other" / "covered").write_text("changed")
    finally:
        subprocess.run(["umount", below], check=True)
    assert (below / "covered").read_text() == "changed"


@pytest.mark.parametrize("is_stub", [False, True])
def test_an_acl_of_somebody_outside_of_the_group_takes_the_set_group_bit(
    lab: MountedLab, here: Path, tmp_path: Path, is_stub: bool
) -> None:
    """As on the file system below, of files and of directories, and of no other's."""
    let_others_pass(tmp_path)
    name = here.relative_to(lab.view) / "stub"
    modes = []
    for directory in (here, tmp_path):
        (directory / "directory").mkdir()
        (directory / "file").write_bytes(b"")
        (directory / "stub").write_bytes(noise(100_000))
        for path in directory.iterdir():
            os.chown(path, ALICE, TEAM)
            os.chmod(path, 0o2775)
        if is_stub and directory == here:
            lab.optimize()
            assert lab.stub(os.fsencode(name)) is not None
        found = []
        for groups in ([TEAM], []):
            paths = [directory / one for one in ("directory", "file", "stub")]
            command = ["setfacl", "-m", f"u:{BOB}:rw", *paths]
            with ExitStack() as opened_files:
                # What is open for writing, of a stub in particular, is Python's.
                if is_stub:
                    file = opened_files.enter_context(open(directory / "stub", "r+b"))
                    file.write(b"new")
                    file.flush()
                as_user(ALICE, partial(subprocess.run, command, check=True), ALICE, groups)
            found += [stat.S_IMODE(path.stat().st_mode) for path in paths]
        modes.append(found)
    assert modes[0] == modes[1]
    assert modes[0][:3] == [0o2775] * 3
