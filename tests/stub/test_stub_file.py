"""The sparse stream without FUSE: a stub read and written in place, on real file systems."""

import ctypes
import errno
import fcntl
import os
import random
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupd_core import native
from dedupd_core.byte_ranges import missing_ranges
from dedupd_core.errors import NoSpace
from dedupd_core.stub import ranges
from dedupd_core.stub.filling import StubFill, make_plain
from dedupd_core.stub.stub_file import SparseStub
from dedupd_core.stub.transition import settle
from dedupd_core.system.disk import Disk
from dedupd_core.system.extents import drop_unwritten, has_unwritten
from dedupd_core.system.files import data_ranges, opened
from dedupd_core.volume.volume import Volume
from tests.conftest import MakeFileSystem
from tests.support.lab import Lab, new_lab, noise
from tests.support.stores import FullDisk, LazyDisk

pytestmark = pytest.mark.root

BLOCK = 4096
SIZE = 40 * BLOCK + 1000
FILE_SYSTEMS = ["ext4", "xfs", "btrfs"]


def content() -> bytes:
    """Noise, a recipe hole in the middle, and a ragged end."""
    data = bytearray(noise(SIZE, 5))
    data[20 * BLOCK : 26 * BLOCK] = bytes(6 * BLOCK)
    return bytes(data)


class Sparse:
    """A stub opened for reading and writing, settled as whoever opens it does."""

    def __init__(self, lab: Lab, name: str, disk: Disk | None = None) -> None:
        self.volume = Volume.open(str(lab.root), disk)
        volume = self.volume
        self.fd = os.open(lab.data / name, os.O_RDWR)
        attribute = volume.space.read(self.fd, name)
        assert attribute is not None
        load = partial(volume.content, attribute, name)
        attribute = settle(self.fd, attribute, load, volume.stub_files)
        self.stub = SparseStub(
            self.fd,
            attribute,
            volume.stub_files,
            lambda stub: volume.content(stub, name),
        )
        self.is_plain = False

    def close(self) -> None:
        os.close(self.fd)
        self.volume.close()

    def read(self, start: int, length: int) -> bytes:
        if self.is_plain:
            return os.pread(self.fd, length, start)
        return bytes(self.stub.read(start, length))

    def write(self, offset: int, data: bytes) -> int:
        if self.is_plain:
            return os.pwrite(self.fd, data, offset)
        return self.stub.write(offset, data)

    def change_range(self, kind: str, start: int, end: int) -> None:
        """``allocate``, also beyond the end of the file, or ``punch``."""
        while start < end and not self.is_plain:
            if kind == "allocate":
                start, self.is_plain = self.stub.allocate(start, end, keep_size=False)
            else:
                step = self.stub.zero(start, end)
                if step.end == start:
                    return  # behind the end of the file
                start, self.is_plain = step
        if start < end and kind == "allocate":
            os.posix_fallocate(self.fd, start, end - start)
        elif start < end:
            native.system.punch_hole(self.fd, start, end - start)

    def parts(self) -> list[tuple[int, int]]:
        """The data of the file, as a program that looks for them finds them."""
        if self.is_plain:
            return present(self.fd)
        found, at = [], 0
        with suppress(OSError):
            while True:
                start = ranges.next_data(self.stub, at)
                at = ranges.next_hole(self.stub, start)
                found.append((start, at))
        return found

    def truncate(self, size: int) -> None:
        if self.is_plain:
            os.truncate(self.fd, size)
        else:
            self.is_plain = self.stub.truncate(size)


@contextmanager
def sparse(lab: Lab, name: str = "f", disk: Disk | None = None) -> Iterator[Sparse]:
    one = Sparse(lab, name, disk)
    try:
        yield one
    finally:
        one.close()


@pytest.fixture(params=FILE_SYSTEMS)
def lab(loop_fs: MakeFileSystem, request: pytest.FixtureRequest) -> Lab:
    return new_lab(loop_fs(request.param) / "volume", "4k")


