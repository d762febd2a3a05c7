"""``SEEK_DATA`` and ``SEEK_HOLE`` see what a program has written through a shared mapping."""

import errno
import mmap
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dedupd_core.system.files import opened
from dedupd_core.units import KIB, MIB
from fuse_stub.kernel import page_worker
from tests.conftest import MakeFileSystem
from tests.fuse_stub.test_ranges import PUNCH, fallocate, parts
from tests.support.lab import noise
from tests.support.mounts import (
    ALICE,
    MountedLab,
    Nursery,
    as_user,
    mounted_lab,
    opened_pid,
    serve_for_test,
)
from tests.support.service import eventually

pytestmark = pytest.mark.root

BLOCK = 4096
HOLE = (256 * KIB, 768 * KIB)
CONTENT = noise(HOLE[0]) + bytes(HOLE[1] - HOLE[0]) + noise(256 * KIB, 1)
AT = 512 * KIB + 100
WRITTEN = b"through a mapping"

KINDS = ["plain", "stub"]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, way: str) -> Iterator[MountedLab]:
    with mounted_lab(tmp_path_factory.mktemp("mapped")) as lab:
        yield lab


@pytest.fixture
def lab(shared: MountedLab) -> Iterator[MountedLab]:
    """The same mount for all tests, empty at the start of each."""
    yield shared
    for path in shared.view.iterdir():
        path.unlink()


def made(lab: MountedLab, kind: str) -> Path:
    """A file with a hole."""
    if kind == "stub":
        return lab.make_stub("f", CONTENT)
    path = lab.view / "f"
    sparse(path)
    return path


def sparse(path: Path) -> None:
    with open(path, "wb") as file:
        file.write(CONTENT[: HOLE[0]])
        file.seek(HOLE[1])
        file.write(CONTENT[HOLE[1] :])


class Mapped:
    """A program that has a file mapped, and has neither synced nor closed it."""

    def __init__(self, path: Path) -> None:
        with opened(os.open(path, os.O_RDWR)) as fd:
            self.bytes = mmap.mmap(fd, 0)

    def __enter__(self) -> "Mapped":
        self.bytes[AT : AT + len(WRITTEN)] = WRITTEN
        return self

    def __exit__(self, *_: object) -> None:
        self.bytes.close()


def right() -> bytes:
    content = bytearray(CONTENT)
    content[AT : AT + len(WRITTEN)] = WRITTEN
    return bytes(content)


def holds_data(found: list[tuple[int, int]], start: int, end: int) -> bool:
    return any(low <= start and end <= high for low, high in found)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_mapping_has_written_is_data(lab: MountedLab, kind: str) -> None:
    path = made(lab, kind)
    with Mapped(path), opened(os.open(path, os.O_RDONLY)) as fd:
        found = parts(fd)
        assert holds_data(found, AT, AT + len(WRITTEN)), found
        assert os.lseek(fd, AT, os.SEEK_DATA) == AT
    # What is no data stays a hole, so copies stay sparse.
    with opened(os.open(path, os.O_RDONLY)) as fd:
        assert sum(end - start for start, end in parts(fd)) < len(CONTENT) - 256 * KIB


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("as_alice", [False, True])
def test_a_hole_up_to_the_end_is_none_where_a_mapping_has_written(
    lab: MountedLab, kind: str, as_alice: bool
) -> None:
    path = made(lab, kind)
    path.chmod(0o666)
    os.truncate(path, 4 * MIB)

    def look() -> None:
        with opened(os.open(path, os.O_RDONLY)) as fd:
            assert os.lseek(fd, 2 * MIB, os.SEEK_DATA) == 3 * MIB
            assert os.lseek(fd, 3 * MIB + BLOCK, os.SEEK_HOLE) < 4 * MIB
            with pytest.raises(OSError) as refusal:
                os.lseek(fd, 4 * MIB, os.SEEK_DATA)
            assert refusal.value.errno == errno.ENXIO

    with Mapped(path) as mapped:
        mapped.bytes[3 * MIB] = 7
        if as_alice:
            as_user(ALICE, look)
        else:
            look()


PROGRAMS: dict[str, list[str]] = {
    "cp": ["cp", "{f}", "{out}"],
    "cp --sparse=always": ["cp", "--sparse=always", "{f}", "{out}"],
    "rsync -S": ["rsync", "-S", "{f}", "{out}"],
    "tar -S": ["sh", "-c", "tar -C {dir} -Scf - f | tar -xOf - >{out}"],
    "tar raw": ["sh", "-c", "tar -C {dir} --hole-detection=raw -Scf - f | tar -xOf - >{out}"],
    "cpio": [
        *("sh", "-c"),
        "cd {dir} && echo f | cpio --quiet -p --sparse -d {out}.d && mv {out}.d/f {out}",
    ],
    "bsdtar": ["sh", "-c", "bsdtar -C {dir} -cf - f | bsdtar -xOf - >{out}"],
    "star": ["sh", "-c", "star -C {dir} -sparse -c f=- f | star -x -to-stdout f=- >{out}"],
}


