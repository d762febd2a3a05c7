"""The main path of a volume: set up, mounted, optimized, read, written, collected and checked."""

import errno
import mmap
import os
import platform
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import MakeFileSystem
from tests.support.lab import fill_to_the_brim, noise, prose, run_cli
from tests.support.mounts import MountedLab, mounted_lab
from tests.support.service import eventually
from tests.support.upkeep import scrub
from tests.support.ways import DEVICE, RING, WAY, has_ring
from tests.vm.guest.kernel_features import lacks

KINDS = ["ext4", "xfs", "btrfs"]
LENGTH = 300_000
BLOCKS_OF_A_STUB = 16
"""Fewer blocks of 512 bytes than any of the files here takes while it is plain."""


@pytest.fixture(params=[DEVICE, RING])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == RING and not has_ring():
        lacks(f"FUSE over io_uring ({platform.release()})")
    monkeypatch.setenv(WAY, request.param)
    return str(request.param)


@pytest.fixture(params=KINDS)
def lab(
    request: pytest.FixtureRequest, loop_fs: MakeFileSystem, transport: str
) -> Iterator[MountedLab]:
    with mounted_lab(loop_fs(request.param)) as lab:
        yield lab
        lab.unmount()
        lab.verify_clean()


def _run(*arguments: str | Path) -> None:
    done = run_cli(*arguments)
    assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"


def test_the_program_takes_a_volume_through_its_life(loop_fs: MakeFileSystem) -> None:
    root = loop_fs() / "share"
    root.mkdir()
    contents = {"a": prose(300_000), "b": prose(300_000), "c": noise(200_000), "d": bytes(99_999)}
    for name, content in contents.items():
        (root / name).write_bytes(content)

    def read() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in root.iterdir()}

    _run("enable", root)
    try:
        _run("run", "optimize", root, "--min-age", "0s")
        assert max((root / name).stat().st_blocks for name in "ab") < BLOCKS_OF_A_STUB
        assert read() == contents
        with open(root / "a", "r+b") as file:
            file.seek(123_456)
            file.write(b"an edit")
        contents["a"] = contents["a"][:123_456] + b"an edit" + contents["a"][123_463:]
        (root / "b").unlink()
        del contents["b"]
        _run("run", "gc", root)
        _run("run", "scrub", "--full", root)
        assert read() == contents
    finally:
        _run("unmount", root)
    _run("run", "verify", root)
    _run("disable", "--unoptimize", root)
    assert read() == contents


def test_stubs_are_read_and_written(lab: MountedLab) -> None:
    content = bytearray(prose(400_000) + noise(400_000))
    path = lab.make_stub("f", content)
    assert path.stat().st_blocks < BLOCKS_OF_A_STUB and path.read_bytes() == content
    with open(path, "r+b") as file:
        for at in (0, 70_000, 399_999, 799_990):
            os.pwrite(file.fileno(), b"edit", at)
            content[at : at + 4] = b"edit"
        os.fsync(file.fileno())
    assert path.read_bytes() == content
    lab.unmount()
    lab.mount()
    assert path.read_bytes() == content
    lab.optimize()
    lab.collect()
    lab.compact()
    assert scrub(lab.root).losses == []
    assert path.read_bytes() == content


def test_a_killed_mount_loses_nothing(lab: MountedLab) -> None:
    content = prose(300_000)
    path = lab.make_stub("f", content)
    with open(path, "r+b") as file:
        os.pwrite(file.fileno(), b"edit", 1000)
        os.fsync(file.fileno())
    lab.kill()
    lab.mount()
    assert path.read_bytes() == content[:1000] + b"edit" + content[1004:]


def _shows(read: Callable[[], bytes], content: bytes) -> bool:
    return read() == content


def _mapped(mapping: mmap.mmap) -> bytes:
    return mapping[:]


def test_a_refused_write_leaves_nothing_behind(lab: MountedLab) -> None:
    """Neither in the file nor in the cache of the kernel, which has copied it there."""
    contents = {"stub": noise(LENGTH), "hole": bytes(LENGTH)}
    lab.make_stub("stub", contents["stub"])
    (lab.view / "hole").touch()
    os.truncate(lab.view / "hole", LENGTH)
    fds = {name: os.open(lab.view / name, os.O_RDWR) for name in contents}
    mappings = {name: mmap.mmap(fd, LENGTH) for name, fd in fds.items()}
    assert {name: (lab.view / name).read_bytes() for name in contents} == contents
    assert {name: mapping[:] for name, mapping in mappings.items()} == contents
    fill_to_the_brim(lab.data / "ballast")
    for name, content in contents.items():
        for at, data in [(1_000, b"refused"), (LENGTH - 5_000, b"refused" * 10_000)]:
            with pytest.raises(OSError) as caught:
                os.pwrite(fds[name], data, at)
            assert caught.value.errno == errno.ENOSPC
        mapped = partial(_mapped, mappings[name])
        eventually(partial(_shows, mapped, content), f"{name}: the mapping")
        eventually(partial(_shows, (lab.view / name).read_bytes, content), name)
    (lab.data / "ballast").unlink()
    # Refused pages behind the end do not show when the file grows.
    for name, content in contents.items():
        os.pwrite(fds[name], b"end", 2 * LENGTH)
        grown = content + bytes(LENGTH) + b"end"
        eventually(partial(_shows, (lab.view / name).read_bytes, grown), f"{name}, grown")
        mappings[name].close()
        os.close(fds[name])
