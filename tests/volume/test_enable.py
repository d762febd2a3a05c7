"""Enabling and disabling: whatever interrupts them, the next call ends with all that was there."""

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from dedupd_core.errors import Busy, NotAVolume, UnsuitableFileSystem, UsageError
from dedupd_core.failpoint import POINTS
from dedupd_core.format.volume_parameters import PRESETS, Parameters
from dedupd_core.system.disk import Disk
from dedupd_core.volume.enabling.enable import enable
from dedupd_core.volume.volume import Volume
from tests.conftest import MakeFileSystem
from tests.support.disabling import disable
from tests.support.lab import OLD_NS, fill, new_lab, stop_at


def make(root: Path) -> Path:
    """A directory as users leave it, with times, modes and attributes of its own."""
    (root / "sub/deep").mkdir(parents=True)
    (root / "file").write_bytes(b"content")
    (root / "sub/deep/file").write_bytes(b"deep content")
    (root / "link").symlink_to("file")
    os.mkfifo(root / "fifo")
    os.link(root / "file", root / "hard link")
    os.setxattr(root, "user.note", b"of the directory")
    os.chmod(root, 0o1751)
    os.utime(root, ns=(OLD_NS, OLD_NS))
    return root


def enable_plainly(root: Path, disk: Disk | None = None) -> Parameters:
    return enable(str(root), policy_values={}, force=True, disk=disk or Disk())


