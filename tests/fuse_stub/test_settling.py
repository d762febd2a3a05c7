"""Stubs that a crash left half way, settled while users change what settling puts back."""

import errno
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyfuse3
import pytest
import trio

from dedupd_core.format.stub import Flag
from dedupd_core.stub.transition import CAPABILITY
from dedupd_core.system.disk import Disk
from dedupd_core.units import MIB
from dedupd_core.volume.volume import Volume
from fuse_stub.mounted_volume import MountedVolume
from fuse_stub.operations import StubOperations
from tests.support.lab import RAW_SOCKETS, new_lab, noise, stop_at

pytestmark = pytest.mark.root

CALLER: Any = SimpleNamespace(uid=0, gid=0, pid=os.getpid())
CONTENT = noise(200_000)


class WaitingDisk(Disk):
    """Settling one stub waits in the middle until it may go on."""

    def __init__(self, stub: Path) -> None:
        self.ino = stub.stat().st_ino
        self.is_settling = threading.Event()
        self.may_go_on = threading.Event()

    def sync_file(self, fd: int) -> None:
        if os.fstat(fd).st_ino == self.ino:  # a mount syncs files of its own, too
            self.is_settling.set()
            assert self.may_go_on.wait(30)
        super().sync_file(fd)


async def give_away(operations: StubOperations, ino: pyfuse3.InodeT) -> None:
    attributes = pyfuse3.EntryAttributes()
    attributes.st_uid = 40001
    fields: Any = SimpleNamespace(
        **dict.fromkeys(("update_size", "update_mode", "update_gid"), False),
        **dict.fromkeys(("update_atime", "update_mtime"), False),
        update_uid=True,
    )
    await operations.setattr(ino, attributes, fields, None, CALLER)


async def take_away(operations: StubOperations, ino: pyfuse3.InodeT) -> None:
    await operations.removexattr(ino, CAPABILITY, CALLER)


@pytest.mark.parametrize("change", [give_away, take_away])
def test_a_capability_that_is_taken_meanwhile_does_not_come_back(
    tmp_path: Path, change: Callable[[StubOperations, pyfuse3.InodeT], Awaitable[None]]
) -> None:
    lab = new_lab(tmp_path / "volume")
    lab.put("program", CONTENT)
    with stop_at("commit.durable"):
        lab.optimize()
    stub = lab.stub("program")
    assert stub is not None and stub.flags & Flag.COMMITTING
    os.setxattr(lab.data / "program", CAPABILITY, RAW_SOCKETS)
    disk = WaitingDisk(lab.data / "program")

    async def live(mount: MountedVolume) -> None:
        operations = StubOperations(mount)
        found = await operations.lookup(pyfuse3.ROOT_INODE, pyfuse3.FileNameT(b"program"), CALLER)
        order: list[str] = []

        async def open_it() -> None:
            file = await mount.files.acquire(found.st_ino, write=False)
            order.append("settled")
            mount.files.release(file)

        async def change_it() -> None:
            await change(operations, found.st_ino)
            order.append("changed")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(open_it)
            await trio.to_thread.run_sync(disk.is_settling.wait, 30)
            nursery.start_soon(change_it)
            await trio.sleep(0.2)
            disk.may_go_on.set()
        assert "settled" in order and "changed" in order

    with Volume.open(str(lab.root), disk) as volume, volume.mount_lock() as transitions:
        mount = MountedVolume(volume, transitions, str(lab.root), MIB, 1)
        try:
            trio.run(live, mount)
        finally:
            mount.close()
    assert lab.stub("program") is not None
    assert lab.read("program") == CONTENT
    assert "security.capability" not in os.listxattr(lab.data / "program")


class BrokenDisk(Disk):
    """Takes no changes for a while."""

    takes_changes = False

    def sync_file(self, fd: int) -> None:
        if not self.takes_changes:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        super().sync_file(fd)


def test_a_stub_that_cannot_be_settled_is_read_and_not_written_to(tmp_path: Path) -> None:
    """Grown, one that was cut would show bytes of the recipe that are gone."""
    lab = new_lab(tmp_path / "volume")
    lab.put("f", CONTENT)
    with stop_at("commit.durable"):
        lab.optimize()
    disk = BrokenDisk()

    async def live(mount: MountedVolume) -> None:
        operations = StubOperations(mount)
        found = await operations.lookup(pyfuse3.ROOT_INODE, pyfuse3.FileNameT(b"f"), CALLER)
        for _ in range(2):
            file = await mount.files.acquire(found.st_ino, write=False)
            assert file.stub is not None and file.stub.read(0, len(CONTENT)) == CONTENT
            with pytest.raises(OSError) as refusal:
                await mount.files.acquire(found.st_ino, write=True)
            assert refusal.value.errno == errno.EROFS
            disk.takes_changes = True
            with pytest.raises(OSError):
                await mount.files.acquire(found.st_ino, write=True)
            disk.takes_changes = False
            mount.files.release(file)
        disk.takes_changes = True
        file = await mount.files.acquire(found.st_ino, write=True)
        assert file.stub is not None and not file.stub.attribute.flags.transient
        mount.files.release(file)

    with Volume.open(str(lab.root), disk) as volume, volume.mount_lock() as transitions:
        mount = MountedVolume(volume, transitions, str(lab.root), MIB, 1)
        try:
            trio.run(live, mount)
        finally:
            mount.close()
    lab.verify_clean()


def test_a_capability_that_nobody_takes_stays(tmp_path: Path) -> None:
    """The test above finds one that settling puts back."""
    lab = new_lab(tmp_path / "volume")
    lab.put("program", CONTENT)
    with stop_at("commit.durable"):
        lab.optimize()
    os.setxattr(lab.data / "program", CAPABILITY, RAW_SOCKETS)
    lab.optimize()
    assert os.getxattr(lab.data / "program", CAPABILITY) == RAW_SOCKETS
