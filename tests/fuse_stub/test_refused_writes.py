"""A write that is refused leaves nothing behind: neither in the file nor in the kernel's cache."""

import errno
import mmap
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from dedupd_core.system.files import opened
from tests.conftest import MakeFileSystem
from tests.support.lab import fill_to_the_brim, noise
from tests.support.mounts import DEAD, MountedLab, end, mounted_lab
from tests.support.service import eventually

pytestmark = pytest.mark.root

CONTENT = noise(200_000)
HOLE = bytes(200_000)
PAGE = 4096

KINDS = ["hole", "stub"]
"""Native code refuses a write to a hole of a plain file, and Python the first one to a stub."""


@pytest.fixture
def lab(loop_fs: MakeFileSystem) -> Iterator[MountedLab]:
    with mounted_lab(loop_fs("ext4", "64M")) as lab:
        lab.set_policy('min_age = "0s"\nmin_size = "1"\nreserve = 0\n')
        yield lab


def made(lab: MountedLab, kind: str) -> tuple[Path, bytes]:
    """A file that has no blocks, and its content. The disk is full."""
    if kind == "stub":
        path, content = lab.make_stub("f", CONTENT), CONTENT
    else:
        path, content = lab.view / "f", HOLE
        path.touch()
        os.truncate(path, len(content))
    fill_to_the_brim(lab.data / "ballast")
    return path, content


@contextmanager
def opened_by_one_of_many(path: Path) -> Iterator[int]:
    """A close reports what the mapping of another program has lost."""
    fd = os.open(path, os.O_RDWR)
    try:
        yield fd
    finally:
        with suppress(OSError):
            os.close(fd)


def refuse(path: Path, at: int, data: bytes = b"refused") -> None:
    with opened_by_one_of_many(path) as fd:
        with pytest.raises(OSError) as caught:
            os.pwrite(fd, data, at)
        assert caught.value.errno == errno.ENOSPC


@contextmanager
def mapped(path: Path) -> Iterator[mmap.mmap]:
    with opened_by_one_of_many(path) as fd:
        bytes_ = mmap.mmap(fd, 0)
    with bytes_:
        yield bytes_


def requests(lab: MountedLab) -> int:
    found = lab.status()["requests"]
    assert isinstance(found, int)
    return found


def wait_for_rest(lab: MountedLab) -> None:
    """Until the kernel sends no requests."""
    last: list[int] = []

    def rests() -> bool:
        last.append(requests(lab))
        return len(last) >= 5 and len(set(last[-5:])) == 1

    eventually(rests, "the kernel sends no requests")


@pytest.mark.parametrize("at", [0, 5_000, 131_000])
def test_what_was_read_before_is_read_again(lab: MountedLab, at: int) -> None:
    path = lab.make_stub("f", CONTENT)
    assert path.read_bytes() == CONTENT
    fill_to_the_brim(lab.data / "ballast")
    refuse(path, at)
    eventually(lambda: path.read_bytes() == CONTENT, "the bytes of the file")
    (lab.data / "ballast").unlink()


def test_the_end_of_a_file_stays(lab: MountedLab) -> None:
    path = lab.view / "f"
    path.write_bytes(CONTENT)
    assert path.read_bytes() == CONTENT
    fill_to_the_brim(lab.data / "ballast")
    with open(path, "r+b", buffering=0) as file:
        file.seek(0, os.SEEK_END)
        with pytest.raises(OSError):
            while True:
                file.write(bytes(1_000_003))
    assert path.read_bytes().rstrip(b"\0") == CONTENT.rstrip(b"\0")
    (lab.data / "ballast").unlink()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at", [0, 5_000, 20 * PAGE])
def test_a_mapping_shows_the_file_again(lab: MountedLab, kind: str, at: int) -> None:
    path, content = made(lab, kind)
    with mapped(path) as bytes_:
        assert bytes_[:] == content
        refuse(path, at, b"refused" * PAGE)
        eventually(lambda: bytes_[:] == content, "the bytes of the file")
    (lab.data / "ballast").unlink()


@pytest.mark.parametrize("kind", KINDS)
def test_a_refused_write_back_causes_no_further_one(lab: MountedLab, kind: str) -> None:
    """A page with refused bytes that a mapping changes, too, is written back once, and dropped."""
    path, content = made(lab, kind)
    with mapped(path) as bytes_:
        for _ in range(3):
            bytes_[0:1] = b"m"
            refuse(path, 100)
            eventually(lambda: bytes_[:] == content, "the bytes of the file")
            wait_for_rest(lab)
    (lab.data / "ballast").unlink()


@pytest.mark.parametrize("kind", KINDS)
def test_users_of_the_same_pages_go_on(lab: MountedLab, kind: str) -> None:
    path, content = made(lab, kind)
    has_ended = threading.Event()
    failures: list[object] = []

    def use(step: int) -> None:
        try:
            with mapped(path) as bytes_, opened_by_one_of_many(path) as fd:
                while not has_ended.is_set():
                    for at in range(0, len(content), 7 * PAGE):
                        if step == 0:
                            os.stat(path)
                            os.pread(fd, len(content), 0)
                        elif step == 1:
                            bytes_[at : at + 1] = b"m"
                        else:
                            assert len(bytes_[at : at + PAGE]) > 0
        except BaseException as error:
            failures.append(error)

    users = [threading.Thread(target=use, args=(step,)) for step in range(3)]
    for user in users:
        user.start()
    try:
        for round_ in range(150):
            refuse(path, round_ * PAGE % len(content), b"refused" * (PAGE // (1 + round_ % 7)))
    finally:
        has_ended.set()
        for user in users:
            user.join()
    assert not failures
    with opened_by_one_of_many(path) as fd:
        # What the mapping has written, and lost, may still show.
        eventually(lambda: b"refused" not in os.pread(fd, len(content), 0), "no refused bytes")
    lab.unmount()
    lab.mount()
    assert path.read_bytes() == content
    (lab.data / "ballast").unlink()


def test_a_refused_allocation_shows_the_length_that_it_leaves(lab: MountedLab) -> None:
    path = lab.view / "f"
    path.write_bytes(CONTENT)
    with opened(os.open(path, os.O_RDWR)) as fd:
        with pytest.raises(OSError) as caught:
            os.posix_fallocate(fd, 0, 1 << 30)
        assert caught.value.errno == errno.ENOSPC
        assert os.fstat(fd).st_size == (lab.data / "f").stat().st_size > len(CONTENT)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_mount_ends_while_it_refuses_writes(lab: MountedLab, number: int) -> None:
    path, content = made(lab, "hole")
    wrong: list[object] = []

    def write() -> None:
        try:
            with opened(os.open(path, os.O_RDWR)) as fd:
                while True:
                    os.pread(fd, len(content), 0)
                    try:
                        os.pwrite(fd, b"refused" * PAGE, 0)
                    except OSError as error:
                        if error.errno != errno.ENOSPC:
                            raise
        except OSError as error:
            if error.errno not in DEAD:
                wrong.append(error)
        except BaseException as error:
            wrong.append(error)

    writers = [threading.Thread(target=write) for _ in range(4)]
    for writer in writers:
        writer.start()
    before = requests(lab)
    eventually(lambda: requests(lab) > before + 100, "writes are refused")
    end(lab.pid, number)
    for writer in writers:
        writer.join()
    assert not wrong
    lab.mount()
    assert path.read_bytes() == content
    (lab.data / "ballast").unlink()