def look(directory: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every entry below a directory, and the directory: mode, time of change, content."""
    seen = {}
    for path in [directory, *sorted(directory.rglob("*"))]:
        if ".dedupd" in path.relative_to(directory).parts[:1]:
            continue
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        seen[str(path.relative_to(directory))] = status.st_mode, status.st_mtime_ns, content
    return seen


def test_the_tree_moves_as_it_is_and_comes_back_as_it_was(tmp_path: Path) -> None:
    root = make(tmp_path / "r")
    before = look(root)
    enable_plainly(root)
    assert look(root / ".dedupd/data") == before
    assert os.listdir(root) == [".dedupd"]
    assert os.getxattr(root / ".dedupd/data", "user.note") == b"of the directory"
    disable(str(root), disk=Disk())
    assert look(root) == before
    assert not (root / ".dedupd").exists()


def test_users_see_nothing_but_a_closed_door(tmp_path: Path) -> None:
    root = make(tmp_path / "r")
    enable_plainly(root)
    assert stat.S_IMODE((root / ".dedupd").stat().st_mode) == 0o700


def test_the_volume_file_says_how_chunks_are_cut(tmp_path: Path) -> None:
    root = tmp_path / "r"
    root.mkdir()
    parameters = enable(
        str(root), chunk_size="16k", fingerprint="sha256", policy_values={}, force=True, disk=Disk()
    )
    with Volume.open(str(root)) as volume:
        assert volume.parameters == parameters
    assert (parameters.chunking, parameters.fingerprint) == (PRESETS["16k"], "sha256")


# --- interrupted ------------------------------------------------------------------------------

ENABLE_POINTS = [
    *("enable.begun", "enable.prepared", "enable.closed", "enable.moved"),
    *("enable.all-moved", "enable.enabled"),
]
DISABLE_POINTS = ["disable.marked", "disable.moved", "disable.emptied"]


def test_every_fail_point_of_both_is_in_these_tests() -> None:
    ours = {name for name in POINTS if name.startswith(("enable.", "disable."))}
    assert ours == {*ENABLE_POINTS, *DISABLE_POINTS, "disable.taken-back"}


@pytest.mark.parametrize("point", ENABLE_POINTS)
@pytest.mark.parametrize("then", ["enable", "disable"])
def test_an_interrupted_enable_goes_on_either_way(tmp_path: Path, point: str, then: str) -> None:
    root = make(tmp_path / "r")
    before = look(root)
    with stop_at(point, 2 if point == "enable.moved" else 1):
        enable_plainly(root)
    if then == "enable":
        enable_plainly(root)
        assert look(root / ".dedupd/data") == before
        assert not (root / ".dedupd/enabling").exists()
    else:
        disable(str(root), disk=Disk())
        assert look(root) == before
        assert not (root / ".dedupd").exists()


@pytest.mark.parametrize("point", DISABLE_POINTS)
def test_an_interrupted_disable_goes_on(tmp_path: Path, point: str) -> None:
    root = make(tmp_path / "r")
    before = look(root)
    enable_plainly(root)
    with stop_at(point, 2 if point == "disable.moved" else 1):
        disable(str(root), disk=Disk())
    with pytest.raises(NotAVolume, match="was interrupted"):
        Volume.open(str(root))
    with pytest.raises(UsageError, match=r"run `dedupd disable .*` to finish it first"):
        enable_plainly(root)
    disable(str(root), disk=Disk())
    assert look(root) == before
    assert not (root / ".dedupd").exists()


def test_an_enable_that_failed_at_once_can_be_repeated(tmp_path: Path) -> None:
    class FailingDisk(Disk):
        def replace_file(self, *args: object, **kwargs: object) -> None:
            raise OSError(28, "No space left on device")

    root = make(tmp_path / "r")
    before = look(root)
    with pytest.raises(OSError, match="No space left"):
        enable_plainly(root, FailingDisk())
    enable_plainly(root)
    assert look(root / ".dedupd/data") == before


# --- refused ----------------------------------------------------------------------------------


def test_a_volume_is_enabled_once(tmp_path: Path) -> None:
    root = make(tmp_path / "r")
    enable_plainly(root)
    with pytest.raises(UsageError, match="already a volume"):
        enable_plainly(root)


def test_volumes_do_not_nest(tmp_path: Path) -> None:
    root = make(tmp_path / "r")
    enable_plainly(root)
    for inside in (root / ".dedupd/data/sub", root / ".dedupd", root / ".dedupd/store"):
        with pytest.raises(UsageError, match="is inside"):
            enable_plainly(inside)


@pytest.mark.root
@pytest.mark.parametrize(("uid", "mode"), [(40001, 0o700), (0, 0o770), (0, 0o707)])
def test_a_dot_dedupd_of_a_user_is_not_taken_for_the_store(
    tmp_path: Path, uid: int, mode: int
) -> None:
    """Who may write to a share before it is a volume would have the store in his hands."""
    root = make(tmp_path / "r")
    planted = root / ".dedupd"
    (planted / "store").mkdir(parents=True)
    planted.chmod(mode)
    os.chown(planted, uid, uid)
    with pytest.raises(UsageError, match="a volume needs this name; rename the entry"):
        enable_plainly(root)
    assert os.listdir(planted) == ["store"]


@pytest.mark.root
def test_a_volume_that_another_user_can_change_is_not_opened(tmp_path: Path) -> None:
    """Its ``data`` may be a link to what only root can read, which a job would take away."""
    root = make(tmp_path / "r")
    enable_plainly(root)
    os.chown(root / ".dedupd", 40001, 40001)
    with pytest.raises(
        UsageError, match=r"belongs to user 40001 .* must be accessible only to you"
    ):
        Volume.open(str(root))


def test_a_dot_dedupd_of_another_user_is_not_touched(tmp_path: Path) -> None:
    root = make(tmp_path / "r")
    (root / ".dedupd").mkdir()
    (root / ".dedupd/precious").write_bytes(b"data")
    with pytest.raises(UsageError, match="a volume needs this name; rename the entry"):
        enable_plainly(root)
    assert (root / ".dedupd/precious").read_bytes() == b"data"
    assert (root / "file").exists()


@pytest.mark.parametrize(
    ("path", "reason"), [("/", "cannot be a volume"), ("/no/such/place", "no such directory")]
)
def test_impossible_places_are_refused(path: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        enable_plainly(Path(path))


@pytest.mark.root
def test_a_directory_with_mounts_inside_is_refused(loop_fs: MakeFileSystem) -> None:
    point = loop_fs(size="64M")
    with pytest.raises(UsageError, match=r"mount is a mount \(`umount .*mount`\)"):
        enable_plainly(point.parent)
    assert not (point.parent / ".dedupd").exists()


def have_as_current_directory(directory: Path) -> AbstractContextManager[object]:
    return waiting(directory, None)


def have_open(directory: Path) -> AbstractContextManager[object]:
    return waiting("/", os.open(directory, os.O_RDONLY))


@contextmanager
def waiting(where: Path | str, fd: int | None) -> Iterator[None]:
    """A process that waits in a directory, or with ``fd`` (taken over) open."""
    fds = () if fd is None else (fd,)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, cwd=where, pass_fds=fds):
        if fd is not None:
            os.close(fd)
        yield


@pytest.mark.parametrize("occupy", [have_as_current_directory, have_open])
def test_a_process_with_an_open_part_of_a_directory_stops_enabling(
    tmp_path: Path, occupy: Callable[[Path], AbstractContextManager[object]]
) -> None:
    """He would see what lies below the mount: stubs without their content."""
    root = tmp_path / "r"
    (root / "sub").mkdir(parents=True)
    with (
        occupy(root / "sub"),
        pytest.raises(UsageError, match=r"sub is in use by process \d+ \(cat\)"),
    ):
        enable_plainly(root)
    assert os.listdir(root) == ["sub"]
    with occupy(root):
        enable_plainly(root)


_HAVE_MAPPED = """
import mmap, os, sys
path = os.fsencode(sys.argv[1])
with open(path, "r+b") as file:
    mapped = mmap.mmap(file.fileno(), 0)
os.closerange(3, 100)  # that of the mapping, too
print("mapped", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("name", ["r", "a name\nand\rmore \\012"])
def test_a_process_that_has_mapped_a_file_of_a_directory_stops_enabling(
    tmp_path: Path, name: str
) -> None:
    root = tmp_path / name
    root.mkdir()
    (root / "f").write_bytes(b"content")
    command = [sys.executable, "-c", _HAVE_MAPPED, str(root / "f")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == b"mapped\n"
        with pytest.raises(UsageError, match=f"is in use by process {process.pid} "):
            enable_plainly(root)
        process.stdin.close()
    enable_plainly(root)


@pytest.mark.root
def test_a_part_that_is_mounted_elsewhere_stops_enabling(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "r", tmp_path / "elsewhere"
    (root / "sub").mkdir(parents=True)
    elsewhere.mkdir()
    subprocess.run(["mount", "--bind", root / "sub", elsewhere], check=True)
    try:
        with pytest.raises(UsageError, match=f"also mounted at {elsewhere}"):
            enable_plainly(root)
        assert os.listdir(root) == ["sub"]
    finally:
        subprocess.run(["umount", elsewhere], check=True)
    enable_plainly(root)


@pytest.mark.root
def test_the_checkers_directory_stays_where_it_is(loop_fs: MakeFileSystem) -> None:
    point = loop_fs(size="64M")
    (point / "file").write_bytes(b"x")
    enable_plainly(point)
    assert sorted(os.listdir(point)) == [".dedupd", "lost+found"]
    disable(str(point), disk=Disk())
    assert sorted(os.listdir(point)) == ["file", "lost+found"]


@pytest.mark.root
def test_a_file_system_that_cannot_carry_stubs_is_refused_untouched(tmp_path: Path) -> None:
    """ramfs has neither holes to punch nor attributes of users."""

    (tmp_path / "m").mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "ramfs", "ramfs", tmp_path / "m"], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no ramfs here")
    try:
        (tmp_path / "m/file").write_bytes(b"x")
        with pytest.raises(UnsuitableFileSystem, match="use ext4, XFS or btrfs"):
            enable_plainly(tmp_path / "m")
        assert (tmp_path / "m/file").read_bytes() == b"x"
        assert os.listdir(tmp_path / "m") == ["file"]
    finally:
        subprocess.run(["umount", tmp_path / "m"], check=True)


@pytest.mark.parametrize("lock", ["lock", "mount.lock"])
def test_disabling_does_not_wait_and_pulls_no_file_away(tmp_path: Path, lock: str) -> None:
    lab = new_lab(tmp_path / "r")
    lab.put("file", b"x")
    with lab.opened() as volume:
        held = volume.job_lock() if lock == "lock" else volume.mount_lock()
        with held, pytest.raises(Busy):
            disable(str(lab.root), disk=Disk())
    lab.verify_clean()


def test_a_name_in_both_places_stops_disabling_and_overwrites_nothing(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "r")
    lab.put("file", b"the volume's")
    (lab.root / "file").write_bytes(b"put there while it was unmounted")
    with pytest.raises(
        UsageError,
        match=r"exist both in the volume and next to \.dedupd.*: file; move those in .*/r away",
    ):
        disable(str(lab.root), disk=Disk())
    (lab.root / "file").rename(tmp_path / "moved away")
    disable(str(lab.root), disk=Disk())
    assert (lab.root / "file").read_bytes() == b"the volume's"


def test_a_directory_that_is_no_volume_cannot_be_disabled(tmp_path: Path) -> None:
    with pytest.raises(NotAVolume):
        disable(str(tmp_path), disk=Disk())


def test_there_and_back_with_everything_in_between(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "r")
    contents = fill(lab)
    lab.optimize()
    lab.unoptimize()
    disable(str(lab.root), disk=Disk())
    assert {path.name: path.read_bytes() for path in lab.root.iterdir()} == contents
    assert all(path.stat().st_mtime_ns == OLD_NS for path in lab.root.iterdir())
    new_lab(lab.root)
    assert lab.optimize().files_optimized == len(contents)
