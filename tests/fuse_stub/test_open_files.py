"""File content through the mount. Each test runs on a plain file and on a stub: nobody can tell."""

import errno
import fcntl
import mmap
import os
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.lab import RAW_SOCKETS, noise
from tests.support.mounts import MountedLab, mounted_lab

pytestmark = pytest.mark.root

KIB = 1 << 10
SIZE = 300 * KIB + 123
"""A few chunks, and no whole number of blocks."""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MountedLab]:
    with mounted_lab(tmp_path_factory.mktemp("files")) as lab:
        yield lab


@pytest.fixture(params=["plain", "stub"])
def path(lab: MountedLab, request: pytest.FixtureRequest) -> Path:
    """A file with the content of :func:`original`."""
    path: Path = lab.view / request.node.name.replace("/", "_")
    path.write_bytes(original())
    if request.param == "stub":
        lab.optimize()
    assert (lab.stub(path.name) is not None) == (request.param == "stub")
    return path


def original() -> bytes:
    return noise(SIZE, 7)


Change = Callable[[Path, bytearray], None]


def write_at(offset: int, length: int) -> Change:
    def change(path: Path, model: bytearray) -> None:
        data = noise(length, offset)
        with open(path, "r+b", buffering=0) as file:
            file.seek(offset)
            file.write(data)
        model.extend(bytes(max(0, offset - len(model))))
        model[offset : offset + length] = data

    return change


def truncate_to(size: int) -> Change:
    def change(path: Path, model: bytearray) -> None:
        os.truncate(path, size)
        del model[size:]
        model.extend(bytes(size - len(model)))

    return change


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param([], id="untouched"),
        pytest.param([write_at(0, 1)], id="first byte"),
        pytest.param([write_at(5000, 10)], id="inside a block"),
        pytest.param([write_at(4090, 12)], id="across two blocks"),
        pytest.param([write_at(4096, 8192)], id="whole blocks"),
        pytest.param([write_at(100, 200 * KIB)], id="many blocks"),
        pytest.param([write_at(SIZE - 5, 5)], id="the end"),
        pytest.param([write_at(SIZE - 5, 50)], id="over the end"),
        pytest.param([write_at(SIZE, 10)], id="appended"),
        pytest.param([write_at(SIZE + 10, 10)], id="just beyond the end"),
        pytest.param([write_at(SIZE + 50_000, 10)], id="far beyond the end"),
        pytest.param([truncate_to(0)], id="emptied"),
        pytest.param([truncate_to(8192)], id="cut at a block"),
        pytest.param([truncate_to(10_001)], id="cut inside a block"),
        pytest.param([truncate_to(SIZE + 9999)], id="extended"),
        pytest.param([truncate_to(10_001), truncate_to(SIZE)], id="cut and extended"),
        pytest.param([truncate_to(10_001), write_at(20_000, 5)], id="cut and written beyond"),
        pytest.param([truncate_to(10_001), write_at(10_001, 5)], id="cut and appended"),
        pytest.param([truncate_to(10_001), write_at(9_000, 5)], id="cut and written inside"),
        pytest.param([truncate_to(0), write_at(4096, 5)], id="emptied and written"),
        pytest.param([write_at(9000, 100), truncate_to(9050)], id="written and cut inside it"),
        pytest.param([write_at(0, SIZE)], id="rewritten whole"),
    ],
)
def test_changes_show_and_last(lab: MountedLab, path: Path, changes: list[Change]) -> None:
    model = bytearray(original())
    for change in changes:
        change(path, model)
        assert path.stat().st_size == len(model)
        assert path.read_bytes() == model
    assert lab.read(path.name) == model, "seen from below"
    lab.optimize()
    assert path.read_bytes() == model


def test_many_small_writes_and_reads_in_one_handle(path: Path) -> None:
    model = bytearray(original())
    with open(path, "r+b", buffering=0) as file:
        for step in range(300):
            offset = step * 7919 % (SIZE + 20_000)
            write_at_fd(file.fileno(), model, offset, noise(step * 31 % 9000 + 1, step))
            begin = step * 104_729 % SIZE
            assert os.pread(file.fileno(), 5000, begin) == model[begin : begin + 5000]
    assert path.read_bytes() == model


