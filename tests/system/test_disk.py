"""Writing much past the page cache, on real file systems."""

import errno
import os
import random
import shutil
from pathlib import Path

import pytest

from dedupd_core.errors import NoSpace
from dedupd_core.system import disk as disk_module
from dedupd_core.system import page_cache
from dedupd_core.system.disk import Disk
from dedupd_core.units import KIB, MIB
from tests.conftest import MakeFileSystem
from tests.support.lab import cached_pages, noise

WAYS = ["as the kernel can", "without the kernel's help"]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == WAYS[1]:
        monkeypatch.setattr(disk_module, "kernel_writes_uncached", lambda: False)
    return str(request.param)


@pytest.mark.root
@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs"])
def test_what_is_written_out_is_there(loop_fs: MakeFileSystem, kind: str, way: str) -> None:
    """Appended in pieces of any length, read by others at any time, and after it left the cache."""
    rng = random.Random(kind)
    path = loop_fs(kind) / "file"
    expected = bytearray(b"header")
    lengths = [1, 4095, 4096, 4097, 0, 5 * MIB + 3]
    lengths += [rng.choice([rng.randrange(9000), rng.randrange(3 * MIB)]) for _ in range(20)]
    with open(path, "w+b", buffering=0) as file:
        Disk().write_at(file.fileno(), [expected], 0)
        for number, length in enumerate(lengths):
            data = noise(length, number)
            Disk().write_out(file.fileno(), memoryview(data), len(expected))
            expected += data
            if number % 3 == 0:
                assert path.read_bytes() == expected
            if number % 4 == 0:
                Disk().sync_data(file.fileno())
        Disk().sync_data(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    assert path.read_bytes() == expected


@pytest.mark.root
@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_a_full_disk_is_told(loop_fs: MakeFileSystem, kind: str, way: str) -> None:
    path = loop_fs(kind, "320M") / "file"
    data = memoryview(noise(8 * MIB, 1))
    with open(path, "w+b", buffering=0) as file:
        with pytest.raises(NoSpace):
            for number in range(64):
                Disk().write_out(file.fileno(), data, number * len(data))
        Disk().truncate(file.fileno(), number * len(data))
        Disk().sync_data(file.fileno())
    assert path.stat().st_size == number * len(data)
    with open(path, "rb") as file:
        assert all(file.read(len(data)) == data for _ in range(number))


def test_a_file_system_that_cannot_do_it_is_written_to_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_module, "kernel_writes_uncached", lambda: True)
    refused = []
    write = os.pwritev

    def refusing(fd: int, views: list[memoryview], offset: int, flags: int = 0) -> int:
        if flags:
            refused.append(offset)
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return write(fd, views, offset)

    monkeypatch.setattr(os, "pwritev", refusing)
    data = noise(100 * KIB, 1)
    with open(tmp_path / "file", "w+b", buffering=0) as file:
        Disk().write_out(file.fileno(), memoryview(data), 5)
    assert refused == [5]
    assert (tmp_path / "file").read_bytes() == bytes(5) + data


@pytest.mark.root
def test_the_page_cache_is_left_to_users(loop_fs: MakeFileSystem) -> None:
    if shutil.which("fincore") is None:
        pytest.skip("fincore is not installed")
    if not page_cache.kernel_writes_uncached():
        pytest.skip("this kernel keeps what is written until it is clean")
    path = loop_fs("ext4") / "file"
    with open(path, "w+b", buffering=0) as file:
        for number in range(4):
            Disk().write_out(file.fileno(), memoryview(noise(4 * MIB + 100)), number * 4194404)
        Disk().sync_data(file.fileno())
    assert cached_pages(path) < 16 * MIB // 4096 // 10


@pytest.mark.parametrize(
    ("release", "does"),
    [("6.16.0", True), ("6.15.9-generic", False), ("7.0-rc1", True), ("5.10.0-28-amd64", False)],
)
def test_only_kernels_that_do_it_right_are_asked(
    release: str, does: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = os.uname()
    monkeypatch.setattr(
        os, "uname", lambda: os.uname_result((names[0], names[1], release, names[3], names[4]))
    )
    assert page_cache.kernel_writes_uncached.__wrapped__() is does
