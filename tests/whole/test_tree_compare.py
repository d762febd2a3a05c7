"""The comparison that other tests rely on finds every kind of difference."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.support import dataset, odd_files
from tests.support.tree_compare import HOLE_READ_BYTES_MAX, TreesDiffer, assert_same, differences


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("original")
    dataset.build(os.fsencode(root), parts=["links", "names", "metadata", "special", "sparse"])
    return root


def copy(original: Path, to: Path) -> Path:
    subprocess.run(["cp", "-a", "--sparse=always", f"{original}/.", str(to)], check=True)
    shutil.copystat(original, to)
    return to


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Two small equal trees."""
    for side in ("reference", "other"):
        root = tmp_path / side
        (root / "directory").mkdir(parents=True)
        (root / "file").write_bytes(b"content" * 1000)
        (root / "second").write_bytes(b"")
        (root / "directory/third").write_bytes(b"third")
        (root / "link").symlink_to("file")
        os.mkfifo(root / "fifo")
        for path in (*root.rglob("*"), root):
            os.utime(path, ns=(1, 1_500_000_000_123_456_789), follow_symlinks=False)
    return tmp_path / "reference", tmp_path / "other"


def found(reference: Path, other: Path) -> set[tuple[bytes, str]]:
    return {(item.path, item.what) for item in differences(reference, other)}


def keeping_times(path: Path, change: Callable[[Path], object]) -> None:
    """Make a change that shows in nothing but itself."""
    paths = [path, path.parent]
    before = {one: os.lstat(one) for one in paths if os.path.lexists(one)}
    change(path)
    for one, status in before.items():
        if os.path.lexists(one):
            times = (status.st_atime_ns, status.st_mtime_ns)
            os.utime(one, ns=times, follow_symlinks=False)


@pytest.mark.root
def test_a_copy_of_everything_odd_is_the_same(original: Path, tmp_path: Path) -> None:
    assert_same(original, copy(original, tmp_path / "copy"))


def test_a_tree_is_the_same_as_itself_beyond_the_longest_path(tmp_path: Path) -> None:
    odd_files.deeper_than_a_path(os.fsencode(tmp_path))
    assert_same(tmp_path, tmp_path)


