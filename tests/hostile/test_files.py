"""Whatever lies in a tree: what can be optimized is, what cannot is left as it is, and said."""

import array
import errno
import fcntl
import os
import random
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dedupd_core.errors import UsageError
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import opened
from dedupd_core.system.paths import open_beneath
from dedupd_core.volume.enabling.enable import enable
from dedupd_core.volume.volume import Volume
from jobs.optimize.optimize_job import OptimizeReport
from tests.support import crash
from tests.support.disabling import disable
from tests.support.lab import lab_in, let_others_pass

pytestmark = pytest.mark.root

KIB = 1 << 10
NOBODY = 65534
FS_IOC_GETFLAGS, FS_IOC_SETFLAGS = 0x80086601, 0x40086602
FS_IMMUTABLE_FL, FS_APPEND_FL = 0x10, 0x20


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with (
        crash.tmpfs(tmp_path_factory.mktemp("hostile")) as memory,
        crash.ext4(memory, size_mb=256, mkfs=("-b", "4096")) as point,
    ):
        yield point


@pytest.fixture
def root(fast: Path) -> Iterator[Path]:
    """An empty directory, to be filled and enabled."""
    path = fast / "root"
    crash.remove(path)
    path.mkdir()
    yield path


def content(seed: int = 1, size: int = 50 * KIB) -> bytes:
    return random.Random(seed).randbytes(size)


def optimize(root: Path) -> OptimizeReport:
    crash.enable_volume(root)
    return crash.optimize_volume(root)


def round_trip(root: Path, before: dict[str, crash.Seen]) -> None:
    """Everything reads as before, verifies, and comes back."""
    assert crash.see(root) == before
    assert crash.verify_volume(root).findings == []
    assert crash.unoptimize_volume(root).messages == []
    crash.disable_volume(root)
    assert crash.see_plain(root) == before


@pytest.mark.parametrize(
    "name",
    [b"\xff\xfe\x80 not UTF-8", b"n" * 255, b"new\nline", b"-rf", b"\xe2\x80\xae rtl", b" ", b"\\"],
)
def test_any_name_is_a_name(root: Path, name: bytes) -> None:
    directory = os.fsencode(root) + b"/" + name
    os.mkdir(directory)
    for other in (name, b"x" + name[:254]):
        Path(os.fsdecode(directory + b"/" + other)).write_bytes(content())
    before = crash.see_plain(root)
    assert optimize(root).files_optimized == 2
    round_trip(root, before)


def test_a_tree_deeper_than_any_path_is_wide(root: Path) -> None:
    """300 levels of 60 bytes: four times what a system call takes as a path."""
    names = [b"%03d-" % level + b"d" * 56 for level in range(300)]
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    for name in names:
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = below
    with opened(os.open(b"file", os.O_WRONLY | os.O_CREAT, dir_fd=fd)) as file:
        os.write(file, content())
    os.close(fd)

    assert optimize(root).files_optimized == 1
    path = b"/".join([*names, b"file"])
    assert len(path) > os.pathconf("/", "PC_PATH_MAX")
    with Volume.open(str(root)) as volume:
        assert crash.read_through_store(volume, path) == content()
    assert crash.verify_volume(root).findings == []
    assert crash.unoptimize_volume(root).files_restored == 1
    crash.disable_volume(root)
    with (
        opened(os.open(root, os.O_RDONLY)) as top,
        opened(open_beneath(top, path, os.O_RDONLY)) as file,
    ):
        assert os.read(file, 1 << 20) == content()