def write_at_fd(fd: int, model: bytearray, offset: int, data: bytes) -> None:
    assert os.pwrite(fd, data, offset) == len(data)
    model.extend(bytes(max(0, offset - len(model))))
    model[offset : offset + len(data)] = data


def test_open_for_writing_empties_a_file_where_it_is_asked_to(path: Path) -> None:
    path.write_bytes(b"short")
    assert path.read_bytes() == b"short"
    path.write_bytes(original())
    assert path.read_bytes() == original()


def test_append_goes_to_the_end_beside_other_writers(path: Path) -> None:
    with open(path, "ab", buffering=0) as one, open(path, "ab", buffering=0) as two:
        one.write(b"one")
        two.write(b"two")
        one.write(b"three")
    assert path.read_bytes() == original() + b"onetwothree"


def test_a_mapping_reads_and_writes(path: Path) -> None:
    model = bytearray(original())
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
        assert mapping[70_000:70_100] == model[70_000:70_100]
        mapping[100_000:100_010] = model[100_000:100_010] = b"0123456789"
        mapping[:3] = model[:3] = b"abc"
        mapping.flush()
        assert path.read_bytes() == model
        mapping[-3:] = model[-3:] = b"xyz"
    assert path.read_bytes() == model


def test_a_private_mapping_changes_nothing(path: Path) -> None:
    with (
        open(path, "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapping,
    ):
        mapping[:100] = bytes(100)
    assert path.read_bytes() == original()


def test_a_program_can_be_run(lab: MountedLab, path: Path) -> None:
    path.write_bytes(Path("/bin/true").read_bytes())
    os.chmod(path, 0o755)
    lab.optimize()
    assert os.spawnv(os.P_WAIT, path, ["true"]) == 0


def test_an_open_file_lives_on_after_its_last_name_is_gone(path: Path) -> None:
    model = bytearray(original())
    with open(path, "r+b", buffering=0) as file:
        path.unlink()
        assert os.fstat(file.fileno()).st_nlink == 0
        write_at_fd(file.fileno(), model, 5000, b"after the unlink")
        os.ftruncate(file.fileno(), 200_001)
        del model[200_001:]
        assert os.pread(file.fileno(), SIZE, 0) == model
        os.fchmod(file.fileno(), 0o600)
        os.fsync(file.fileno())
    assert not path.exists()


def test_hard_links_are_one_file(path: Path) -> None:
    other = path.with_name(path.name + " link")
    os.link(path, other)
    model = bytearray(original())
    write_at(10_000, 100)(other, model)
    assert path.read_bytes() == model
    path.unlink()
    assert other.read_bytes() == model


def test_a_file_moves_with_its_content(path: Path) -> None:
    other = path.with_name(path.name + " moved")
    with open(path, "rb") as file:
        os.rename(path, other)
        assert file.read() == original()
    assert other.read_bytes() == original()


def test_saving_by_rename_replaces_the_content(path: Path) -> None:
    fresh = path.with_name(path.name + ".tmp")
    fresh.write_bytes(b"new" * 50_000)
    with open(path, "rb") as old:
        os.rename(fresh, path)
        assert old.read() == original()
    assert path.read_bytes() == b"new" * 50_000


def test_metadata_changes_leave_the_content(path: Path) -> None:
    os.chmod(path, 0o640)
    os.chown(path, 1234, 4321)
    os.utime(path, ns=(1, 1_500_000_000_123_456_789))
    os.setxattr(path, "user.note", b"x")
    status = path.stat()
    assert (status.st_mode & 0o777, status.st_uid, status.st_gid) == (0o640, 1234, 4321)
    assert status.st_mtime_ns == 1_500_000_000_123_456_789
    assert path.read_bytes() == original()


def test_reading_leaves_the_modification_time_and_writing_moves_it(path: Path) -> None:
    old = 1_500_000_000_123_456_789
    os.utime(path, ns=(old, old))
    path.read_bytes()
    assert path.stat().st_mtime_ns == old
    with open(path, "r+b") as file:
        file.write(b"x")
    assert path.stat().st_mtime_ns > old


def test_reading_moves_an_access_time_that_is_older_than_the_modification(path: Path) -> None:
    old = 1_400_000_000_000_000_000
    os.utime(path, ns=(old, old + 1))
    path.read_bytes()
    assert path.stat().st_atime_ns > old + 1


def test_locks_exclude_each_other(path: Path) -> None:
    with open(path, "r+b") as one, open(path, "r+b") as two:
        fcntl.flock(one, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError):
            fcntl.flock(two, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(one, fcntl.LOCK_UN)
        fcntl.flock(two, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.lockf(one, fcntl.LOCK_EX, 100, 50)


def test_direct_io_reads_and_writes(path: Path) -> None:
    fd = os.open(path, os.O_RDWR | os.O_DIRECT)
    try:
        buffer = mmap.mmap(-1, 8192)
        assert os.preadv(fd, [buffer], 4096) == 8192
        assert buffer[:] == original()[4096 : 4096 + 8192]
        buffer[:] = noise(8192, 99)
        assert os.pwritev(fd, [buffer], 65_536) == 8192
    finally:
        os.close(fd)
    expected = original()[:65_536] + noise(8192, 99) + original()[65_536 + 8192 :]
    assert path.read_bytes() == expected


def test_a_file_without_rights_cannot_be_read_by_its_hole(path: Path) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        with pytest.raises(OSError) as caught:
            os.read(fd, 1)
        assert caught.value.errno == errno.EBADF
        os.pwrite(fd, b"write only", 9_999)
    finally:
        os.close(fd)
    assert path.read_bytes() == original()[:9_999] + b"write only" + original()[10_009:]


def test_readers_and_writers_at_once_see_whole_blocks(path: Path) -> None:
    """Each block holds one byte value at any time; a reader never sees the old content again."""
    blocks = 64
    failures: list[str] = []
    done = threading.Event()

    def read() -> None:
        seen = [False] * blocks
        with open(path, "rb", buffering=0) as file:
            while not done.is_set():
                for block in range(blocks):
                    data = os.pread(file.fileno(), 4096, block * 4096)
                    fresh = data == data[:1] * 4096
                    was = original()[block * 4096 : (block + 1) * 4096]
                    if not fresh and (data != was or seen[block]):
                        failures.append(f"block {block}")
                        return
                    seen[block] = seen[block] or fresh

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    with open(path, "r+b", buffering=0) as file:
        for round_ in range(1, 4):
            for block in range(blocks):
                os.pwrite(file.fileno(), bytes([round_]) * 4096, block * 4096)
    done.set()
    for reader in readers:
        reader.join()
    assert failures == []
    assert path.read_bytes() == bytes([3]) * (blocks * 4096) + original()[blocks * 4096 :]


def test_a_sparse_file_stays_sparse(lab: MountedLab) -> None:
    path = lab.view / "sparse"
    with open(path, "wb") as file:
        file.write(b"begin")
        file.seek(1 << 40)
        file.write(b"end")
    assert path.stat().st_size == (1 << 40) + 3
    assert path.stat().st_blocks < 100
    with open(path, "rb") as file:
        assert file.read(10) == b"begin" + bytes(5)
        file.seek((1 << 40) - 5)
        assert file.read() == bytes(5) + b"end"
    path.unlink()


def test_posix_fallocate_makes_room(lab: MountedLab) -> None:
    path = lab.view / "allocated"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.posix_fallocate(fd, 0, 100_000)
        assert os.fstat(fd).st_size == 100_000
    finally:
        os.close(fd)
    assert path.read_bytes() == bytes(100_000)


def test_a_write_takes_a_capability_away_that_came_after_the_first_write(lab: MountedLab) -> None:
    path = lab.view / "f"
    value = struct.pack("<IIIII", 0x0200_0001, 1 << 10, 0, 0, 0)
    with open(path, "wb", buffering=0) as file:
        file.write(b"one")
        os.setxattr(path, "security.capability", value)
        assert os.getxattr(path, "security.capability") == value
        file.write(b"two")
        assert "security.capability" not in os.listxattr(path)


def test_a_stub_keeps_new_capabilities_when_it_is_made_plain(
    lab: MountedLab,
) -> None:
    content = noise(100_000)
    path = lab.make_stub("capable", content)
    os.setxattr(path, "security.capability", RAW_SOCKETS)
    with lab.client() as client:
        assert not client.call("fill_begin", path="capable")["is_plain"]
        assert client.call("fill")["is_plain"]
    assert lab.stub("capable") is None
    assert path.read_bytes() == content
    assert os.getxattr(path, "security.capability") == RAW_SOCKETS
    lab.optimize()
    assert os.getxattr(path, "security.capability") == RAW_SOCKETS