def test_a_difference_beyond_the_longest_path_is_found(tmp_path: Path) -> None:
    for side in sides(tmp_path):
        side.mkdir()
        odd_files.deeper_than_a_path(os.fsencode(side))
    fd = os.open(tmp_path / "other", os.O_RDONLY)
    while entries := [name for name in os.listdir(fd) if name != "file"]:
        below = os.open(entries[0], os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.truncate(f"/proc/self/fd/{fd}/file", 99_999)
    os.close(fd)
    assert any(what == "size" for _, what in found(*sides(tmp_path)))


def sides(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "reference", tmp_path / "other"


def write_at(path: Path, offset: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


def retarget(path: Path, target: str) -> None:
    path.unlink()
    path.symlink_to(target)


def swap_for_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def swap_for_file(path: Path) -> None:
    path.unlink()
    path.write_bytes(b"")


CHANGES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "a byte": ("file", lambda path: write_at(path, 6999, b"?"), "byte at 6999"),
    "a longer file": ("file", lambda path: os.truncate(path, 7001), "size"),
    "a shorter file": ("file", lambda path: os.truncate(path, 6999), "size"),
    "a file where there was none": ("new", lambda path: path.write_bytes(b""), "exists"),
    "a file that is gone": ("second", lambda path: path.unlink(), "exists"),
    "a mode": ("file", lambda path: path.chmod(0o4644), "mode"),
    "a mode of a directory": ("directory", lambda path: path.chmod(0o1777), "mode"),
    "a mode of a FIFO": ("fifo", lambda path: path.chmod(0o600), "mode"),
    "an attribute": ("file", lambda path: os.setxattr(path, "user.a", b"1"), "attribute user.a"),
    "an attribute of a directory": (
        "directory",
        lambda path: os.setxattr(path, "user.a", b""),
        "attribute user.a",
    ),
    "an access list": (
        "file",
        lambda path: os.setxattr(path, "system.posix_acl_access", odd_files.access_list(33, 4)),
        "attribute system.posix_acl_access",
    ),
    "a default access list": (
        "directory",
        lambda path: os.setxattr(path, "system.posix_acl_default", odd_files.access_list(33, 4)),
        "attribute system.posix_acl_default",
    ),
    "a target": ("link", lambda path: retarget(path, "files"), "target"),
    "a directory in place of a file": ("second", swap_for_directory, "type"),
    "a file in place of a FIFO": ("fifo", swap_for_file, "type"),
    "the file itself in place of the link": ("link", swap_for_file, "type"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("changed_side", [0, 1], ids=["reference", "other"])
def test_a_change_is_found_by_its_name(
    pair: tuple[Path, Path], change: str, changed_side: int
) -> None:
    assert found(*pair) == set()
    name, make, what = CHANGES[change]
    keeping_times(pair[changed_side] / name, make)
    assert (name.encode(), what) in found(*pair)


@pytest.mark.parametrize("name", ["file", "directory", "link", "fifo", "directory/third", ""])
def test_one_nanosecond_is_found(pair: tuple[Path, Path], name: str) -> None:
    times = (1, 1_500_000_000_123_456_790)
    os.utime(pair[1] / name, ns=times, follow_symlinks=False)
    assert found(*pair) == {(name.encode(), "modification time, ns")}


@pytest.mark.root
@pytest.mark.parametrize("name", ["file", "directory", "link", "fifo", ""])
@pytest.mark.parametrize(("uid", "gid", "what"), [(1, -1, "owner"), (-1, 1, "group")])
def test_an_owner_is_found(
    pair: tuple[Path, Path], name: str, uid: int, gid: int, what: str
) -> None:
    os.chown(pair[1] / name, uid, gid, follow_symlinks=False)
    assert found(*pair) == {(name.encode(), what)}


@pytest.mark.root
def test_a_device_number_is_found(pair: tuple[Path, Path]) -> None:
    for root, minor in zip(pair, (3, 5), strict=True):
        keeping_times(
            root / "file",
            lambda path, minor=minor: os.mknod(  # type: ignore[misc]
                path.with_name("device"), 0o020600, os.makedev(1, minor)
            ),
        )
        os.utime(root / "device", ns=(1, 1))
    assert found(*pair) == {(b"device", "device number")}


def test_two_files_in_place_of_two_links_are_found(pair: tuple[Path, Path]) -> None:
    one, two = pair
    keeping_times(one / "file", lambda path: os.link(path, path.with_name("linked")))
    keeping_times(two / "file", lambda path: shutil.copy2(path, path.with_name("linked")))
    assert (b"linked", "is the same file as") in found(one, two)
    assert (b"linked", "is the same file as") in found(two, one)


def test_links_to_another_file_of_the_same_content_are_found(tmp_path: Path) -> None:
    for side, pairs in (
        ("reference", (["a", "b"], ["c", "d"])),
        ("other", (["a", "c"], ["b", "d"])),
    ):
        (tmp_path / side).mkdir()
        for first, second in pairs:
            (tmp_path / side / first).write_bytes(b"same")
            os.link(tmp_path / side / first, tmp_path / side / second)
        for path in (*(tmp_path / side).iterdir(), tmp_path / side):
            os.utime(path, ns=(1, 1))
    assert {what for _, what in found(*sides(tmp_path))} == {"is the same file as"}


def test_a_hidden_third_link_is_found(pair: tuple[Path, Path], tmp_path: Path) -> None:
    os.link(pair[1] / "file", tmp_path / "elsewhere")
    assert found(*pair) == {(b"file", "number of links")}


@pytest.mark.parametrize("size", [100_000_000, HOLE_READ_BYTES_MAX + 5_000_000])
def test_a_byte_in_a_hole_of_the_reference_is_found(tmp_path: Path, size: int) -> None:
    for side in sides(tmp_path):
        side.mkdir()
        with open(side / "sparse", "xb") as file:
            file.truncate(size)
    write_at(tmp_path / "other/sparse", size // 2 + 1, b"?")
    assert (b"sparse", f"byte at {size // 2 + 1}") in found(*sides(tmp_path))


def test_a_hole_in_place_of_data_is_found(tmp_path: Path) -> None:
    for side in sides(tmp_path):
        side.mkdir()
        with open(side / "sparse", "xb") as file:
            file.truncate(50_000_000)
    write_at(tmp_path / "reference/sparse", 30_000_000, b"?")
    assert (b"sparse", "byte at 30000000") in found(*sides(tmp_path))


def test_written_zeros_are_the_same_as_a_hole(tmp_path: Path) -> None:
    for side in sides(tmp_path):
        side.mkdir()
    (tmp_path / "reference/zeros").write_bytes(bytes(9_000_000))
    (tmp_path / "other/zeros").touch()
    os.truncate(tmp_path / "other/zeros", 9_000_000)
    for path in (*tmp_path.rglob("*"),):
        os.utime(path, ns=(1, 1))
    assert found(*sides(tmp_path)) == set()
    assert found(*reversed(sides(tmp_path))) == set()


def test_a_terabyte_of_hole_takes_no_time(tmp_path: Path) -> None:
    for side in sides(tmp_path):
        side.mkdir()
        with open(side / "sparse", "xb") as file:
            file.truncate(1 << 40)
    write_at(tmp_path / "other/sparse", 3 << 38, b"?")
    assert (b"sparse", f"byte at {3 << 38}") in found(*sides(tmp_path))


@pytest.mark.root
@pytest.mark.parametrize("name", ["file", "directory"])
def test_what_can_not_be_read_is_a_difference(pair: tuple[Path, Path], name: str) -> None:
    for root in pair:
        (root / name).chmod(0)
    without_override = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    result = run_program(pair, without_override)
    assert result.returncode == 1
    assert f"{name}: reading: " in result.stdout
    assert run_program(pair).returncode == 0


def run_program(
    pair: tuple[Path, Path], prefix: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    command = [*prefix, sys.executable, "-m", "tests.support.tree_compare", *map(str, pair)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def test_skipped_paths_are_passed_over(pair: tuple[Path, Path]) -> None:
    keeping_times(pair[1] / "directory/third", lambda path: path.write_bytes(b"other"))
    assert found(*pair) == {(b"directory/third", "byte at 0")}
    assert list(differences(*pair, skip=[b"directory"])) == []


def test_the_assertion_names_the_differences(pair: tuple[Path, Path]) -> None:
    keeping_times(pair[1] / "file", lambda path: write_at(path, 0, b"C"))
    with pytest.raises(TreesDiffer, match=r"file: byte at 0: 63 / 43"):
        assert_same(*pair)


def test_the_program_says_by_its_status_whether_trees_differ(pair: tuple[Path, Path]) -> None:
    assert run_program(pair).returncode == 0
    (pair[1] / "new").touch()
    result = run_program(pair)
    assert result.returncode == 1
    assert "new: exists: False / True" in result.stdout


@pytest.mark.root
def test_the_data_set_is_the_same_every_time(tmp_path: Path) -> None:
    for side in sides(tmp_path):
        dataset.build(os.fsencode(side), seed=7)
    assert_same(*sides(tmp_path))


def test_the_data_set_of_another_seed_is_another(tmp_path: Path) -> None:
    for seed, side in enumerate(sides(tmp_path)):
        dataset.build(os.fsencode(side), seed, parts=["images"])
    assert any(what.startswith("byte") for _, what in found(*sides(tmp_path)))
