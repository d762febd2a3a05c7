"""A mount takes the place of one whose process was killed, and users never see what is below."""

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dedupd_core.errors import NotAVolume
from dedupd_core.system import mount_table
from dedupd_core.system.file_system import file_system_of
from dedupd_core.system.files import opened
from fuse_stub.mounts import mount_process, over_mount
from fuse_stub.mounts.mount_points import is_dead_mount
from tests.support.lab import Lab, new_lab, noise
from tests.support.mounts import DEAD, MountedLab, end, mounted_lab
from tests.support.service import eventually

pytestmark = pytest.mark.root

CONTENT = noise(200_000)


class Watcher:
    """A user who looks all the time, and writes new files."""

    def __init__(self, view: Path) -> None:
        self.view = view
        self.seen: set[str] = set()
        self.written: list[str] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "Watcher":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def wait_for_a_write(self) -> None:
        """Until the next file is there."""
        count = len(self.written)
        eventually(lambda: len(self.written) > count, "a file that was written")

    def _watch(self) -> None:
        number = 0
        while not self._end.is_set():
            number += 1
            name = f"new-{number:06}"
            try:
                if "file" not in os.listdir(self.view):
                    self.seen.add("an empty directory")
                if (self.view / "file").read_bytes() != CONTENT:
                    self.seen.add("wrong content")
                (self.view / name).write_text(name)
                self.written.append(name)
            except OSError as error:
                if error.errno not in DEAD:
                    self.seen.add(str(error))


@contextmanager
def covered(directory: Path) -> Iterator[Lab]:
    """A volume for mounting over itself."""
    directory.mkdir()
    lab = new_lab(directory)
    try:
        yield lab
    finally:
        if any(found.point == str(lab.root) for found in mount_table.volumes()):
            mount_process.unmount(str(lab.root))


def names_of(where: Path) -> list[str]:
    return sorted(name for name in os.listdir(where) if name.startswith("new-"))


def test_users_see_their_files_or_an_error_while_a_mount_is_brought_back(tmp_path: Path) -> None:
    with mounted_lab(tmp_path) as lab:
        lab.make_stub("file", CONTENT)
        with Watcher(lab.view) as user:
            for _ in range(4):
                lab.kill()
                lab.mount()
                user.wait_for_a_write()
        assert user.seen == set()
        assert set(user.written) <= set(names_of(lab.view))
        lab.unmount()
        assert os.listdir(lab.view) == []


def test_a_mount_over_the_volume_itself_is_brought_back_likewise(tmp_path: Path) -> None:
    with covered(tmp_path / "volume") as lab:
        root = str(lab.root)
        pid = mount_process.mount_in_background(root, root)
        (lab.root / "file").write_bytes(CONTENT)
        with Watcher(lab.root) as user:
            for _ in range(4):
                end(pid, signal.SIGKILL)
                pid = mount_process.mount_in_background(root, root)
                user.wait_for_a_write()
        assert user.seen == set()
        assert set(user.written) <= set(names_of(lab.root))
        mount_process.unmount(root)
        assert os.listdir(root) == [".dedupd"]


def test_a_mount_that_took_over_ends_with_its_process(tmp_path: Path) -> None:
    with mounted_lab(tmp_path) as lab:
        lab.kill()
        lab.mount()
        end(lab.pid, signal.SIGTERM)
        assert all(found.point != str(lab.view) for found in mount_table.volumes())


def test_a_mount_that_took_over_is_mounted_with_the_same_options(tmp_path: Path) -> None:
    def options(lab: MountedLab) -> tuple[int, set[str]]:
        with opened(os.open(lab.view, os.O_PATH)) as fd:
            return os.statvfs(lab.view).f_flag, {*file_system_of(fd).options}

    with mounted_lab(tmp_path) as lab:
        before = options(lab)
        lab.kill()
        lab.mount()
        assert options(lab) == before
        assert [found.point for found in mount_table.volumes()].count(str(lab.view)) == 1


def test_the_dead_mount_of_a_volume_elsewhere_is_named(tmp_path: Path) -> None:
    with mounted_lab(tmp_path) as lab:
        lab.kill()
        with pytest.raises(
            NotAVolume, match=f"{lab.view}: is the dead mount of a volume elsewhere"
        ):
            mount_process.mount_in_background(str(lab.view), str(lab.view))
        assert is_dead_mount(str(lab.view))


def test_a_kernel_without_mounting_beneath_swaps_the_mounts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(over_mount, "BENEATH", 1 << 20)  # a flag that no kernel knows: EINVAL
    point = tmp_path / "point"
    point.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "old", point], check=True)
    device_fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    kernel = {"source": "new", "rootmode": "40000", "user_id": "0", "group_id": "0"}
    mount_fd = over_mount.new_mount(device_fd, kernel)
    try:
        over_mount.replace(mount_fd, str(point))
        here = [row for row in mount_table.all_mounts() if row.point == str(point)]
        assert [row.source for row in here] == ["new"]
    finally:
        os.close(mount_fd)
        os.close(device_fd)
        over_mount.detach(str(point))