HOLDER = """
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
mapped = mmap.mmap(fd, 0)
for line in sys.stdin:
    at, text = int(sys.argv[2]), sys.argv[3].encode()
    mapped[at : at + len(text)] = text
    print("written", flush=True)
"""
"""A process of its own: one that starts programs closes its file in each of them, which writes it
back."""


@pytest.mark.parametrize("kind", KINDS)
def test_programs_that_look_for_holes_copy_no_zeros(
    lab: MountedLab, tmp_path: Path, kind: str
) -> None:
    path = made(lab, kind)
    holder: list[str | Path] = [sys.executable, "-c", HOLDER, path, str(AT), WRITTEN.decode()]
    pipe = subprocess.PIPE
    with subprocess.Popen(holder, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        for name, command in PROGRAMS.items():
            if shutil.which(name.split()[0]) is None:
                continue
            # A hole again, whatever an earlier program has had written back.
            with opened(os.open(path, os.O_RDWR)) as fd:
                fallocate(fd, PUNCH, HOLE[0], HOLE[1] - HOLE[0])
            process.stdin.write("write\n")
            process.stdin.flush()
            assert process.stdout.readline() == "written\n"
            out = tmp_path / name.replace(" ", "")
            words = [word.format(f=path, dir=lab.view, out=out) for word in command]
            # Some say that the file has changed: it got its times when it was written back.
            subprocess.run(words, check=False)
            assert out.read_bytes() == right(), name
        process.stdin.close()


def test_no_reported_hole_has_data_whatever_is_done(lab: MountedLab, tmp_path: Path) -> None:
    change_as_below(lab, tmp_path / "below", 60, 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs"])
def test_no_reported_hole_has_data_on_any_file_system(loop_fs: MakeFileSystem, kind: str) -> None:
    point = loop_fs(kind)
    for seed in range(10):
        (point / str(seed)).mkdir()
        with mounted_lab(point / str(seed)) as lab:
            change_as_below(lab, point / str(seed) / "below", 200, seed)


def change_as_below(lab: MountedLab, below: Path, steps: int, seed: int) -> None:
    """Mapped writes, writes, holes, cuts, jobs and searches, in any order."""
    rng = random.Random(seed)
    paths = [below, lab.view / "plain", lab.make_stub("stub", CONTENT)]
    for path in paths[:2]:
        sparse(path)
    fds = [os.open(path, os.O_RDWR) for path in paths]
    mapped = [mmap.mmap(fd, len(CONTENT)) for fd in fds]
    size = len(CONTENT)
    try:
        for step in range(steps):
            kind = rng.choice(("map", "map", "map", "write", "punch", "cut", "sync", "job"))
            start, length = rng.randrange(len(CONTENT)), rng.randrange(1, 20 * BLOCK)
            for fd, bytes_ in zip(fds, mapped, strict=True):
                if kind == "map":
                    end = min(start + length, size)
                    bytes_[start:end] = noise(max(0, end - start), step)
                elif kind == "write":
                    os.pwrite(fd, noise(length, step)[: len(CONTENT) - start], start)
                elif kind == "punch":
                    fallocate(fd, PUNCH, start, 10 * length)
                elif kind == "cut":
                    os.truncate(fd, start)
                    os.truncate(fd, len(CONTENT))
                elif kind == "sync" and rng.randrange(2):
                    bytes_.flush()
            if kind == "job" and step % 3 == 0:
                lab.optimize()
            size = os.fstat(fds[0]).st_size
            contents = [os.pread(fd, size, 0) for fd in fds]
            assert len(set(contents)) == 1, step
            for fd in fds[1:]:
                check_holes(fd, contents[0], rng)
    finally:
        for bytes_, fd in zip(mapped, fds, strict=True):
            bytes_.close()
            os.close(fd)


def check_holes(fd: int, content: bytes, rng: random.Random) -> None:
    """What a reader sees in a reported hole is zeros."""
    at = 0
    for start, end in [*parts(fd), (len(content), len(content))]:
        assert not any(content[at:start]), (at, start)
        at = end
    offset = rng.randrange(len(content))
    hole = os.lseek(fd, offset, os.SEEK_HOLE)
    assert hole == len(content) or not content[hole], (offset, hole)
    try:
        data = os.lseek(fd, offset, os.SEEK_DATA)
    except OSError:
        data = len(content)
    assert not any(content[offset:data]), (offset, data)


# --- the worker -------------------------------------------------------------------------------


def workers(lab: MountedLab) -> list[int]:
    """Processes that open files for the mount process."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if words[0] == b"dedupd-pages" and words[1] == os.fsencode(lab.view):
            found.append(int(path.parent.name))
    return found


def search(path: Path) -> None:
    """A hole is reported. That of a stub does not begin and end with a block."""
    with opened(os.open(path, os.O_RDONLY)) as fd:
        assert AT + 64 * KIB < os.lseek(fd, AT, os.SEEK_DATA) <= HOLE[1]


@pytest.mark.parametrize("is_killed", [False, True])
def test_the_worker_ends_with_the_mount(tmp_path: Path, is_killed: bool) -> None:
    with mounted_lab(tmp_path) as lab:
        for _ in range(3):
            search(made(lab, "plain"))
            assert len(workers(lab)) == 1
            if is_killed:
                lab.kill()
            else:
                lab.unmount()  # nothing is open that was open for the search
            eventually(lambda: not workers(lab), "the worker has ended")
            lab.mount()


def test_a_worker_that_dies_is_replaced(lab: MountedLab) -> None:
    path = made(lab, "plain")
    search(path)
    (pid,) = workers(lab)
    with opened_pid(pid):
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: not workers(lab), "the worker is dead")

    def finds_the_hole() -> bool:
        with Mapped(path), opened(os.open(path, os.O_RDONLY)) as fd:
            data = os.lseek(fd, AT - 64 * KIB, os.SEEK_DATA)
            assert data <= AT
            return data > AT - 64 * KIB

    eventually(finds_the_hole, "there is another one")


def test_many_search_at_a_time(lab: MountedLab) -> None:
    path = made(lab, "plain")
    with Mapped(path) as mapped, ThreadPoolExecutor(40) as pool:
        has_ended = threading.Event()

        def write() -> None:
            while not has_ended.is_set():
                mapped.bytes[AT : AT + 1] = b"x"

        writer = threading.Thread(target=write)
        writer.start()
        try:

            def look(_: int) -> bool:
                with opened(os.open(path, os.O_RDONLY)) as fd:
                    return os.lseek(fd, HOLE[0], os.SEEK_DATA) <= AT

            assert all(pool.map(look, range(300)))
        finally:
            has_ended.set()
            writer.join()


def serve_without_worker(*arguments: object) -> None:
    """Serve a mount whose worker cannot be started."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_worker, "MODULE", "fuse_stub.nothing")
        serve_for_test(*arguments)  # type: ignore[arg-type]


def serve_as_before_6_16(*arguments: object) -> None:
    """Serve a mount as on a kernel whose close of a file takes a lock."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_worker, "CLOSES_WRITE_BACK", (1000, 0))
        serve_for_test(*arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_worker_holes_count_as_data(tmp_path: Path, kind: str) -> None:
    with mounted_lab(tmp_path, nursery=Nursery(serve_without_worker)) as lab:
        path = made(lab, kind)
        with opened(os.open(path, os.O_RDONLY)) as fd:
            assert os.lseek(fd, HOLE[0] + 7, os.SEEK_DATA) == HOLE[0] + 7
            assert os.lseek(fd, 0, os.SEEK_HOLE) == len(CONTENT)
            with pytest.raises(OSError):
                os.lseek(fd, len(CONTENT), os.SEEK_DATA)


@pytest.mark.parametrize("kind", KINDS)
def test_before_linux_6_16_cached_pages_count_as_data(tmp_path: Path, kind: str) -> None:
    with mounted_lab(tmp_path, nursery=Nursery(serve_as_before_6_16)) as lab:
        path = made(lab, kind)
        lab.unmount()
        lab.mount()
        search(path)
        with Mapped(path), opened(os.open(path, os.O_RDONLY)) as fd:
            assert AT - 64 * KIB <= os.lseek(fd, AT - 64 * KIB, os.SEEK_DATA) <= AT
            check_holes(fd, os.pread(fd, len(CONTENT), 0), random.Random(1))
            check_holes(fd, right(), random.Random(1))


@pytest.mark.parametrize(
    ("release", "writes_back"),
    [("6.16.0", True), ("6.18.44-fc", True), ("7.0-rc1", True), ("6.12.1", False), ("x", False)],
)
def test_the_release_says_what_a_close_does(release: str, writes_back: bool) -> None:
    assert page_worker.writes_back(release) is writes_back
