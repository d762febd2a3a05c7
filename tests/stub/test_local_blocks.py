"""The count of a stub's own blocks: right after every step, and told before what it tells of."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dedupd_core import native
from dedupd_core.errors import TamperedStub
from dedupd_core.format.stub import Flag
from dedupd_core.stub.local_blocks import checked_stub
from dedupd_core.stub.stub_file import SparseStub
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import opened
from dedupd_core.units import KIB, MIB
from dedupd_core.volume.restore import filling_of
from dedupd_core.volume.volume import Volume
from tests.conftest import MakeFileSystem
from tests.support.lab import Lab, new_lab, noise

BLOCK = 4096
CONTENT = noise(400 * KIB + 5)


class LookingDisk(Disk):
    """Looks at the file before each change of its blocks."""

    def __init__(self) -> None:
        self.look: Callable[[int], None] | None = None

    def write_some(self, fd: int, data: Any, offset: int) -> int:
        self._look(fd)
        return super().write_some(fd, data, offset)

    def truncate(self, fd: int, length: int) -> None:
        self._look(fd)
        super().truncate(fd, length)

    def punch(self, fd: int, offset: int, length: int) -> None:
        self._look(fd)
        super().punch(fd, offset, length)

    def _look(self, fd: int) -> None:
        if self.look is not None:
            self.look(fd)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = new_lab(tmp_path / "volume", disk=LookingDisk())
    lab.put("file", CONTENT)
    lab.optimize()
    return lab


@contextmanager
def sparse(lab: Lab) -> Iterator[tuple[SparseStub, Volume]]:
    with lab.opened() as volume, opened(os.open(lab.data / "file", os.O_RDWR)) as fd:
        stub = checked_stub(fd, volume.stub_files, "file")
        assert stub is not None
        load = lambda one: volume.content(one, "file")  # noqa: E731
        yield SparseStub(fd, stub, volume.stub_files, load), volume


def sealed(stub: SparseStub) -> int:
    os.fsync(stub.fd)
    assert stub.seal() and stub.is_sealed
    return stub.attribute.local_bytes


def test_what_is_written_is_counted_once_it_has_its_place_on_the_disk(lab: Lab) -> None:
    with sparse(lab) as (stub, _):
        stub.write(8 * BLOCK, bytes(3 * BLOCK))
        assert not stub.seal() or stub.attribute.local_bytes == 3 * BLOCK
        assert sealed(stub) == 3 * BLOCK
        stub.write(8 * BLOCK, noise(BLOCK))
        assert sealed(stub) == 3 * BLOCK, "a block that is there is no new one"
        stub.write(20 * BLOCK + 5, b"somewhere else")
        assert (stub.is_sealed, sealed(stub)) == (False, 4 * BLOCK)
        stub.truncate(9 * BLOCK)
        assert (stub.is_sealed, sealed(stub)) == (False, BLOCK)
        stub.write(30 * BLOCK, b"beyond what the recipe covers")
        assert (stub.is_sealed, sealed(stub)) == (False, 2 * BLOCK)
    assert lab.stub("file") is not None
    lab.verify_clean()


@pytest.mark.parametrize(
    ("step", "is_uncounted"),
    [
        (lambda stub: stub.write(20 * BLOCK, b"new"), False),
        (lambda stub: stub.write(600 * KIB, b"new, beyond the end"), False),
        (lambda stub: stub.truncate(9 * BLOCK), True),
        (lambda stub: stub.truncate(500 * KIB), False),
    ],
)
def test_the_attribute_tells_before_blocks_come_or_go(
    lab: Lab, step: Callable[[SparseStub], object], is_uncounted: bool
) -> None:
    with sparse(lab) as (stub, volume):
        stub.write(8 * BLOCK, bytes(3 * BLOCK))
        assert sealed(stub) == 3 * BLOCK
        seen = []

        def look(fd: int) -> None:
            on_disk = volume.space.read(fd, "file")
            assert on_disk is not None
            seen.append((Flag.WRITTEN in on_disk.flags, on_disk.local_bytes == 0))

        disk = volume.disk
        assert isinstance(disk, LookingDisk)
        disk.look = look
        try:
            step(stub)
        finally:
            disk.look = None
        assert seen and all(written for written, _ in seen)
        assert not is_uncounted or all(uncounted for _, uncounted in seen)
    lab.verify_clean()


def test_a_stub_that_is_filled_up_and_emptied_again_is_none_that_was_changed(lab: Lab) -> None:
    with sparse(lab) as (stub, volume):
        stub.write(8 * BLOCK, CONTENT[8 * BLOCK : 9 * BLOCK])  # as in the store
        sealed(stub)
        filling = filling_of(volume, stub, "file")
        while not filling.is_complete:
            filling.load()
            filling.fill()
        assert checked_stub(stub.fd, volume.stub_files, "file") is not None
        while filling.take_back():
            assert checked_stub(stub.fd, volume.stub_files, "file") is not None
        filling.stop()
        sealed(stub)
    assert lab.read("file") == CONTENT
    lab.verify_clean()


def test_blocks_that_others_take_or_add_are_noticed(lab: Lab) -> None:
    with sparse(lab) as (stub, volume):
        stub.write(8 * BLOCK, bytes(3 * BLOCK))
        for is_sealed in (False, True):
            if is_sealed:
                sealed(stub)
            with opened(os.open(lab.data / "file", os.O_RDWR)) as fd:
                os.pwrite(fd, bytes(BLOCK), 40 * BLOCK)
                if is_sealed:
                    with pytest.raises(TamperedStub, match="4096 bytes in blocks that do not"):
                        checked_stub(fd, volume.stub_files, "file")
                volume.disk.punch(fd, 40 * BLOCK, BLOCK)
                checked_stub(fd, volume.stub_files, "file")
        volume.disk.punch(stub.fd, 9 * BLOCK, BLOCK)
        with pytest.raises(TamperedStub, match="4096 bytes of its local blocks are missing"):
            checked_stub(stub.fd, volume.stub_files, "file")


@pytest.mark.root
@pytest.mark.parametrize(("kind", "options"), [("xfs", ""), ("btrfs", ""), ("btrfs", "compress")])
def test_blocks_are_counted_alike_on_other_file_systems(
    loop_fs: MakeFileSystem, kind: str, options: str
) -> None:
    lab = new_lab(loop_fs(kind, options=options, in_memory=True) / "volume")
    lab.put("file", noise(2 * MIB))
    lab.optimize()
    with sparse(lab) as (stub, volume):
        for at in range(0, 100 * BLOCK, 7 * BLOCK):
            stub.write(at, bytes(3 * BLOCK))
        assert sealed(stub) == 15 * 3 * BLOCK
        # Written anew, out of place, and not on the disk yet.
        stub.write(0, bytes(3 * BLOCK))
        stub.write(7 * BLOCK, noise(BLOCK))
        assert stub.is_sealed
        checked_stub(stub.fd, volume.stub_files, "file")
        assert native_total(stub) == 15 * 3 * BLOCK
        os.fsync(stub.fd)
        checked_stub(stub.fd, volume.stub_files, "file")
    lab.verify_clean()


def native_total(stub: SparseStub) -> int:
    own = native.system.present_ranges(stub.fd, 0, os.fstat(stub.fd).st_size)
    return sum(end - start for start, end in own)
