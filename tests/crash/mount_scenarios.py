"""The process that serves a mount, with a recording disk of its own.

It and the job beside it write one log. A job waits for each answer of the mount, and a user for
each return, so the order of the entries is that of the effects.
"""

import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from dedupd_core import failpoint
from dedupd_core.errors import DamagedStub
from dedupd_core.format.stub import Flag
from dedupd_core.system import mount_table
from dedupd_core.system.files import opened
from dedupd_core.volume.volume import Volume
from fuse_stub.files.file_handles import load_secret
from fuse_stub.mounts import mount_process
from fuse_stub.mounts.mount_points import clear_dead_mount
from tests.crash.scenarios import (
    KIB,
    Contents,
    Scenario,
    Scene,
    contents,
    make_small_tree,
    open_user_file,
    optimize_to_the_end,
    optimized_volume,
    overwritten,
)
from tests.support import crash
from tests.support.copies import parameters_of
from tests.support.lab import noise
from tests.support.mounts import Nursery, serve_ageless
from tests.support.simulated_disk import RecordingDisk, RemoveAttribute

SPOILT = "spoilt"
"""A stub whose attribute is damaged: it is an error until a user cuts it to nothing."""


class _Notes:
    """A set that another process reads."""

    def __init__(self, told: Any) -> None:
        self.add = told.append


def serve_recorded(
    make_disk: Callable[[], RecordingDisk],
    log: Any,
    met: Any,
    path: str,
    mountpoint: str,
    cache_bytes: int,
    answer: Connection,
) -> None:
    """Serve a mount in a process of a nursery, with a disk whose log is shared."""
    disk = make_disk()
    disk.log = log
    if hasattr(disk, "met"):
        disk.met = _Notes(met)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dedupd_core.volume.volume.Disk", lambda: disk)
        patch.setattr("fuse_stub.busy.part_lane.FILE_BYTES_MIN", 1)
        for module in ("part_lane", "quiet_parts"):
            patch.setattr(f"fuse_stub.busy.{module}.GRAIN_BYTES", 8 * KIB)
        serve_ageless(path, mountpoint, cache_bytes, answer)


@contextmanager
def recorded_mount(scene: Scene) -> Iterator[Path]:
    """Where users see the volume, while a process serves it and records."""
    view = scene.root.with_name("view")
    view.mkdir(exist_ok=True)
    context = multiprocessing.get_context("forkserver")
    disk = scene.disk
    with context.Manager() as manager:
        disk.log = manager.list(disk.log)  # type: ignore[assignment]
        met = manager.list()
        nursery = Nursery(partial(serve_recorded, type(disk), disk.log, met))
        nursery.serve(str(scene.root), str(view), cache_bytes=16 << 20)
        try:
            yield view
        finally:
            clear_dead_mount(str(view))
            if mount_table.find(str(view)) is not None:
                mount_process.unmount(str(view))
        disk.log = list(disk.log)
        if hasattr(disk, "met"):
            disk.met |= set(met)
    view.rmdir()


def spoilt_volume(root: Path, seed: int) -> None:
    optimized_volume(root, seed)
    data = root / ".dedupd/data"
    (data / SPOILT).write_bytes(noise(20 * KIB, seed + 5))
    crash.optimize_volume(root)
    name = parameters_of(root / ".dedupd").attribute
    value = bytearray(os.getxattr(data / SPOILT, name))
    value[20] ^= 1
    os.setxattr(data / SPOILT, name, bytes(value))
    make_small_tree(data / "more", seed + 100)


def look(root: Path) -> Contents:
    """What the files hold; of the spoilt one nothing, as long as it is an error."""
    spoilt = root / ".dedupd/data" / SPOILT
    with Volume.open(str(root)) as volume:
        try:
            found = crash.read_through_store(volume, SPOILT.encode())
        except DamagedStub:
            found = b""
    aside = root.with_name("aside")
    spoilt.rename(aside)
    try:
        return {**contents(root), SPOILT: found}
    finally:
        aside.rename(spoilt)


