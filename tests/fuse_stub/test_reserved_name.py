"""No user makes an entry at the top of the tree that has the name of the volume's own directory."""

import errno
import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dedupd_core.system.files import opened
from tests.support.mounts import ALICE, MountedLab, as_user, mounted_lab, rename_with

pytestmark = pytest.mark.root

NOREPLACE, EXCHANGE, WHITEOUT = 1, 2, 4
NAME = ".dedupd"


@pytest.fixture(scope="module")
def lab(way: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MountedLab]:
    with mounted_lab(tmp_path_factory.mktemp("reserved")) as lab:
        os.chmod(lab.view, 0o777)
        (lab.view / "file").write_bytes(b"content")
        (lab.view / "folder").mkdir()
        yield lab


@pytest.fixture
def old_lab(way: str, tmp_path: Path) -> Iterator[MountedLab]:
    """A volume with such an entry, which an older version let a user make."""
    with mounted_lab(tmp_path) as lab:
        lab.unmount()
        (lab.data / NAME).mkdir()
        (lab.data / NAME / "x").write_bytes(b"precious")
        (lab.data / "file").write_bytes(b"content")
        (lab.data / "folder").mkdir()
        lab.mount()
        yield lab


def name_a_nameless_file(top: Path) -> None:
    with (
        opened(os.open(top, os.O_RDONLY | os.O_DIRECTORY)) as to_fd,
        opened(os.open(top, os.O_TMPFILE | os.O_RDWR, 0o600)) as fd,
    ):
        os.link(f"/proc/self/fd/{fd}", NAME, dst_dir_fd=to_fd, follow_symlinks=True)


MAKING: dict[str, Callable[[Path], object]] = {
    "mkdir": lambda top: (top / NAME).mkdir(),
    "create": lambda top: (top / NAME).write_bytes(b"x"),
    "mkfifo": lambda top: os.mkfifo(top / NAME),
    "mknod": lambda top: os.mknod(top / NAME, stat.S_IFSOCK | 0o600),
    "symlink": lambda top: (top / NAME).symlink_to("file"),
    "link": lambda top: os.link(top / "file", top / NAME),
    "linkat": name_a_nameless_file,
    "rename": lambda top: os.rename(top / "file", top / NAME),
    "rename a folder": lambda top: os.rename(top / "folder", top / NAME),
    "rename without replacing": lambda top: rename_with(top / "file", top / NAME, NOREPLACE),
    "rename with a whiteout": lambda top: rename_with(top / "file", top / NAME, WHITEOUT),
}


@pytest.mark.parametrize("make", MAKING)
def test_the_name_is_refused_at_the_top_however_it_is_made(lab: MountedLab, make: str) -> None:
    with pytest.raises(PermissionError) as caught:
        MAKING[make](lab.view)
    assert caught.value.errno == errno.EPERM
    assert sorted(os.listdir(lab.data)) == ["file", "folder"]


def test_a_user_is_refused_as_root_is(lab: MountedLab) -> None:
    def work() -> None:
        with pytest.raises(PermissionError):
            (lab.view / NAME).mkdir()

    as_user(ALICE, work)


def test_the_name_is_free_below_the_top_and_similar_names_are_free_at_the_top(
    lab: MountedLab,
) -> None:
    (lab.view / "folder" / NAME).mkdir()
    (lab.view / ".dedupd2").write_bytes(b"x")
    os.rename(lab.view / "folder" / NAME, lab.view / ".dedup")
    os.rmdir(lab.view / ".dedup")
    (lab.view / ".dedupd2").unlink()


@pytest.mark.parametrize("program", ["cp", "rsync"])
def test_a_copy_of_a_whole_share_completes_with_one_error(
    old_lab: MountedLab, tmp_path: Path, program: str
) -> None:
    """A user copies one share into another, and the old one has such a folder."""
    (tmp_path / "new").mkdir()
    with mounted_lab(tmp_path / "new") as new:
        source, target = f"{old_lab.view}/.", f"{new.view}/"
        command = [program, "-a", source, target]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode != 0
        assert done.stderr.count("Operation not permitted") == 1
        assert (new.view / "file").read_bytes() == b"content"


@pytest.mark.parametrize("flags", [EXCHANGE, WHITEOUT])
def test_no_rename_puts_anything_else_under_the_name(old_lab: MountedLab, flags: int) -> None:
    top = old_lab.view
    with pytest.raises(PermissionError):
        rename_with(top / NAME, top / "folder", flags)
    with pytest.raises(PermissionError):
        rename_with(top / "folder", top / NAME, flags)
    assert (top / "file").read_bytes() == b"content"
    assert (top / NAME / "x").read_bytes() == b"precious"


def test_an_entry_of_an_older_version_can_be_read_and_renamed(old_lab: MountedLab) -> None:
    top = old_lab.view
    (top / NAME / "y").write_bytes(b"new")
    os.rename(top / NAME, top / "of a user")
    assert sorted(os.listdir(top / "of a user")) == ["x", "y"]
    with pytest.raises(PermissionError):
        os.rename(top / "of a user", top / NAME)


def test_an_entry_of_an_older_version_can_be_removed(old_lab: MountedLab) -> None:
    shutil.rmtree(old_lab.view / NAME)
    assert sorted(os.listdir(old_lab.view)) == ["file", "folder"]
