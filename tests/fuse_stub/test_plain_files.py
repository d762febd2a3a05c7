"""Plain files through the mount: with few requests, and used as on the file system below."""

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fuse_requests import RequestCounter, request_counter
from tests.support.lab import noise
from tests.support.mounts import MountedLab, mounted_lab

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def lab(way: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MountedLab]:
    with mounted_lab(tmp_path_factory.mktemp("plain")) as lab:
        yield lab


@pytest.fixture
def counter(lab: MountedLab) -> Iterator[RequestCounter]:
    with request_counter(lab.view) as counter:
        yield counter


@pytest.fixture
def here(lab: MountedLab, request: pytest.FixtureRequest) -> Path:
    """A directory of its own for the test, which anybody may use."""
    name: str = request.node.name
    path = lab.view / name.replace("/", "_")[:200]
    path.mkdir()
    os.chmod(path, 0o777)
    return path


# --- requests that are not made ---------------------------------------------------------------


def test_what_is_cached_is_opened_and_read_without_a_request(
    counter: RequestCounter, here: Path
) -> None:
    (here / "f").write_bytes(b"content")
    for _ in range(2):
        (here / "f").read_bytes()
    counter.take()
    for _ in range(10):
        # As most programs do. Python's open() asks each file whether it is a terminal.
        fd = os.open(here / "f", os.O_RDONLY)
        assert os.read(fd, 100) == b"content"
        os.close(fd)
    assert counter.take() == {}


def test_what_was_written_is_read_without_a_request(counter: RequestCounter, here: Path) -> None:
    content = noise(1 << 20)
    fd = os.open(here / "f", os.O_CREAT | os.O_RDWR)
    try:
        for start in range(0, len(content), 1 << 16):
            os.pwrite(fd, content[start : start + (1 << 16)], start)
            os.fstat(fd)
        counter.take()
        assert os.pread(fd, len(content), 0) == content
        assert counter.take()["READ"] == 0
    finally:
        os.close(fd)


def test_a_directory_is_listed_again_without_a_request(counter: RequestCounter, here: Path) -> None:
    for n in range(10):
        (here / str(n)).touch()
    for _ in range(2):
        subprocess.run(["ls", "-l", here], check=True, capture_output=True)
    counter.take()
    subprocess.run(["ls", "-l", here], check=True, capture_output=True)
    assert counter.take().total() <= 3  # of the directory, and none of its files


def test_an_open_that_truncates_truncates(here: Path) -> None:
    path = here / "f"
    path.write_bytes(b"long content")
    for content in (b"new", b"", b"longer than before"):
        path.write_bytes(content)
        assert path.read_bytes() == content


# --- what is open is not known ----------------------------------------------------------------


@pytest.mark.parametrize("how", ["unlink", "replace"])
def test_a_file_without_a_name_lives_as_long_as_somebody_has_it(here: Path, how: str) -> None:
    path = here / "f"
    content = noise(1 << 20)
    path.write_bytes(content)
    with open(path, "r+b", buffering=0) as file, mmap.mmap(file.fileno(), 0) as mapping:
        if how == "unlink":
            path.unlink()
        else:
            (here / "g").write_bytes(b"other")
            (here / "g").rename(path)
        # So that nothing comes from the cache of the kernel.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert file.read() == content
        file.seek(0)
        file.write(b"changed")
        os.fsync(file.fileno())
        assert mapping[:7] == b"changed" and mapping[7:] == content[7:]
        assert os.fstat(file.fileno()).st_nlink == 0


def test_a_program_runs_on_after_it_is_removed(here: Path) -> None:
    program = here / "sleep"
    program.write_bytes(Path("/bin/sleep").read_bytes())
    program.chmod(0o755)
    with subprocess.Popen([program, "0.3"]) as running:
        program.unlink()
        assert running.wait() == 0


def test_holes_are_made_and_found(here: Path) -> None:
    path = here / "f"
    path.write_bytes(noise(64 << 10))
    with open(path, "r+b") as file:
        os.posix_fallocate(file.fileno(), 0, 128 << 10)
        assert path.stat().st_size == 128 << 10
        subprocess.run(
            ["fallocate", "--punch-hole", "--offset", "8K", "--length", "8K", path], check=True
        )
        assert os.lseek(file.fileno(), 0, os.SEEK_HOLE) == 8 << 10
        assert os.lseek(file.fileno(), 8 << 10, os.SEEK_DATA) == 16 << 10
        assert path.read_bytes()[8 << 10 : 16 << 10] == bytes(8 << 10)


def test_a_copy_goes_by_one_request(counter: RequestCounter, here: Path) -> None:
    content = noise(1 << 20)
    (here / "f").write_bytes(content)
    with open(here / "f", "rb") as source, open(here / "g", "wb") as target:
        counter.take()
        assert os.copy_file_range(source.fileno(), target.fileno(), len(content)) == len(content)
        assert counter.take()["WRITE"] == 0
    assert (here / "g").read_bytes() == content


def test_many_clients_at_once_see_their_own_changes(here: Path) -> None:
    script = (
        "import os, sys\n"
        "base = sys.argv[1]\n"
        "os.mkdir(base)\n"
        "for n in range(200):\n"
        "    path = f'{base}/{n}'\n"
        "    with open(path, 'wb') as file: file.write(b'x' * n)\n"
        "    assert os.stat(path).st_size == n\n"
        "    os.rename(path, path + '.new')\n"
        "    assert not os.path.exists(path)\n"
        "    if n % 2: os.unlink(path + '.new')\n"
        "assert len(os.listdir(base)) == 100\n"
    )
    clients = [subprocess.Popen([sys.executable, "-c", script, here / str(n)]) for n in range(6)]
    assert [client.wait() for client in clients] == [0] * 6
