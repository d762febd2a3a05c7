"""Threads that help the event-loop thread (native/src/mount/session/overflow_readers.rs)."""

import ctypes
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from dedupd_core import native
from dedupd_core.system.files import opened
from dedupd_core.units import MIB
from fuse_stub.control import OPERATIONS
from fuse_stub.kernel.request_pump import overflow_readers
from tests.support.forks import CONTEXT
from tests.support.lab import noise
from tests.support.mounts import (
    MountedLab,
    Nursery,
    end,
    mounted_lab,
    serve_alone,
    serve_beside,
    serve_for_test,
)
from tests.support.service import eventually
from tests.support.ways import DEVICE

pytestmark = pytest.mark.root

_LIBC = ctypes.CDLL(None, use_errno=True)
_AT_FDCWD, _FORCE_SYNC, _BASIC_STATS = -100, 0x2000, 0x7FF
HELD_S = 1.0
"""How long Python's thread does something else: well above what an answer takes."""


@pytest.fixture(scope="module")
def shared(way: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MountedLab]:
    directory = tmp_path_factory.mktemp("beside")
    with mounted_lab(directory, nursery=Nursery(serve_beside)) as lab:
        yield lab


def ask(path: Path) -> None:
    """Have the kernel ask the mount for attributes, whatever it knows already."""
    room = ctypes.create_string_buffer(256)
    _LIBC.statx(_AT_FDCWD, os.fsencode(path), _FORCE_SYNC, _BASIC_STATS, room)


@contextmanager
def beside(*works: Callable[[], object]) -> Iterator[None]:
    """For a block beside which each work is done again and again."""
    has_ended = threading.Event()

    def repeat(work: Callable[[], object]) -> None:
        while not has_ended.is_set():
            work()

    with ThreadPoolExecutor(len(works)) as pool:
        done = [pool.submit(repeat, work) for work in works]
        try:
            yield
        finally:
            has_ended.set()
    for one in done:
        one.result()


# --- what they are for ------------------------------------------------------------------------