def make_stub(lab: Lab, name: str = "f") -> None:
    lab.put(name, content())
    lab.optimize()
    assert lab.stub(name) is not None


def present(fd: int) -> list[tuple[int, int]]:
    return list(data_ranges(fd, 0, os.fstat(fd).st_size))


@st.composite
def operations(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    """(operation, offset or size, length), with edges near those of blocks."""
    near = st.builds(
        lambda block, delta: max(0, block * BLOCK + delta),
        st.integers(0, 48),
        st.one_of(st.just(0), st.integers(-3, 3), st.integers(0, BLOCK)),
    )
    lengths = st.one_of(st.integers(1, 10), st.just(BLOCK), st.integers(1, 5 * BLOCK))
    kinds = st.sampled_from(["write"] * 5 + ["punch"] * 3 + ["allocate", "truncate", "reopen"])
    return draw(st.lists(st.tuples(kinds, near, lengths), min_size=1, max_size=25))


def test_a_stub_reads_and_writes_like_a_file(lab: Lab) -> None:
    names: list[str] = []

    @settings(max_examples=40)
    @given(operations())
    def check(steps: list[tuple[str, int, int]]) -> None:
        if not names:
            # One run of the job makes stubs for many examples.
            names.extend(f"f{number}" for number in range(50))
            for name in names:
                lab.put(name, content())
            lab.optimize()
        name = names.pop()
        model = bytearray(content())
        one = Sparse(lab, name)
        try:
            for number, (kind, offset, length) in enumerate(steps):
                if kind == "write":
                    data = noise(length, number)
                    assert one.write(offset, data) == length
                    model.extend(bytes(max(0, offset - len(model))))
                    model[offset : offset + length] = data
                elif kind == "truncate":
                    one.truncate(offset)
                    del model[offset:]
                    model.extend(bytes(offset - len(model)))
                elif kind == "allocate":
                    one.change_range(kind, offset, offset + length)
                    model.extend(bytes(max(0, offset + length - len(model))))
                elif kind == "punch":
                    one.change_range(kind, offset, offset + 4 * length)
                    end = min(len(model), offset + 4 * length)
                    model[offset:end] = bytes(max(0, end - offset))
                elif not one.is_plain:
                    one.close()
                    one = Sparse(lab, name)
                for low, high in missing_ranges(one.parts(), 0, len(model)):
                    assert not any(model[low:high]), "data in a hole"
                assert os.fstat(one.fd).st_size == len(model)
                start, end = max(0, offset - BLOCK), offset + length + BLOCK
                assert one.read(start, end - start) == model[start:end]
            assert one.read(0, len(model) + 1) == model
        finally:
            one.close()
        assert lab.read(name) == model
        os.unlink(lab.data / name)

    check()


def test_a_write_takes_only_the_blocks_that_it_touches(lab: Lab) -> None:
    make_stub(lab)
    with sparse(lab) as one:
        one.write(5 * BLOCK + 10, b"x")
        one.write(9 * BLOCK - 1, b"yy")
        assert present(one.fd) == [(5 * BLOCK, 6 * BLOCK), (8 * BLOCK, 10 * BLOCK)]


def test_the_store_is_not_written_by_a_users_write(lab: Lab) -> None:
    make_stub(lab)
    before = {path: path.read_bytes() for path in (lab.base / "store").rglob("*.*")}
    with sparse(lab) as one:
        one.write(1234, noise(100_000))
        one.truncate(50_000)
    assert {path: path.read_bytes() for path in (lab.base / "store").rglob("*.*")} == before


def test_what_was_cut_off_never_comes_back(lab: Lab) -> None:
    make_stub(lab)
    with sparse(lab) as one:
        one.truncate(3 * BLOCK + 77)
        one.truncate(SIZE)
        assert one.read(0, SIZE) == content()[: 3 * BLOCK + 77].ljust(SIZE, b"\0")


@pytest.mark.parametrize("kind", ["truncate", "allocate"])
def test_a_stub_that_grows_again_still_knows_its_own_blocks(lab: Lab, kind: str) -> None:
    """btrfs makes a block of zeros where the file has ended, which the attribute did not count."""
    make_stub(lab)
    with sparse(lab) as one:
        one.truncate(SIZE + 3 * BLOCK)
        os.fsync(one.fd)
        assert one.stub.seal()
        if kind == "truncate":
            one.truncate(SIZE + 9 * BLOCK)
        else:
            one.change_range(kind, SIZE + 6 * BLOCK, SIZE + 9 * BLOCK)
    lab.verify_clean()
    assert lab.read("f") == content().ljust(SIZE + 9 * BLOCK, b"\0")


def test_a_cut_that_the_attribute_missed_is_settled(lab: Lab) -> None:
    """A crash between the two steps of a truncation, and the file grows afterwards."""
    make_stub(lab)
    with open(lab.data / "f", "r+b") as file:
        file.truncate(3 * BLOCK + 77)
    assert lab.read("f") == content()[: 3 * BLOCK + 77]
    with sparse(lab) as one:
        one.truncate(SIZE)
        assert one.read(0, SIZE) == content()[: 3 * BLOCK + 77].ljust(SIZE, b"\0")
    assert lab.read("f") == content()[: 3 * BLOCK + 77].ljust(SIZE, b"\0")


def test_a_stub_that_is_emptied_is_plain(lab: Lab) -> None:
    make_stub(lab)
    with sparse(lab) as one:
        one.truncate(0)
        assert one.is_plain
    assert lab.stub("f") is None


def test_blocks_that_were_never_written_are_holes(lab: Lab) -> None:
    """What a power cut leaves between the allocation and the write of blocks."""
    make_stub(lab)
    with opened(os.open(lab.data / "f", os.O_RDWR)) as fd:
        native.system.fallocate_keep_size(fd, 2 * BLOCK, 6 * BLOCK)
        os.pwrite(fd, b"n" * BLOCK, 4 * BLOCK)
        os.fsync(fd)
        assert has_unwritten(fd, SIZE)
        # Whoever reads them puts pages into the cache, and SEEK_DATA would take them for data.
        os.pread(fd, SIZE, 0)
    expected = bytearray(content())
    expected[4 * BLOCK : 5 * BLOCK] = b"n" * BLOCK
    with sparse(lab) as one:
        assert present(one.fd) == [(4 * BLOCK, 5 * BLOCK)]
        assert one.read(0, SIZE) == expected
    assert lab.read("f") == expected


def test_blocks_that_are_being_written_are_not_holes(lab: Lab) -> None:
    """ext4 and XFS enter them as unwritten until they are on disk, whoever waits for that."""
    fd = os.open(lab.data / "f", os.O_RDWR | os.O_CREAT)
    data = noise(1 << 20)
    with opened(fd):
        for turn in range(8):
            for at in range(0, 32 << 20, len(data)):
                os.pwrite(fd, data, turn * BLOCK + at)
            start_writing_back(fd)
            drop_unwritten(fd, os.fstat(fd).st_size, LazyDisk())
            for at in range(0, 32 << 20, len(data)):
                assert os.pread(fd, len(data), turn * BLOCK + at) == data
            os.ftruncate(fd, 0)


def give_extents_a_size(directory: Path, size_bytes: int) -> None:
    """Files made in it get their blocks in pieces, as those that ``qemu-img`` makes on XFS."""
    get, put, inherited = 0x801C_581F, 0x401C_5820, 0x1000
    attributes = bytearray(28)
    with opened(os.open(directory, os.O_RDONLY)) as fd:
        fcntl.ioctl(fd, get, attributes)
        flags, _, *others = struct.unpack("<IIIII8x", attributes)
        fcntl.ioctl(fd, put, struct.pack("<IIIII8x", flags | inherited, size_bytes, *others))


EXTENT = 64 * BLOCK


@pytest.mark.parametrize(
    ("offset", "length"),
    [
        (70 * BLOCK, BLOCK),
        (70 * BLOCK + 7, 10),
        (127 * BLOCK, 2 * BLOCK),
        (60 * BLOCK, 140 * BLOCK),
        (EXTENT * 4 + 100, BLOCK),
        (EXTENT * 4 + 20 * BLOCK, BLOCK),
    ],
)
@pytest.mark.parametrize("is_full", [False, True])
def test_blocks_allocated_beside_a_write_are_holes(
    loop_fs: MakeFileSystem, offset: int, length: int, is_full: bool
) -> None:
    """A file whose extents have a size of their own, and a kernel that reads ahead into them."""
    lab = new_lab(loop_fs("xfs") / "volume", "4k")
    (lab.data / "images").mkdir()
    give_extents_a_size(lab.data / "images", EXTENT)
    model = bytearray(noise(EXTENT * 4 + 100, 2))
    lab.put("images/f", model)
    lab.optimize()
    disk = ShortDisk()
    with sparse(lab, "images/f", disk) as one:
        one.write(200 * BLOCK, b"before")
        model[200 * BLOCK : 200 * BLOCK + 6] = b"before"
        disk.allowed = BLOCK if is_full else None
        try:
            written = one.write(offset, noise(length, 4))
        except NoSpace:
            written = 0
        disk.allowed = None
        model.extend(bytes(max(0, offset + written - len(model)) if written else 0))
        model[offset : offset + written] = noise(length, 4)[:written]
        os.pread(one.fd, len(model), 0)
        assert one.read(0, len(model) + 1) == model
    assert lab.read("images/f") == model


def test_a_restore_without_room_leaves_no_blocks_beside_those_it_filled(
    loop_fs: MakeFileSystem,
) -> None:
    lab = new_lab(loop_fs("xfs") / "volume", "4k")
    (lab.data / "images").mkdir()
    give_extents_a_size(lab.data / "images", EXTENT)
    model = bytearray(noise(EXTENT * 4, 2))
    model[10 * BLOCK : 60 * BLOCK] = bytes(50 * BLOCK)
    lab.put("images/f", model)
    lab.optimize()
    disk = FullDisk()
    with sparse(lab, "images/f", disk) as one:
        one.write(200 * BLOCK, b"before")
        model[200 * BLOCK : 200 * BLOCK + 6] = b"before"
        disk.room = 12 * BLOCK
        with pytest.raises(NoSpace):
            fill_plain(one)
        os.pread(one.fd, len(model), 0)
        assert one.read(0, len(model)) == model
    assert lab.read("images/f") == model


def fill_plain(one: Sparse) -> None:
    files = one.volume.stub_files
    make_plain(StubFill(one.stub, lambda _: one.stub.content, files, lambda _: None), lambda: None)


def clone(source: Path, target: Path) -> None:
    """``cp --reflink``."""
    with open(source, "rb") as old, open(target, "wb") as new:
        fcntl.ioctl(new.fileno(), 0x4004_9409, old.fileno())


def test_blocks_reserved_for_copies_of_shared_ones_are_holes(loop_fs: MakeFileSystem) -> None:
    """A clone that is written to, and becomes a stub while XFS has blocks in store for more."""
    lab = new_lab(loop_fs("xfs") / "volume", "4k")
    lab.set_policy('min_age = "0s"\nmin_size = 1\nshared_extents = "take"\n')
    model = bytearray(noise(EXTENT, 2))
    clone(lab.put("original", model), lab.data / "f")
    with open(lab.data / "f", "r+b") as file:
        file.seek(10 * BLOCK)
        model[10 * BLOCK : 11 * BLOCK] = noise(BLOCK, 10)
        file.write(noise(BLOCK, 10))
    lab.optimize()
    with sparse(lab, "f") as one:
        os.pread(one.fd, len(model), 0)
        assert one.read(0, len(model)) == model
        one.write(12 * BLOCK, noise(BLOCK, 12))
        model[12 * BLOCK : 13 * BLOCK] = noise(BLOCK, 12)
        os.pread(one.fd, len(model), 0)
        assert one.read(0, len(model)) == model
    assert lab.read("f") == model


def test_a_stub_whose_own_blocks_were_cloned_is_written_and_made_plain(
    loop_fs: MakeFileSystem,
) -> None:
    lab = new_lab(loop_fs("xfs") / "volume", "4k")
    model = bytearray(noise(EXTENT, 2))
    lab.put("f", model)
    lab.optimize()
    with sparse(lab, "f") as one:
        for seed in (3, 4):
            one.write(20 * BLOCK, noise(BLOCK, seed))
            model[20 * BLOCK : 21 * BLOCK] = noise(BLOCK, seed)
            clone(lab.data / "f", lab.root / "backup")
        os.pread(one.fd, len(model), 0)
        assert one.read(0, len(model)) == model
        fill_plain(one)
    assert (lab.data / "f").read_bytes() == model


def start_writing_back(fd: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    nothing = ctypes.c_longlong(0)
    sync_file_range_write = 2
    assert libc.sync_file_range(fd, nothing, nothing, sync_file_range_write) == 0


@pytest.mark.parametrize("kind", ["xfs", "btrfs"])
def test_a_stub_does_not_grow_beyond_what_its_last_block_has_room_for(
    loop_fs: MakeFileSystem, kind: str
) -> None:
    lab = new_lab(loop_fs(kind) / "volume", "4k")
    make_stub(lab)
    longest = (1 << 63) - (64 << 10)
    with sparse(lab) as one:
        for grow in (lambda: one.write(longest, b"x"), lambda: one.truncate(longest + 1)):
            with pytest.raises(OSError, match="too large") as caught:
                grow()
            assert caught.value.errno == errno.EFBIG
        one.write(longest - 1, b"x")
        assert one.read(longest - 2, 10) == b"\0x"
        assert one.read(0, SIZE) == content()


# --- a full disk ------------------------------------------------------------------------------


def fill_up(directory: Path, leave: int) -> None:
    """Leave about so many bytes free."""
    with open(directory / "filler", "wb") as file:
        try:
            while True:
                info = os.statvfs(directory)
                free = info.f_bavail * info.f_frsize - leave
                if free <= 0:
                    break
                file.write(noise(1 << 20)[: max(BLOCK, min(free, 1 << 20))])
                file.flush()
        except OSError as error:
            assert error.errno == errno.ENOSPC
        os.fsync(file.fileno())


@pytest.mark.parametrize("kind", FILE_SYSTEMS)
def test_a_full_disk_fails_the_write_and_damages_nothing(
    loop_fs: MakeFileSystem, kind: str
) -> None:
    point = loop_fs(kind, "300M" if kind == "xfs" else "128M")
    lab = new_lab(point / "volume", "4k")
    data = noise(16 << 20, 3)
    lab.put("f", data)
    lab.optimize()
    fill_up(point, 40 * BLOCK)
    model = bytearray(data)
    rng = random.Random(1)
    failures = 0
    with sparse(lab) as one:
        for _ in range(3000):
            offset = rng.randrange(len(model) - 70_000)
            piece = rng.randbytes(rng.choice([1, 100, BLOCK, 70_000]))
            try:
                written = one.write(offset, piece)
            except NoSpace:
                written, failures = 0, failures + 1
            except OSError as error:
                assert error.errno == errno.ENOSPC
                written, failures = 0, failures + 1
            model[offset : offset + written] = piece[:written]
            if failures > 60:
                break
        assert failures > 0, "never full"
        assert one.read(0, len(model)) == model
    assert lab.read("f") == model


class StubbornDisk(Disk):
    """One that runs out of room in the middle of a write, and takes no blocks back then, as XFS
    does where it has none left for the change."""

    def __init__(self) -> None:
        self.is_full = False
        self.allocations = 0

    def allocate(self, fd: int, offset: int, length: int) -> None:
        self.allocations += 1
        if self.is_full and self.allocations > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().allocate(fd, offset, length)

    def punch(self, fd: int, offset: int, length: int) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().punch(fd, offset, length)


def test_blocks_that_a_failed_write_leaves_are_holes(lab: Lab) -> None:
    make_stub(lab)
    model, disk = bytearray(content()), StubbornDisk()
    with sparse(lab, disk=disk) as one:
        one.write(10 * BLOCK, b"m" * BLOCK)
        model[10 * BLOCK : 11 * BLOCK] = b"m" * BLOCK
        os.fsync(one.fd)
        disk.allocations, disk.is_full = 0, True
        with pytest.raises(OSError):
            one.write(5 * BLOCK, b"n" * 10 * BLOCK)
        os.pread(one.fd, SIZE, 0)
        assert one.read(0, SIZE) == model
        disk.is_full = False
        one.write(6 * BLOCK + 5, b"part")
        model[6 * BLOCK + 5 : 6 * BLOCK + 9] = b"part"
        os.pread(one.fd, SIZE, 0)
        assert one.read(0, SIZE) == model
    assert lab.read("f") == model


class ShortDisk(Disk):
    """Writes only a part of what it is given once, then has no space."""

    def __init__(self) -> None:
        self.allowed: int | None = None

    def write_some(self, fd: int, data: object, offset: int) -> int:
        parts = [bytes(part) for part in data]  # type: ignore[attr-defined]
        if self.allowed is None:
            return super().write_some(fd, parts, offset)
        if self.allowed == 0:
            raise OSError(errno.ENOSPC, "no space")
        return super().write_some(fd, [b"".join(parts)[: self.allowed]], offset)


@pytest.mark.parametrize("allowed", [0, 1, 500, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7])
@pytest.mark.parametrize("offset", [5 * BLOCK + 100, 5 * BLOCK, SIZE - 100, SIZE + 3 * BLOCK])
def test_a_write_that_is_cut_short_leaves_whole_blocks(
    tmp_path: Path, allowed: int, offset: int
) -> None:
    lab = new_lab(tmp_path / "volume", "4k")
    make_stub(lab)
    disk = ShortDisk()
    model = bytearray(content())
    piece = noise(4 * BLOCK, 8)
    with sparse(lab, disk=disk) as one:
        disk.allowed = allowed
        try:
            written = one.write(offset, piece)
        except (NoSpace, OSError):
            written = 0
        disk.allowed = None
        if written:
            model.extend(bytes(max(0, offset - len(model))))
            model[offset : offset + written] = piece[:written]
        assert one.read(0, len(model) + 1)[: len(model)] == model
        assert os.fstat(one.fd).st_size == len(model)


@pytest.mark.parametrize("kind", ["allocate", "punch"])
def test_a_range_is_done_as_a_whole_or_the_change_fails(tmp_path: Path, kind: str) -> None:
    lab = new_lab(tmp_path / "volume", "4k")
    make_stub(lab)
    disk, end = ShortDisk(), 10 * BLOCK
    with sparse(lab, disk=disk) as one:
        disk.allowed = BLOCK  # of each write
        one.change_range(kind, 5 * BLOCK, end)
        disk.allowed = 0
        with pytest.raises(OSError) as caught:
            one.change_range(kind, end, end + BLOCK)
        assert caught.value.errno == errno.ENOSPC
        assert present(one.fd) == [(5 * BLOCK, end)]
        zeros = bytes(5 * BLOCK) if kind == "punch" else content()[5 * BLOCK : end]
        assert one.read(0, SIZE) == content()[: 5 * BLOCK] + zeros + content()[end:]
