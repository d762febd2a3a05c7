"""Plain files by the native loop: as on the file system below, and with few requests.

The statements of ``test_namespace.py`` hold for it, too; those about stubs and volumes are not of
this file.
"""

import errno
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuse_stub import test_namespace as names
from tests.fuse_stub.test_namespace import code
from tests.support.lab import noise
from tests.support.mounts import ALICE, TEAM, as_user, rename_with
from tests.support.native_tree import NativeTree, native_tree
from tests.support.service import eventually
from tests.support.ways import has_ring

pytestmark = pytest.mark.root

OF_VOLUMES = {
    "test_another_file_system_over_a_directory_below_hides_nothing",
    "test_the_reserved_attribute_is_out_of_reach",
    "test_the_store_is_not_in_the_view",
}

for _name, _test in vars(names).items():
    if _name.startswith("test_") and _name not in OF_VOLUMES:
        globals()[_name] = _test

needs_ring = pytest.mark.skipif(not has_ring(), reason="no FUSE over io_uring here")


@pytest.fixture(
    scope="module", params=["device", pytest.param("ring", marks=[needs_ring, pytest.mark.slow])]
)
def lab(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NativeTree]:
    with native_tree(tmp_path_factory.mktemp("tree"), ring=request.param == "ring") as tree:
        yield tree


@pytest.fixture
def here(lab: NativeTree, request: pytest.FixtureRequest) -> Path:
    """A directory of its own for the test, which anybody may use."""
    name: str = request.node.name
    path = lab.view / name.replace("/", "_")[:200]
    path.mkdir()
    os.chmod(path, 0o777)
    return path


# --- requests that are not made ---------------------------------------------------------------


def test_what_is_cached_is_opened_and_read_without_a_request(lab: NativeTree, here: Path) -> None:
    (here / "f").write_bytes(b"content")
    for _ in range(2):
        (here / "f").read_bytes()
    lab.requests()
    for _ in range(10):
        # As most programs do. Python's open() asks each file whether it is a terminal.
        fd = os.open(here / "f", os.O_RDONLY)
        assert os.read(fd, 100) == b"content"
        os.close(fd)
    assert lab.requests() == {}


def test_what_was_written_is_read_without_a_request(lab: NativeTree, here: Path) -> None:
    content = noise(1 << 20)
    fd = os.open(here / "f", os.O_CREAT | os.O_RDWR)
    try:
        for start in range(0, len(content), 1 << 16):
            os.pwrite(fd, content[start : start + (1 << 16)], start)
            os.fstat(fd)
        lab.requests()
        assert os.pread(fd, len(content), 0) == content
        assert lab.requests()["READ"] == 0
    finally:
        os.close(fd)


def test_a_directory_is_listed_again_without_a_request(lab: NativeTree, here: Path) -> None:
    for n in range(10):
        (here / str(n)).touch()
    for _ in range(2):
        subprocess.run(["ls", "-l", here], check=True, capture_output=True)
    lab.requests()
    subprocess.run(["ls", "-l", here], check=True, capture_output=True)
    assert lab.requests().total() <= 3  # of the directory, and none of its files


def test_an_open_that_truncates_truncates(here: Path) -> None:
    path = here / "f"
    path.write_bytes(b"long content")
    for content in (b"new", b"", b"longer than before"):
        path.write_bytes(content)
        assert path.read_bytes() == content


# --- what is open is not known ----------------------------------------------------------------


@pytest.mark.parametrize("how", ["unlink", "replace"])
def test_a_file_without_a_name_lives_as_long_as_somebody_has_it(
    lab: NativeTree, here: Path, how: str
) -> None:
    path = here / "f"
    content = noise(1 << 20)
    path.write_bytes(content)
    with open(path, "r+b", buffering=0) as file, mmap.mmap(file.fileno(), 0) as mapping:
        if how == "unlink":
            path.unlink()
        else:
            (here / "g").write_bytes(b"other")
            (here / "g").rename(path)
        # So that nothing comes from the cache of the kernel.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert file.read() == content
        file.seek(0)
        file.write(b"changed")
        os.fsync(file.fileno())
        assert mapping[:7] == b"changed" and mapping[7:] == content[7:]
        assert os.fstat(file.fileno()).st_nlink == 0


def test_a_program_runs_on_after_it_is_removed(here: Path) -> None:
    program = here / "sleep"
    program.write_bytes(Path("/bin/sleep").read_bytes())
    program.chmod(0o755)
    with subprocess.Popen([program, "0.3"]) as running:
        program.unlink()
        assert running.wait() == 0


def test_descriptors_are_bounded_however_many_files_are_open(tmp_path: Path) -> None:
    with native_tree(tmp_path, ring=False, descriptors_max=64) as tree:
        opened: list[int] = []
        for n in range(400):
            path = tree.view / str(n)
            path.write_bytes(b"%d" % n)
            opened.append(os.open(path, os.O_RDWR))
        assert tree.descriptors() < 200
        for n, fd in enumerate(opened):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            assert os.read(fd, 100) == b"%d" % n
            os.write(fd, b"+")
            os.close(fd)
        assert tree.descriptors() < 200
        assert (tree.data / "7").read_bytes() == b"7+"


