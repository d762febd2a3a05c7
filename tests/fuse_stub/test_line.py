"""What native code answers by itself under a volume's mount, and what it leaves to Python."""

import itertools
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dedupd_core.stub.transition import FileIdentity
from dedupd_core.system.files import opened
from dedupd_core.units import MIB
from tests.conftest import MakeFileSystem
from tests.fuse_stub.test_commit_lane import (
    CONTENT,
    Committing,
    is_taken_back,
    map_and_write,
    write,
)
from tests.support.lab import noise
from tests.support.mounts import ALICE, MountedLab, as_user, mounted_lab

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def shared(way: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MountedLab]:
    with mounted_lab(tmp_path_factory.mktemp("line")) as lab:
        os.chmod(lab.view, 0o777)
        yield lab


@pytest.fixture
def lab(shared: MountedLab) -> Iterator[MountedLab]:
    """The same mount for all tests, empty at the start of each."""
    yield shared
    for path in shared.view.iterdir():
        path.unlink() if path.is_symlink() or not path.is_dir() else path.rmdir()


def handed_over(lab: MountedLab, work: Callable[[], object]) -> int:
    """How many requests Python has seen of what the work asks for."""
    with lab.client() as client:
        before = client.call("status")["handed_over"]
        work()
        after: int = client.call("status")["handed_over"]
    return after - int(before)


def use_plain_files(root: Path) -> None:
    directory = root / "d"
    directory.mkdir()
    for number in range(20):
        path = directory / f"{number}"
        with open(path, "xb") as file:
            file.write(b"%d" % number * 1000)
            os.fchmod(file.fileno(), 0o640)
            os.fsync(file.fileno())
        os.utime(path, (1, 2))
        os.truncate(path, 1000)
        os.setxattr(path, "user.note", b"x")
        os.removexattr(path, "user.note")
        os.rename(path, directory / "new")
        os.link(directory / "new", path)
        (directory / "new").unlink()
        os.symlink("0", directory / "new")
        (directory / "new").unlink()
        assert path.read_bytes() == (b"%d" % number * 1000)[:1000]
        path.unlink()
    with opened(os.open(directory, os.O_RDONLY)) as fd:
        os.fsync(fd)
    os.mkfifo(directory / "pipe")
    os.unlink(directory / "pipe")
    directory.rmdir()


def test_work_on_plain_files_needs_no_python(lab: MountedLab) -> None:
    wait_for(lambda: handed_over(lab, lambda: use_plain_files(lab.view)) == 0)
    wait_for(
        lambda: handed_over(lab, lambda: as_user(ALICE, lambda: use_plain_files(lab.view))) == 0
    )


def test_python_writes_what_has_to_be_filled_up_and_no_plain_file(lab: MountedLab) -> None:
    lab.make_stub("stub", CONTENT)
    lab.unmount()
    lab.mount()
    (lab.view / "plain").write_bytes(noise(MIB))
    wait_for(lambda: handed_over(lab, lambda: check_and_change(lab.view / "plain")) == 0)
    assert handed_over(lab, lambda: check_and_change(lab.view / "stub")) > 0
    assert lab.stub("stub") is not None


def test_small_stubs_are_read_in_one_request_without_python(lab: MountedLab) -> None:
    names = [f"{number}" for number in range(40)]
    content = {name: noise(3000 + number, number) for number, name in enumerate(names)}
    for name in names:
        (lab.view / name).write_bytes(content[name])
    lab.optimize()
    assert all(lab.stub(name) is not None for name in names)
    lab.unmount()
    lab.mount()
    while handed_over(lab, lambda: read_anew(lab.view / names[0])):  # until the container is open
        names.pop(0)
        time.sleep(0.05)
    before = (lab.view / names[1]).stat().st_atime_ns

    def read_all() -> None:
        for name in names:
            assert read_anew(lab.view / name) == content[name]

    assert handed_over(lab, read_all) == 0
    assert (lab.view / names[1]).stat().st_atime_ns > before


