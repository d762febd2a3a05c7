"""What programs do to files beside reading and writing, held against the file system below."""

import ctypes
import errno
import fcntl
import os
import random
import stat
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from dedupd_core import native
from dedupd_core.system.files import opened
from dedupd_core.units import KIB, MIB
from tests.conftest import MakeFileSystem
from tests.support.lab import noise
from tests.support.mounts import (
    ALICE,
    GROUP_OBJ,
    MASK,
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

BLOCK = 4096
CONTENT = noise(40 * BLOCK) + bytes(20 * BLOCK) + noise(30 * BLOCK + 1000, 1)
"""With a hole in its recipe, and a block in part at its end."""

KEEP_SIZE, PUNCH, ZERO = 0x01, 0x03, 0x10
MODES = (0, KEEP_SIZE, PUNCH, ZERO, ZERO | KEEP_SIZE)
_LIBC = ctypes.CDLL(None, use_errno=True)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[MountedLab]:
    with mounted_lab(tmp_path) as lab:
        yield lab


def fallocate(fd: int, mode: int, start: int, length: int) -> None:
    if _LIBC.fallocate64(fd, mode, ctypes.c_int64(start), ctypes.c_int64(length)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def parts(fd: int) -> list[tuple[int, int]]:
    """The data of a file, as ``SEEK_DATA`` and ``SEEK_HOLE`` tell it."""
    found, at = [], 0
    with suppress(OSError):
        while True:
            start = os.lseek(fd, at, os.SEEK_DATA)
            at = os.lseek(fd, start, os.SEEK_HOLE)
            found.append((start, at))
    return found


def three(lab: MountedLab, directory: Path) -> list[Path]:
    """The same file on the file system below, plain through the mount, and a stub through it."""
    paths = [directory / "below", lab.view / "plain", lab.make_stub("stub", CONTENT)]
    for path in paths[:2]:
        path.write_bytes(CONTENT)
    return paths


# --- fallocate --------------------------------------------------------------------------------


def test_ranges_are_allocated_punched_and_zeroed_as_below(lab: MountedLab, tmp_path: Path) -> None:
    change_as_below(lab, tmp_path, 60, 5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs"])
def test_ranges_are_as_below_on_every_file_system(loop_fs: MakeFileSystem, kind: str) -> None:
    point = loop_fs(kind)
    for seed in range(5):
        (point / str(seed)).mkdir()
        with mounted_lab(point / str(seed)) as lab:
            change_as_below(lab, point / str(seed), 200, seed)


def change_as_below(lab: MountedLab, directory: Path, steps: int, seed: int) -> None:
    """With writes, cuts and a new mount in between; what is read is what is read below."""
    paths = three(lab, directory)
    rng = random.Random(seed)
    for step in range(steps):
        kind = rng.choice(("write", "cut", "allocate", "allocate", "allocate", "allocate"))
        start, length = rng.randrange(len(CONTENT) + 3 * BLOCK), rng.randrange(1, 12 * BLOCK)
        if rng.randrange(2):
            start, length = start // BLOCK * BLOCK, (length // BLOCK + 1) * BLOCK
        mode, data = rng.choice(MODES), noise(length, step)
        for path in paths:
            with opened(os.open(path, os.O_RDWR)) as fd:
                if kind == "allocate":
                    fallocate(fd, mode, start, length)
                elif kind == "write":
                    os.pwrite(fd, data, start)
                else:
                    os.truncate(fd, max(1, len(CONTENT) - start % (4 * BLOCK)))
        expected = paths[0].read_bytes()
        for path in paths[1:]:
            assert path.stat().st_size == len(expected), (step, kind, mode)
            assert path.read_bytes() == expected, (step, kind, mode, start, length)
        if step % 20 == 19:
            lab.unmount()
            lab.mount()
    lab.optimize()
    assert {path.read_bytes() for path in paths} == {expected}
    lab.unmount()
    lab.verify_clean()


def test_other_modes_are_refused(lab: MountedLab) -> None:
    path = lab.make_stub("stub", CONTENT)
    with opened(os.open(path, os.O_RDWR)) as fd:
        for mode in (0x08, 0x20, 0x40):  # collapse, insert, unshare
            with pytest.raises(OSError) as refusal:
                fallocate(fd, mode, 0, BLOCK)
            assert refusal.value.errno == errno.EOPNOTSUPP
    assert path.read_bytes() == CONTENT


def test_a_stub_that_is_emptied_by_punching_gives_its_blocks_and_its_recipe_up(
    lab: MountedLab,
) -> None:
    path = lab.make_stub("stub", CONTENT)
    with opened(os.open(path, os.O_RDWR)) as fd:
        os.pwrite(fd, b"own" * 5000, 3 * BLOCK)
        fallocate(fd, PUNCH, 10 * BLOCK, len(CONTENT))
        assert lab.stub("stub").covered == 10 * BLOCK  # type: ignore[union-attr]
        fallocate(fd, PUNCH, 0, len(CONTENT))
    assert lab.stub("stub") is None
    assert os.stat(lab.data / "stub").st_blocks == 0
    assert path.read_bytes() == bytes(len(CONTENT))


# --- set-user-id and set-group-id -------------------------------------------------------------


def at_fd(change: Callable[[int], object]) -> Callable[[Path], None]:
    def work(path: Path) -> None:
        with opened(os.open(path, os.O_RDWR)) as fd:
            change(fd)

    return work


def copy_part(path: Path) -> None:
    with (
        opened(os.open(path.parent / "source", os.O_RDONLY)) as source,
        opened(os.open(path, os.O_RDWR)) as fd,
    ):
        assert os.copy_file_range(source, fd, 3 * BLOCK, 0, BLOCK) == 3 * BLOCK


def copy_over(path: Path) -> None:
    subprocess.run(["cp", path.parent / "source", path], check=True, stderr=subprocess.DEVNULL)


CHANGES: dict[str, Callable[[Path], None]] = {
    "allocate": at_fd(lambda fd: fallocate(fd, 0, len(CONTENT), BLOCK)),
    "allocate-keep": at_fd(lambda fd: fallocate(fd, KEEP_SIZE, 0, BLOCK)),
    "punch": at_fd(lambda fd: fallocate(fd, PUNCH, 0, 2 * BLOCK)),
    "zero": at_fd(lambda fd: fallocate(fd, ZERO, BLOCK, BLOCK + 100)),
    "copy_file_range": copy_part,
    "cp": copy_over,
    "shorten": lambda path: os.truncate(path, 5000),
    "lengthen": lambda path: os.truncate(path, len(CONTENT) + 5000),
    "write": at_fd(lambda fd: os.pwrite(fd, b"new", 7000)),
}


def changed_files(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Permissions and content of each file."""
    return {
        path.name: (stat.S_IMODE(path.stat().st_mode), path.read_bytes())
        for path in sorted(directory.iterdir())
    }


@pytest.mark.parametrize("uid", [0, ALICE])
@pytest.mark.parametrize("is_stub", [False, True], ids=["plain", "stub"])
def test_a_change_treats_set_ids_as_the_file_system_below_does(
    lab: MountedLab, tmp_path: Path, uid: int, is_stub: bool
) -> None:
    """Root keeps set-user-id and set-group-id of a program that it changes, a user clears them."""
    directories = below, through = tmp_path / "below", lab.view / "d"
    files = {f"{name}-{mode:o}": mode for name in CHANGES for mode in (0o4755, 0o2755, 0o6777)}
    for directory in directories:
        directory.mkdir()
        for name in files:
            (directory / name).write_bytes(CONTENT)
        (directory / "source").write_bytes(noise(5 * BLOCK + 1, 7))
    if is_stub:
        lab.optimize()
        assert all(lab.stub(f"d/{name}") is not None for name in files)
    for directory in directories:
        for name, mode in files.items():
            os.chown(directory / name, uid, uid)
            os.chmod(directory / name, mode)

    def change_all() -> None:
        for directory in directories:
            for name in files:
                CHANGES[name.rpartition("-")[0]](directory / name)

    os.chmod(tmp_path, 0o755)
    as_user(uid, change_all)
    expected = changed_files(below)
    assert changed_files(through) == expected
    kept = [name for name, mode in files.items() if expected[name][0] == mode]
    assert kept == (list(files) if uid == 0 else [])


def in_a_user_namespace(path: Path) -> None:
    """Its root is the owner of root's files, and has rights over that namespace only."""
    punching = ["fallocate", "--punch-hole", "--offset", "0", "--length", str(BLOCK), str(path)]
    subprocess.run(["unshare", "--user", "--map-root-user", *punching], check=True)


def in_a_container(path: Path) -> None:
    """Whose root lacks ``CAP_FSETID``."""
    native.system.give_up_capability("CAP_FSETID")
    CHANGES["punch"](path)


@pytest.mark.parametrize("change", [in_a_container, in_a_user_namespace])
def test_root_without_the_right_to_keep_set_ids_clears_them(
    lab: MountedLab, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    paths = below, through = tmp_path / "below", lab.view / "program"
    for path in paths:
        path.write_bytes(CONTENT)
        os.chmod(path, 0o6755)
        as_user(0, partial(change, path))
    assert stat.S_IMODE(below.stat().st_mode) == 0o755
    assert stat.S_IMODE(through.stat().st_mode) == 0o755


# --- SEEK_DATA, SEEK_HOLE ---------------------------------------------------------------------


def test_holes_are_found_where_the_file_system_below_has_them(
    lab: MountedLab, tmp_path: Path
) -> None:
    for path in (tmp_path / "below", lab.view / "plain"):
        with open(path, "wb") as file:
            file.truncate(3 * MIB)
            for at in (64 * KIB, 1 * MIB):
                file.seek(at)
                file.write(noise(100_000))
    with open(tmp_path / "below", "rb") as one, open(lab.view / "plain", "rb") as other:
        assert parts(one.fileno()) == parts(other.fileno()) != []
        for whence in (os.SEEK_DATA, os.SEEK_HOLE):
            for fd in (one.fileno(), other.fileno()):
                with pytest.raises(OSError) as refusal:
                    os.lseek(fd, 3 * MIB, whence)
                assert refusal.value.errno == errno.ENXIO


def test_the_holes_of_a_stub_are_its_recipe_s(lab: MountedLab, tmp_path: Path) -> None:
    hole = (300_000, 300_000 + 2 * MIB)
    content = noise(hole[0]) + bytes(2 * MIB) + noise(100_000, 1)
    path = lab.make_stub("stub", content)
    with opened(os.open(path, os.O_RDWR)) as fd:
        [(start, low), (high, end)] = parts(fd)
        assert (start, end) == (0, len(content))
        assert hole[0] <= low < high <= hole[1]
        os.pwrite(fd, b"x", 1 * MIB)
        assert any(start <= 1 * MIB < end for start, end in parts(fd))
    subprocess.run(["cp", "--sparse=auto", path, tmp_path / "copy"], check=True)
    assert (tmp_path / "copy").read_bytes() == path.read_bytes()


# --- copies -----------------------------------------------------------------------------------


def copied(source: Path, target: Path) -> int:
    """Copy a file by copy_file_range(2), into an empty one."""
    with open(source, "rb") as one, open(target, "wb") as other:
        total = 0
        while count := os.copy_file_range(one.fileno(), other.fileno(), 1 << 30):
            total += count
    return total


def test_a_copy_of_a_stub_is_a_stub_of_the_same_recipe(lab: MountedLab) -> None:
    source = lab.make_stub("stub", CONTENT)
    copy = lab.view / "copy"
    assert copied(source, copy) == len(CONTENT)
    stub, other = lab.stub("stub"), lab.stub("copy")
    assert stub is not None and other is not None
    assert (stub.recipe, stub.digest, stub.covered) == (other.recipe, other.digest, other.covered)
    assert os.stat(lab.data / "copy").st_blocks == 0
    assert copy.read_bytes() == CONTENT
    with open(copy, "r+b") as file:
        file.write(b"mine")
    assert (source.read_bytes(), copy.read_bytes()) == (CONTENT, b"mine" + CONTENT[4:])
    source.unlink()
    lab.collect(all_garbage=True)
    lab.compact()
    assert copy.read_bytes() == b"mine" + CONTENT[4:]
    lab.unmount()
    lab.verify_clean()


def test_copies_by_cp_are_the_same_file(lab: MountedLab) -> None:
    lab.make_stub("stub", CONTENT)
    for sparse in ("auto", "never"):
        copy = lab.view / sparse
        subprocess.run(["cp", "-p", f"--sparse={sparse}", lab.view / "stub", copy], check=True)
        assert copy.read_bytes() == CONTENT
        assert copy.stat().st_mtime_ns == (lab.view / "stub").stat().st_mtime_ns
    # By itself cp reads a file that takes few blocks, to find zeros in it.
    assert lab.stub("never") is not None


@pytest.mark.parametrize("start", [0, BLOCK, 777])
@pytest.mark.parametrize("is_written", [True, False])
def test_every_other_copy_has_the_right_bytes(
    lab: MountedLab, start: int, is_written: bool
) -> None:
    source = lab.make_stub("stub", CONTENT)
    content = bytearray(CONTENT)
    if is_written:
        with open(source, "r+b") as file:
            file.write(b"mine")
        content[:4] = b"mine"
    target = lab.view / "copy"
    target.write_bytes(CONTENT[::-1])
    expected = bytearray(CONTENT[::-1])
    with open(source, "rb") as one, open(target, "r+b") as other:
        length = 50_000
        done = 0
        while done < length:
            done += os.copy_file_range(
                one.fileno(), other.fileno(), length - done, start + done, 5000 + done
            )
    expected[5000:55_000] = content[start : start + length]
    assert target.read_bytes() == expected
    assert lab.stub("copy") is None


@pytest.mark.parametrize(
    "domain, uid, shares",
    [("owner", 1001, True), ("owner", 0, False), ("folder", 1001, False), ("volume", 0, False)],
)
def test_a_copy_shares_a_recipe_within_its_domain_alone(
    lab: MountedLab, domain: str, uid: int, shares: bool
) -> None:
    lab.set_policy('min_age = "0s"\nmin_size = "1"\ndedup_domain = "owner"\n')
    (lab.view / "stub").write_bytes(CONTENT)
    os.chown(lab.view / "stub", 1001, -1)
    lab.optimize()
    lab.set_policy(f'min_age = "0s"\ndedup_domain = "{domain}"\n')
    copy = lab.view / "copy"
    copy.touch()
    os.chown(copy, uid, -1)
    assert copied(lab.view / "stub", copy) == len(CONTENT)
    assert (lab.stub("copy") is not None) == shares
    assert copy.read_bytes() == CONTENT


def test_plain_files_are_copied_below(lab: MountedLab) -> None:
    """Without their bytes passing through the mount."""
    (lab.view / "plain").write_bytes(CONTENT)
    (lab.view / "copy").write_bytes(b"begin")
    before = int(str(lab.status()["requests"]))
    with open(lab.view / "plain", "rb") as one, open(lab.view / "copy", "r+b") as other:
        count = os.copy_file_range(one.fileno(), other.fileno(), 1 << 20, 1000, 5)
    assert count == len(CONTENT) - 1000
    assert int(str(lab.status()["requests"])) - before < 12
    assert (lab.view / "copy").read_bytes() == b"begin" + CONTENT[1000:]


def test_a_copy_shares_nothing_while_garbage_is_collected(lab: MountedLab) -> None:
    """The walk may be past the copy, and the source may be gone before the walk comes to it."""
    source = lab.make_stub("stub", CONTENT)
    with lab.client() as client:
        client.call("mark_begin")
        assert copied(source, lab.view / "copy") == len(CONTENT)
    assert lab.stub("copy") is None
    assert (lab.view / "copy").read_bytes() == CONTENT


# --- files without a name ---------------------------------------------------------------------


def test_a_file_is_made_without_a_name_and_gets_one(lab: MountedLab) -> None:
    (lab.view / "folder").mkdir(mode=0o777)
    os.chmod(lab.view / "folder", 0o2777)
    os.chown(lab.view / "folder", -1, TEAM)

    def make() -> None:
        folder = os.open(lab.view / "folder", os.O_PATH)
        with opened(os.open(lab.view / "folder", os.O_TMPFILE | os.O_RDWR, 0o640)) as fd:
            os.write(fd, CONTENT)
            assert os.listdir(lab.view / "folder") == []
            assert os.fstat(fd).st_nlink == 0
            os.link(f"/proc/self/fd/{fd}", "named", dst_dir_fd=folder, follow_symlinks=True)
            assert os.pread(fd, len(CONTENT), 0) == CONTENT

    os.umask(0o022)
    as_user(ALICE, make)
    status = os.stat(lab.data / "folder/named")
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (ALICE, TEAM, 0o640)
    assert (lab.view / "folder/named").read_bytes() == CONTENT


def test_a_file_without_a_name_goes_with_its_last_user(lab: MountedLab) -> None:
    def nameless() -> list[str]:
        """What the mount process has open that has no name."""
        directory = f"/proc/{lab.pid}/fd"
        paths = []
        for fd in os.listdir(directory):
            with suppress(FileNotFoundError):  # closed meanwhile
                paths.append(os.readlink(os.path.join(directory, fd)))
        return [path for path in paths if path.startswith("/data/") and path.endswith("(deleted)")]

    with opened(os.open(lab.view, os.O_PATH)) as view:
        with opened(os.open(lab.view, os.O_TMPFILE | os.O_RDWR | os.O_EXCL)) as fd:
            os.write(fd, CONTENT)
            refused(
                lambda: os.link(
                    f"/proc/self/fd/{fd}", "named", dst_dir_fd=view, follow_symlinks=True
                ),
                errno.ENOENT,
            )
            assert nameless()
        eventually(lambda: not nameless(), "it is gone")
    assert os.listdir(lab.view) == []


# --- attributes -------------------------------------------------------------------------------


def born(path: Path) -> str:
    command: list[str | Path] = ["stat", "-c", "%W %w", path]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_time_of_birth_is_that_below(lab: MountedLab) -> None:
    lab.make_stub("stub", CONTENT)
    (lab.view / "plain").touch()
    (lab.view / "folder").mkdir()
    for name in ("stub", "plain", "folder", "."):
        assert born(lab.view / name) == born(lab.data / name) != "0 -\n"


def flags(path: Path) -> str:
    listed: list[str | Path] = ["lsattr", "-d", path]
    return subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()[0]


@pytest.mark.parametrize("is_stub", [False, True])
def test_flags_are_shown_and_set(lab: MountedLab, is_stub: bool) -> None:
    path = lab.view / "f"
    path.write_bytes(CONTENT)
    if is_stub:
        lab.make_stub("f", CONTENT)
    subprocess.run(["chattr", "+dA", path], check=True)
    assert flags(path) == flags(lab.data / "f")
    assert {"d", "A"} <= set(flags(path))
    subprocess.run(["chattr", "-d", path], check=True)
    assert "d" not in flags(lab.data / "f")
    assert flags(lab.view) == flags(lab.data)
    as_user(ALICE, lambda: refused(lambda: set_flag(path, 0x40), errno.EPERM))
    refused(lambda: set_flag(path, 0x4000), errno.EOPNOTSUPP)
    assert path.read_bytes() == CONTENT


def set_flag(path: Path, flag: int) -> None:
    with opened(os.open(path, os.O_RDONLY)) as fd:
        fcntl.ioctl(fd, 0x4008_6602, struct.pack("<Q", flag))


def refused(action: Callable[[], object], number: int) -> None:
    with pytest.raises(OSError) as refusal:
        action()
    assert refusal.value.errno == number


@pytest.mark.parametrize("flag", ["i", "a"])
def test_a_protected_file_is_left_alone_by_users_and_jobs(lab: MountedLab, flag: str) -> None:
    path = lab.view / "f"
    path.write_bytes(CONTENT)
    with opened(os.open(path, os.O_RDWR)) as fd:
        subprocess.run(["chattr", f"+{flag}", path], check=True)
        try:
            refused(lambda: os.pwrite(fd, b"x", 0), errno.EPERM)
            refused(lambda: path.open("r+b", buffering=0).write(b"x"), errno.EPERM)
            refused(lambda: path.open("wb"), errno.EPERM)
            refused(path.unlink, errno.EPERM)
            refused(lambda: os.chmod(path, 0o777), errno.EPERM)
            refused(lambda: os.truncate(path, 1), errno.EPERM)
            report = lab.optimize()
            assert report.files_optimized == 0 and lab.stub("f") is None
        finally:
            subprocess.run(["chattr", f"-{flag}", path], check=True)
        os.pwrite(fd, b"x", 0)
    assert path.read_bytes() == b"x" + CONTENT[1:]
    assert lab.optimize().files_optimized == 1


def test_a_rename_leaves_what_an_overlay_takes_for_a_removed_name(lab: MountedLab) -> None:
    for name in ("old", "new"):
        (lab.view / name).write_text(name)
    rename_with(lab.view / "old", lab.view / "new", 4)
    for directory in (lab.view, lab.data):
        status = (directory / "old").lstat()
        assert stat.S_ISCHR(status.st_mode) and status.st_rdev == 0
    assert (lab.view / "new").read_text() == "old"


def test_an_acl_leaves_set_group_id_as_it_does_below(lab: MountedLab, tmp_path: Path) -> None:
    """Of a file whose owner is in its group, and of one whose owner is not."""
    below = tmp_path / "below"
    below.mkdir()
    os.chmod(tmp_path, 0o755)
    value = acl((USER_OBJ, 7, -1), (USER, 4, 0), (GROUP_OBJ, 5, -1), (MASK, 5, -1), (OTHER, 0, -1))
    for groups in ([], [TEAM]):
        modes = []
        for directory in (below, lab.view):
            path = directory / f"f{len(groups)}"
            path.write_bytes(CONTENT)
            os.chown(path, ALICE, TEAM)
            os.chmod(path, 0o2750)
            as_user(
                ALICE,
                lambda path=path: os.setxattr(path, "system.posix_acl_access", value),  # type: ignore[misc]
                groups=groups,
            )
            modes.append(stat.S_IMODE(path.stat().st_mode))
        assert modes[0] == modes[1], groups