@contextmanager
def held_by_questions(mountpoint: str) -> Iterator[None]:
    """For a block in which a question for the state of a mount holds Python up for a while, once a
    file lies beside it."""
    state = OPERATIONS["status"]

    def held(*given: Any) -> Any:
        if os.path.exists(f"{mountpoint}.hold"):
            time.sleep(HELD_S)
        return state(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(OPERATIONS, "status", held)
        yield


def serve_held(path: str, mountpoint: str, cache_bytes: int, answer: Connection) -> None:
    with held_by_questions(mountpoint):
        serve_for_test(path, mountpoint, cache_bytes, answer)


def serve_held_alone(path: str, mountpoint: str, cache_bytes: int, answer: Connection) -> None:
    with held_by_questions(mountpoint):
        serve_alone(path, mountpoint, cache_bytes, answer)


@pytest.mark.parametrize("way", [DEVICE], indirect=True)
@pytest.mark.parametrize("serve", [serve_held, serve_held_alone])
def test_names_and_attributes_do_not_wait_for_python(
    tmp_path: Path, serve: Callable[..., None]
) -> None:
    with mounted_lab(tmp_path, nursery=Nursery(serve)) as lab:
        (lab.view / "f").write_bytes(b"content")
        hold = Path(f"{lab.view}.hold")
        hold.touch()
        with ThreadPoolExecutor(1) as pool, lab.client() as client:
            asked = pool.submit(client.call, "status")
            waits: list[float] = []
            while not asked.done():
                began = time.monotonic()
                ask(lab.view / "f")
                (lab.view / f"{len(waits)}").exists()
                waits.append(time.monotonic() - began)
        hold.unlink()
        # Without other threads one of them waits until Python goes on.
        assert (max(waits) > HELD_S / 2) == (serve is serve_held_alone)


@pytest.mark.parametrize("way", [DEVICE], indirect=True)
def test_they_come_when_there_is_much_to_do_and_go_again(tmp_path: Path) -> None:
    with mounted_lab(tmp_path) as lab:
        (lab.view / "f").write_bytes(b"content")
        for _ in range(2):
            eventually(lambda: is_quiet(lab.pid), "an idle mount wakes none of its threads")
            with asking(lab.view / "f", programs=6):
                wait_for_overflow_readers(lab.pid)
        eventually(lambda: is_quiet(lab.pid), "an idle mount wakes none of its threads")
        # The loop's thread is woken by the kernel again.
        (lab.view / "g").write_bytes(b"more")
        assert sorted(os.listdir(lab.view)) == ["f", "g"]


def wait_for_overflow_readers(pid: int) -> None:
    before = wakes(pid, "overflow-reader")
    eventually(lambda: wakes(pid, "overflow-reader") != before, "overflow readers are called")


@contextmanager
def asking(path: Path, programs: int) -> Iterator[None]:
    """For a block beside which programs ask for attributes as fast as they can."""
    started = [CONTEXT.Process(target=ask_always, args=(path,)) for _ in range(programs)]
    for one in started:
        one.start()
    try:
        yield
    finally:
        for one in started:
            one.kill()
            one.join()


def ask_always(path: Path) -> None:
    while True:
        ask(path)


def is_quiet(pid: int) -> bool:
    """Whether none of the threads beside the loop's has run for a moment."""
    before = wakes(pid, "overflow-reader", "look-out")
    assert before
    time.sleep(0.1)  # longer than any of them waits while it has something to do
    return wakes(pid, "overflow-reader", "look-out") == before


def wakes(pid: int, *names: str) -> dict[str, str]:
    """How often each thread of these names has waited."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text().strip() in names:
            text = (task / "status").read_text()
            found[task.name] = text.split("\nvoluntary_ctxt_switches:")[1].split()[0]
    return found


@pytest.mark.parametrize("way", [DEVICE], indirect=True)
def test_there_are_none_on_one_processor_and_no_more_than_processors() -> None:
    assert [overflow_readers(cores) for cores in (1, 2, 4, 8, 64)] == [0, 2, 4, 8, 8]


# --- what they must not do --------------------------------------------------------------------


def test_what_they_do_not_answer_comes_to_the_loop_in_one_piece(shared: MountedLab) -> None:
    root = shared.view / "data"
    root.mkdir()

    def work(number: int) -> None:
        path = root / f"{number}"
        for length in (1, 5000, 40_000, MIB, 3 * MIB + 7):
            content = noise(length, number * 10 + length)
            with opened(os.open(path, os.O_CREAT | os.O_RDWR | os.O_TRUNC)) as fd:
                assert os.write(fd, content) == length
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                assert os.pread(fd, length + 1, 0) == content
            assert (shared.data / "data" / f"{number}").read_bytes() == content

    with (
        beside(partial(ask, root), (root / "none").exists),
        ThreadPoolExecutor(6) as pool,
    ):
        list(pool.map(work, range(6)))


def test_what_the_kernel_knows_is_what_there_is_after_changes_beside_questions(
    shared: MountedLab,
) -> None:
    """Names, sizes, and times of files; what the kernel keeps it keeps for an hour."""
    top = shared.view / "changes"
    places = [top / f"{number}" for number in range(4)]
    for place in places:
        place.mkdir(parents=True)

    def change(place: Path) -> None:
        for number in range(60):
            path = place / f"{number % 7}"
            path.write_bytes(noise(1 + number * 97 % 9000, number))
            os.truncate(path, number * 31 % 5000)
            assert path.stat().st_size == number * 31 % 5000
            os.chmod(path, 0o600 + number % 64)
            assert path.stat().st_mode & 0o777 == 0o600 + number % 64
            path.rename(place / f"new-{number % 5}")
            with suppress(FileExistsError):
                os.link(place / f"new-{number % 5}", places[number % 4] / f"link-{number % 3}")
            with suppress(FileNotFoundError):
                (place / f"link-{number % 3}").unlink()
            with open(place / "grows", "ab", buffering=0) as file:
                file.write(b"x" * 100)
            assert (place / "grows").stat().st_size == (number + 1) * 100

    def look() -> None:
        for place in places:
            ask(place)
            for entry in os.scandir(place):
                ask(Path(entry.path))
                with suppress(FileNotFoundError):
                    entry.stat()

    with beside(look, look, look), ThreadPoolExecutor(4) as pool:
        list(pool.map(change, places))
    below = shared.data / "changes"
    for path in [path for place in places for path in place.iterdir()]:
        seen, is_ = path.stat(), (below / path.relative_to(top)).stat()
        for field in ("st_ino", "st_size", "st_mode", "st_mtime_ns", "st_nlink"):
            assert getattr(seen, field) == getattr(is_, field), (path, field)
    for place in places:
        assert sorted(os.listdir(place)) == sorted(os.listdir(below / place.name))


def test_lookups_are_counted_as_often_as_the_kernel_is_told(shared: MountedLab) -> None:
    """Too few forgets, and memory would grow; too few lookups, and files would be gone."""

    def known() -> int:
        count = shared.status()["inodes_known"]
        assert isinstance(count, int)
        return count

    before = known()
    place = shared.view / "counted"

    def work(numbers: range) -> None:
        for number in numbers:
            path = place / f"{number}"
            path.write_bytes(b"content")
            path.stat()
            path.rename(place / f"{number}-")
            assert (place / f"{number}-").read_bytes() == b"content"

    place.mkdir()

    def look() -> None:
        for entry in os.scandir(place):
            ask(Path(entry.path))

    with beside(look, look, look):
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, [range(start, start + 50) for start in range(0, 200, 50)]))
        for path in place.iterdir():
            path.unlink()
    place.rmdir()
    # Fewer if the kernel had not yet forgotten all files of an earlier test.
    eventually(lambda: known() <= before, "all are forgotten")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_unmount_and_a_death_end_them_under_load(tmp_path: Path, number: int) -> None:
    content = noise(100_000)
    with mounted_lab(tmp_path, nursery=Nursery(serve_beside)) as lab:
        numbers = itertools.count()

        def work() -> None:
            with suppress(OSError):
                ask(lab.view / f"{next(numbers)}")
                (lab.view / "f").write_bytes(content)

        with beside(work, work, work, partial(ask, lab.view / "f")):
            eventually(lambda: next(numbers) > 50, "there is load")
            end(lab.pid, number)
            lab.mount()  # in place of the one that has ended
            first = next(numbers)
            eventually(lambda: next(numbers) > first + 50, "the load goes on")
        (lab.view / "f").write_bytes(content)
        assert (lab.data / "f").read_bytes() == content


def test_a_descriptor_that_python_was_given_stays_open(tmp_path: Path) -> None:
    """The table closes its own when it likes: another file would have the number then."""
    (tmp_path / "f").write_bytes(b"content")
    with opened(os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)) as root_fd:
        inodes = native.mount.Inodes(root_fd, b"user.reserved", b".base", bytes(32), 16, 16)
        ino = os.stat(tmp_path / "f").st_ino
        inodes.remember(ino, os.open(tmp_path / "f", os.O_PATH))
        fd = inodes.fd(ino)
        inodes.forget(ino, 1)
        assert os.fstat(fd).st_ino == ino
        inodes.close()
        with pytest.raises(OSError):
            os.fstat(fd)