def test_what_the_kernel_forgets_is_forgotten(tmp_path: Path) -> None:
    with native_tree(tmp_path, ring=False) as tree:
        for n in range(50):
            (tree.view / str(n)).write_bytes(b"x")
        assert tree.inodes_known() == 50
        before = tree.descriptors()
        for n in range(50):
            (tree.view / str(n)).unlink()
        tree.requests()
        # The kernel tells of the last ones behind our back.
        eventually(lambda: tree.inodes_known() <= 5, "the loop forgets them")
        eventually(lambda: tree.descriptors() <= before - 40, "their descriptors are closed")


# --- what a mount by libfuse lacks ------------------------------------------------------------


def test_a_file_without_a_name_can_get_one(here: Path) -> None:
    fd = os.open(here, os.O_TMPFILE | os.O_RDWR, 0o640)
    os.write(fd, b"content")
    assert list(here.iterdir()) == []
    link = f"/proc/self/fd/{fd}"
    # Only with a directory Python follows the link.
    os.link(link, here / "f", src_dir_fd=fd, follow_symlinks=True)
    os.close(fd)
    assert (here / "f").read_bytes() == b"content"


def test_holes_are_made_and_found(here: Path) -> None:
    path = here / "f"
    path.write_bytes(noise(64 << 10))
    with open(path, "r+b") as file:
        os.posix_fallocate(file.fileno(), 0, 128 << 10)
        assert path.stat().st_size == 128 << 10
        subprocess.run(
            ["fallocate", "--punch-hole", "--offset", "8K", "--length", "8K", path], check=True
        )
        assert os.lseek(file.fileno(), 0, os.SEEK_HOLE) == 8 << 10
        assert os.lseek(file.fileno(), 8 << 10, os.SEEK_DATA) == 16 << 10
        assert path.read_bytes()[8 << 10 : 16 << 10] == bytes(8 << 10)


def test_a_copy_goes_by_one_request(lab: NativeTree, here: Path) -> None:
    content = noise(1 << 20)
    (here / "f").write_bytes(content)
    with open(here / "f", "rb") as source, open(here / "g", "wb") as target:
        lab.requests()
        assert os.copy_file_range(source.fileno(), target.fileno(), len(content)) == len(content)
        assert lab.requests()["WRITE"] == 0
    assert (here / "g").read_bytes() == content


def test_the_time_of_birth_is_that_below(lab: NativeTree, here: Path) -> None:
    (here / "f").touch()

    def birth(path: Path) -> bytes:
        return subprocess.run(["stat", "-c%w", path], check=True, capture_output=True).stdout

    assert birth(here / "f") == birth(lab.data / here.name / "f") != b"-\n"


def test_flags_of_an_inode_are_those_below(lab: NativeTree, here: Path) -> None:
    (here / "f").touch()

    def flags(path: Path) -> bytes:
        return subprocess.run(["lsattr", path], check=True, capture_output=True).stdout.split()[0]

    subprocess.run(["chattr", "+A", lab.data / here.name / "f"], check=True)
    assert flags(here / "f") == flags(lab.data / here.name / "f")
    assert b"A" in flags(here / "f")


def test_a_whiteout_takes_the_place_of_a_name(here: Path) -> None:
    (here / "f").write_bytes(b"content")
    rename_with(here / "f", here / "g", 4)
    assert (here / "g").read_bytes() == b"content"
    assert (here / "f").stat().st_rdev == 0


def test_an_acl_set_by_an_outsider_of_the_group_takes_the_group_bit(here: Path) -> None:
    path = here / "f"
    path.touch()
    os.chown(path, ALICE, TEAM)
    os.chmod(path, 0o2770)

    def alice() -> None:
        subprocess.run(["setfacl", "-m", "u:1:r", path], check=True)

    as_user(ALICE, alice)
    assert path.stat().st_mode & 0o7000 == 0


# --- odd requests -----------------------------------------------------------------------------


def test_a_removed_directory_takes_no_new_names(here: Path) -> None:
    (here / "d").mkdir()
    fd = os.open(here / "d", os.O_RDONLY)
    try:
        (here / "d").rmdir()
        assert (
            code(lambda: os.open("f", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=fd)) == errno.ENOENT
        )
    finally:
        os.close(fd)


def test_many_clients_at_once_see_their_own_changes(here: Path) -> None:
    script = (
        "import os, sys\n"
        "base = sys.argv[1]\n"
        "os.mkdir(base)\n"
        "for n in range(200):\n"
        "    path = f'{base}/{n}'\n"
        "    with open(path, 'wb') as file: file.write(b'x' * n)\n"
        "    assert os.stat(path).st_size == n\n"
        "    os.rename(path, path + '.new')\n"
        "    assert not os.path.exists(path)\n"
        "    if n % 2: os.unlink(path + '.new')\n"
        "assert len(os.listdir(base)) == 100\n"
    )
    clients = [subprocess.Popen([sys.executable, "-c", script, here / str(n)]) for n in range(6)]
    assert [client.wait() for client in clients] == [0] * 6