def serve_users_and_a_job(scene: Scene) -> None:
    """A job commits through the mount, while users change what it commits, and other files."""
    with recorded_mount(scene) as view:
        touched: list[str] = []

        def hook(point: str) -> None:
            if point == "commit.begun" and not touched:
                touched.extend(os.listdir(view / "more"))
                for name in touched:
                    (view / "more" / name).chmod(0o750)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(failpoint, "hook", hook)
            crash.optimize_volume(scene.root, scene.disk)
        assert touched
        assert [e for e in scene.disk.log if isinstance(e.event, RemoveAttribute)]
        crash.optimize_volume(scene.root, scene.disk)
        write_and_sync(scene, view, "base", 5000, noise(9 * KIB, 31))
        write_and_sync(scene, view, "more/base", 21 * KIB, noise(3 * KIB, 32))
        with open(view / SPOILT, "wb"):
            pass


def write_and_sync(scene: Scene, view: Path, path: str, at: int, data: bytes) -> None:
    """A user's write to a stub, and its sync, which is a system call of the user's file."""
    content = overwritten((view / path).read_bytes(), at, data)
    scene.begin_write(path, content)
    with opened(os.open(view / path, os.O_RDWR)) as fd:
        os.pwrite(fd, data, at)
        os.fsync(fd)
    with open_user_file(scene, path) as own:
        scene.disk.sync_file(own)
    scene.synced(path, content)


_AT_ONCE, _AFTER_AN_HOUR = 'min_age = "0s"', 'min_age = "1h"'
"""No file is old enough as a whole; each range of it is (``serve_ageless``)."""


def busy_volume(root: Path, seed: int) -> None:
    optimized_volume(root, seed)
    make_small_tree(root / ".dedupd/data/more", seed + 100)
    policy = root / ".dedupd/policy.toml"
    policy.write_text(
        policy.read_text().replace(_AT_ONCE, _AFTER_AN_HOUR) + 'busy_files = "ranges"\n'
    )


def serve_a_guest(scene: Scene) -> None:
    """A job takes the quiet ranges of a plain file and of a stub that a user has open, and writes
    to while they are stored."""
    with recorded_mount(scene) as view, ExitStack() as files:
        for name in ("base", "more/base", "more/text"):
            fd = files.enter_context(opened(os.open(view / name, os.O_RDWR)))
            os.pwrite(fd, os.pread(fd, 100, 5000), 5000)  # nothing new: the mount has seen a write
        write_and_sync(scene, view, "base", 5000, noise(9 * KIB, 31))
        points: list[str] = []

        def hook(point: str) -> None:
            points.append(point)
            if point == "commit.begun" and points.count(point) == 1:
                write_and_sync(scene, view, "base", 6000, noise(100, 33))
                write_and_sync(scene, view, "more/base", 17 * KIB, noise(3 * KIB, 34))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(failpoint, "hook", hook)
            crash.optimize_volume(scene.root, scene.disk)
        assert "commit.begun" in points
        with Volume.open(str(scene.root)) as volume:
            for name in ("base", "more/base"):
                with open_user_file(scene, name) as fd:
                    stub = volume.space.read(fd, name)
                assert stub is not None and stub.flags & Flag.PARTIAL, name
        write_and_sync(scene, view, "more/base", 9 * KIB, noise(6 * KIB, 35))
        crash.optimize_volume(scene.root, scene.disk)


def serve_to_the_end(root: Path) -> None:
    (root / ".dedupd/data" / SPOILT).unlink()
    with Volume.open(str(root)) as volume:
        load_secret(volume)  # as the next mount does
    optimize_to_the_end(root)
    (root / ".dedupd/data" / SPOILT).touch()


def guest_to_the_end(root: Path) -> None:
    policy = root / ".dedupd/policy.toml"
    policy.write_text(policy.read_text().replace(_AFTER_AN_HOUR, _AT_ONCE))
    with Volume.open(str(root)) as volume:
        load_secret(volume)  # as the next mount does
    optimize_to_the_end(root)


MOUNT_SCENARIOS = {
    "serve a busy file": Scenario(busy_volume, serve_a_guest, guest_to_the_end),
    "serve a mount": Scenario(spoilt_volume, serve_users_and_a_job, serve_to_the_end, look=look),
}