def test_what_is_not_a_regular_file_is_left_alone(root: Path) -> None:
    os.mkfifo(root / "fifo")
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(root / "socket"))
    os.mknod(root / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mknod(root / "disk", stat.S_IFBLK | 0o600, os.makedev(7, 250))
    os.symlink("/etc/passwd", root / "link")
    os.symlink("nowhere", root / "dangling")
    os.symlink(".", root / "circle")
    (root / "file").write_bytes(content())
    before = crash.see_plain(root)
    report = optimize(root)
    assert (report.files_optimized, report.messages) == (1, [])
    round_trip(root, before)
    server.close()


def test_hard_links_stay_one_file(root: Path) -> None:
    (root / "a").mkdir()
    (root / "a/one").write_bytes(content())
    os.link(root / "a/one", root / "two")
    before = crash.see_plain(root)
    assert optimize(root).files_optimized == 1
    assert (root / ".dedupd/data/two").stat().st_nlink == 2
    round_trip(root, before)


def test_a_sparse_file_of_a_terabyte_takes_neither_time_nor_space(root: Path) -> None:
    size = 1 << 40
    with open(root / "huge", "wb") as file:
        file.write(content(1))
        file.seek(size // 3 * 2 + 12345)
        file.write(content(2))
        file.truncate(size)
    assert optimize(root).files_optimized == 1
    with Volume.open(str(root)) as volume:
        from dedupd_core.stub.transition import local_ranges

        with opened(open_beneath(volume.data_fd, b"huge", os.O_RDONLY)) as fd:
            stub = volume.space.read(fd, "huge")
            assert stub is not None
            assert os.fstat(fd).st_size == stub.covered == size
            store = volume.content(stub, "huge")
            local = local_ranges(fd, size)
            for at, expected in [
                (0, content(1)),
                (size // 3, bytes(50 * KIB)),
                (size // 3 * 2 + 12345, content(2)),
                (size - 50 * KIB, bytes(50 * KIB)),
            ]:
                end = at + len(expected)
                assert store.read_file(fd, local, stub.covered, at, end) == expected
    assert crash.verify_volume(root).findings == []
    assert crash.unoptimize_volume(root).messages == []
    status = (root / ".dedupd/data/huge").stat()
    assert status.st_size == size
    assert status.st_blocks * 512 < 1 << 20


@contextmanager
def locked_by(path: Path, flag: int) -> Iterator[None]:
    """Hold a file or directory immutable or append-only, which nobody can move meanwhile."""
    flags = array.array("L", [0])
    with opened(os.open(path, os.O_RDONLY)) as fd:
        fcntl.ioctl(fd, FS_IOC_GETFLAGS, flags)
        fcntl.ioctl(fd, FS_IOC_SETFLAGS, array.array("L", [flags[0] | flag]))
    try:
        yield
    finally:
        with opened(os.open(path, os.O_RDONLY)) as fd:
            fcntl.ioctl(fd, FS_IOC_SETFLAGS, flags)


@pytest.mark.parametrize("flag", [FS_IMMUTABLE_FL, FS_APPEND_FL])
def test_files_that_cannot_be_changed_are_left_plain(root: Path, flag: int) -> None:
    (root / "locked").write_bytes(content(1))
    (root / "free").write_bytes(content(2))
    before = crash.see_plain(root)
    crash.enable_volume(root)
    with locked_by(root / ".dedupd/data/locked", flag):
        report = crash.optimize_volume(root)
        assert report.files_optimized == 1
        assert report.files_left == {"immutable or append-only": 1}
        assert report.messages == []
    round_trip(root, before)


def test_a_directory_that_cannot_be_changed_keeps_its_files(root: Path) -> None:
    (root / "dir").mkdir()
    (root / "dir/file").write_bytes(content())
    before = crash.see_plain(root)
    crash.enable_volume(root)
    with locked_by(root / ".dedupd/data/dir", FS_IMMUTABLE_FL):
        assert crash.optimize_volume(root).files_optimized == 1
        assert crash.unoptimize_volume(root).messages == []
    crash.disable_volume(root)
    assert crash.see_plain(root) == before


def test_an_immutable_entry_at_the_top_stops_enabling_and_says_which(root: Path) -> None:
    (root / "a").write_bytes(content(1))
    (root / "b").write_bytes(content(2))
    before = crash.see_plain(root)
    with locked_by(root / "b", FS_IMMUTABLE_FL):
        refused = crash.run_cli("enable", root)
        assert refused.returncode == 2
        assert "cannot be moved: b; remove the flags (`chattr -i -a`)" in refused.stderr
        assert crash.see(root) == before
    crash.enable_volume(root)
    assert crash.see(root) == before


YEAR_2400_NS = 13_569_465_600 * 10**9 + 7
"""More than 64 bits of nanoseconds hold, and less than file systems do."""
LONG_AGO_NS = 10**18


def times_of(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_atime_ns, status.st_mtime_ns


def test_an_access_in_the_far_future_keeps_no_file_from_becoming_a_stub(root: Path) -> None:
    times = (YEAR_2400_NS, LONG_AGO_NS)
    with lab_in(root) as lab:
        path = lab.put("f", content())
        os.utime(path, ns=times)
        assert times_of(path) == times
        assert lab.optimize().files_optimized == 1
        assert lab.stub("f") is not None and times_of(path) == times
        with open(lab.let_write("f"), "r+b") as file:
            file.write(content(2, 4 * KIB))
        os.utime(path, ns=times)
        assert lab.optimize().files_optimized == 1
        assert times_of(path) == times and path.stat().st_blocks == 0
        lab.verify_clean()
        assert lab.read("f") == content(2, 4 * KIB) + content()[4 * KIB :]


def test_a_change_in_the_far_future_keeps_no_stub_from_being_made_plain(root: Path) -> None:
    times = (LONG_AGO_NS, YEAR_2400_NS)
    with lab_in(root) as lab:
        path = lab.put("f", content())
        lab.optimize()
        assert lab.stub("f") is not None
        os.utime(path, ns=times)
        lab.unoptimize()
        assert lab.stub("f") is None
        assert times_of(path) == times
        assert path.read_bytes() == content()


def test_attributes_and_acls_stay(root: Path) -> None:
    path = root / "file"
    path.write_bytes(content())
    os.setxattr(path, "user.large", b"v" * 2000)
    # user::rw-, user:1000:r--, group::r--, mask::r--, other::---
    acl = bytes.fromhex(
        "02000000010006 00ffffffff 02000400e8030000 04000400ffffffff 10000400ffffffff"
        "20000000ffffffff".replace(" ", "")
    )
    os.setxattr(path, "system.posix_acl_access", acl)
    before = crash.see_plain(root)
    assert optimize(root).files_optimized == 1
    round_trip(root, before)


def test_a_file_whose_attributes_leave_no_room_stays_plain(root: Path) -> None:
    path = root / "file"
    path.write_bytes(content())
    number = 0
    try:
        for number in range(100):
            os.setxattr(path, f"user.filler{number}", b"v" * 60)
    except OSError as error:
        assert error.errno == errno.ENOSPC
    before = crash.see_plain(root)
    report = optimize(root)
    assert report.files_optimized == 0
    assert sum(report.files_left.values()) == 1 and not report.errors
    assert crash.see(root) == before
    assert crash.verify_volume(root).findings == []


def test_a_file_system_with_stale_blocks_after_power_cuts_is_refused(
    loop_fs: Callable[..., Path],
) -> None:
    root = loop_fs("ext4", size="64M", options="data=writeback") / "root"
    root.mkdir()
    refused = crash.run_cli("enable", root)
    assert refused.returncode == 2
    assert "data=writeback" in refused.stderr


# --- an unprivileged volume: whoever enables it owns all of it --------------------------------


def as_nobody(action: Callable[[], None]) -> None:
    """Run something as a user without any privilege; fails where it fails."""

    def run() -> None:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        action()

    assert crash.in_fork(run) == 0


@pytest.fixture
def own(root: Path) -> Path:
    """A directory of nobody's, with two files."""
    for number, name in enumerate(("one", "two"), start=1):
        (root / name).write_bytes(content(number))
    for path in (root / "one", root / "two", root):
        os.chown(path, NOBODY, NOBODY)
    let_others_pass(root.parent)
    return root


def enable_own(root: Path) -> None:
    values: dict[str, str | int] = {"min_age": "0s", "min_file_saving": 0}
    parameters = enable(str(root), policy_values=values, force=True, disk=Disk())
    assert parameters.attribute == "user.dedupd"


def test_a_volume_needs_no_root(own: Path) -> None:
    before = crash.see_plain(own)

    def live() -> None:
        enable_own(own)
        assert crash.optimize_volume(own).files_optimized == 2
        assert crash.see(own) == before
        assert crash.verify_volume(own).findings == []
        crash.unoptimize_volume(own)
        disable(str(own), disk=Disk())

    as_nobody(live)
    assert crash.see_plain(own) == before


def test_a_file_without_read_permission_is_named_and_left(own: Path) -> None:
    def live() -> None:
        (own / "one").chmod(0)
        enable_own(own)
        report = crash.optimize_volume(own)
        assert report.files_optimized == 1
        assert report.files_left == {"cannot be read": 1}
        assert report.messages == ["one: cannot be opened: Permission denied"]

    as_nobody(live)
    assert (own / ".dedupd/data/one").read_bytes() == content(1)


def test_a_directory_without_read_permission_is_named(own: Path) -> None:
    def live() -> None:
        (own / "dir/closed").mkdir(parents=True)
        (own / "dir/closed/file").write_bytes(content(3))
        (own / "dir/closed").chmod(0)
        enable_own(own)
        report = crash.optimize_volume(own)
        assert report.files_optimized == 2
        assert report.messages == ["dir/closed: Permission denied"]
        (own / ".dedupd/data/dir/closed").chmod(0o700)

    as_nobody(live)


def test_an_entry_that_cannot_be_moved_stops_enabling_and_nothing_has_moved(own: Path) -> None:
    before, top = crash.see_plain(own), os.listdir(own)

    def live() -> None:
        (own / "a").write_bytes(b"")
        (own / "b").mkdir(mode=0)
        with pytest.raises(UsageError, match="b cannot be moved"):
            enable_own(own)
        assert sorted(os.listdir(own)) == sorted([*top, "a", "b"])
        (own / "b").rmdir()
        (own / "a").unlink()

    as_nobody(live)
    assert crash.see_plain(own) == before


@pytest.mark.parametrize("value", [b"", b"x", bytes(48), b"\x01" * 48, b"y" * 3000])
def test_a_forged_attribute_is_an_error_with_a_name_and_a_way_out(own: Path, value: bytes) -> None:
    def live() -> None:
        os.setxattr(own / "one", "user.dedupd", value)
        enable_own(own)
        report = crash.optimize_volume(own)
        assert report.files_optimized == 1
        assert report.messages[0].startswith("one: ")
        findings = crash.verify_volume(own).findings
        assert [(f.invariant, f.where) for f in findings] == [("stub-attribute", "one")]
        stopped = crash.unoptimize_volume(own)
        assert stopped.files_restored == 1
        assert stopped.messages[0].startswith("one: the stub attribute")
        assert "remove its attribute" in stopped.messages[0]
        os.removexattr(own / ".dedupd/data/one", "user.dedupd")
        assert crash.unoptimize_volume(own).messages == []
        disable(str(own), disk=Disk())

    as_nobody(live)
    assert (own / "one").read_bytes() == content(1)


def test_users_of_a_roots_volume_cannot_set_the_attribute(root: Path) -> None:
    (root / "file").write_bytes(content())
    os.chown(root / "file", NOBODY, NOBODY)
    (root / "file").chmod(0o666)
    root.chmod(0o755)

    def forge() -> None:
        with pytest.raises(PermissionError):
            os.setxattr(root / "file", "trusted.dedupd", b"forged")

    as_nobody(forge)