def read_anew(path: Path) -> bytes:
    """The content of a file, past the kernel's pages."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return os.read(fd, MIB)
    finally:
        os.close(fd)


def test_a_small_stub_that_was_written_to_or_cut_is_read_as_it_is_now(lab: MountedLab) -> None:
    content = noise(9000)
    changes: dict[str, tuple[Callable[[Path], Any], bytes]] = {
        "written": (write, b"NEW" + content[3:]),
        "cut": (lambda path: os.truncate(path, 100), content[:100]),
        "grown": (lambda path: os.truncate(path, 9010), content + bytes(10)),
        "as it was": (lambda path: None, content),
    }
    for name in changes:
        (lab.view / name).write_bytes(content)
    lab.optimize()
    for name, (change, _) in changes.items():
        assert lab.stub(name) is not None
        change(lab.view / name)
    for _ in range(3):
        for name, (_, expected) in changes.items():
            assert read_anew(lab.view / name) == expected, name
        lab.unmount()
        lab.mount()


def check_and_change(path: Path) -> None:
    content = path.read_bytes()
    with open(path, "r+b", buffering=0) as file:
        os.pwrite(file.fileno(), b"fresh", 7000)
    assert path.read_bytes() == content[:7000] + b"fresh" + content[7005:]


@pytest.mark.parametrize("many", [False, True], ids=["alone", "many"])
@pytest.mark.parametrize(
    "touch", [write, map_and_write, lambda path: os.truncate(path, 100), os.utime]
)
def test_what_native_code_has_open_is_handed_over_when_its_commit_begins(
    lab: MountedLab, many: bool, touch: Callable[[Path], Any]
) -> None:
    """A native write past a commit would be punched, and read from the store as it was before."""
    path = lab.view / "f"
    committing = Committing(lab, ["f"], many)

    def change() -> None:
        with open(path, "r+b", buffering=0) as file:
            assert file.write(CONTENT[:3]) == 3

    wait_for(lambda: handed_over(lab, change) == 0)  # native code has it open for writing
    identity = FileIdentity.of(os.stat(lab.data / "f"))
    committing.requests = [one._replace(identity=identity) for one in committing.requests]
    assert committing.begin() == ["done"]
    assert handed_over(lab, lambda: touch(path)) > 0
    expected = path.read_bytes()
    assert committing.finish() == ["changed"]
    assert is_taken_back(lab, "f")
    assert path.read_bytes() == expected
    lab.unmount()
    lab.mount()
    assert path.read_bytes() == expected


def test_what_was_written_is_in_use_for_a_moment_and_let_go_for_a_job(lab: MountedLab) -> None:
    path = lab.view / "f"
    path.write_bytes(CONTENT)
    with lab.client() as client:
        assert opened_for_writing(lab) == [path.stat().st_ino]
        client.call("let_go")
        assert opened_for_writing(lab) == []


def opened_for_writing(lab: MountedLab) -> list[int]:
    """The files of the view that the mount has open for writing, below it: their inodes."""
    names = {entry.inode() for entry in os.scandir(lab.data)}
    found = []
    for name in os.listdir(f"/proc/{lab.pid}/fd"):
        try:
            flags = Path(f"/proc/{lab.pid}/fdinfo/{name}").read_text().split("flags:")[1]
            inode = os.stat(f"/proc/{lab.pid}/fd/{name}").st_ino
        except FileNotFoundError:
            continue
        if inode in names and int(flags.split()[0], 8) & os.O_ACCMODE:
            found.append(inode)
    return found


def test_a_write_that_fails_below_fails_above(lab: MountedLab) -> None:
    path = lab.view / "f"
    path.write_bytes(b"x")
    limit = 1 << 62
    with open(path, "r+b", buffering=0) as file, pytest.raises(OSError):
        os.pwrite(file.fileno(), b"y", limit)
    assert path.read_bytes() == b"x"


def test_a_sync_tells_of_writes_that_were_lost(loop_fs: MakeFileSystem) -> None:
    """The disk of this file system has no room for what was written."""
    point = loop_fs("ext4", in_memory=True)
    with mounted_lab(point) as lab, open(lab.view / "f", "wb", buffering=0) as file:
        file.write(CONTENT)
        assert handed_over(lab, lambda: os.fsync(file.fileno())) == 0
        used = os.stat(point.parent / "image").st_blocks * 512
        limit(point.parent, f"{used + MIB}")
        try:
            file.write(noise(16 * MIB))
            with pytest.raises(OSError, match=r"No space left|Input/output error"):
                os.fsync(file.fileno())
        finally:
            limit(point.parent, "100%")


def limit(point: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", point], check=True)


def test_new_files_are_left_to_python_while_a_restore_fills_the_volume(lab: MountedLab) -> None:
    policy = lab.root / ".dedupd/policy.toml"
    before = policy.read_text()
    numbers = itertools.count()

    def make() -> None:
        path = lab.view / f"new-{next(numbers)}"
        as_user(ALICE, lambda: path.write_bytes(b"content"))

    policy.write_text('restore_mode = "on"\n' + before)
    try:
        wait_for(lambda: handed_over(lab, make) == 1)
    finally:
        policy.write_text(before)
    wait_for(lambda: handed_over(lab, make) == 0)
    for path in lab.view.iterdir():
        assert path.read_bytes() == b"content"
        assert path.stat().st_uid == ALICE


def wait_for(condition: Callable[[], bool]) -> None:
    """Python sees writes for a second, too, after one that took long on a busy machine."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
