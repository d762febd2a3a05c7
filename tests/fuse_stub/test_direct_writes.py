"""Direct writes that nobody waits for, beside readers through the page cache."""

import ctypes
import mmap
import os
import platform
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest

from dedupd_core.system.files import opened
from tests.support.idmaps import system_call
from tests.support.lab import noise
from tests.support.mounts import MountedLab, connection, mounted_lab
from tests.support.service import eventually

pytestmark = pytest.mark.root

PAGE = 4096
IO_SETUP, IO_GETEVENTS, IO_SUBMIT = {"x86_64": (206, 208, 209), "aarch64": (0, 4, 2)}.get(
    platform.machine(), (-1, -1, -1)
)
READ, WRITE = 0, 1


class Queue:
    """Reads and writes past the page cache that nobody waits for (``io_submit``)."""

    def __init__(self) -> None:
        self._context = ctypes.c_ulong(0)
        system_call(IO_SETUP, ctypes.c_long(64), ctypes.byref(self._context))
        self._kept: list[object] = []  # the kernel reads and writes there

    def begin(self, kind: int, fd: int, block: mmap.mmap, offset: int) -> None:
        address = ctypes.addressof(ctypes.c_char.from_buffer(block))
        control = ctypes.create_string_buffer(
            struct.pack("=QIIHhIQQqQII", 0, 0, 0, kind, 0, fd, address, len(block), offset, 0, 0, 0)
        )
        controls = (ctypes.c_void_p * 1)(ctypes.addressof(control))
        self._kept += [control, block]
        assert system_call(IO_SUBMIT, self._context, ctypes.c_long(1), ctypes.byref(controls)) == 1

    def results(self, count: int) -> list[int]:
        """Waits for as many."""
        events = ctypes.create_string_buffer(32 * count)
        room = ctypes.c_long(count)
        system_call(IO_GETEVENTS, self._context, room, room, ctypes.byref(events), None)
        return [struct.unpack_from("=qq", events, 32 * n + 16)[0] for n in range(count)]


@pytest.fixture(scope="module")
def lab(way: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MountedLab]:
    if IO_SETUP < 0:
        pytest.skip("no numbers of system calls for this architecture")
    with mounted_lab(tmp_path_factory.mktemp("direct")) as lab:
        yield lab


def one_at_a_time(lab: MountedLab) -> None:
    """Have the kernel keep back all but one of the requests that no program waits for."""
    (connection(lab.view) / "max_background").write_text("1")


def aligned(content: bytes) -> mmap.mmap:
    block = mmap.mmap(-1, len(content))
    block[:] = content
    return block


@pytest.mark.parametrize("is_stub", [False, True])
def test_no_page_of_before_the_write_stays(lab: MountedLab, is_stub: bool) -> None:
    """The write is made after a read that was asked for later: both wait in the kernel for the
    mount, and it keeps the write back for another one."""
    name = f"f-{is_stub}"
    before, after = noise(40 * PAGE, 1), noise(40 * PAGE, 2)
    path = lab.make_stub(name, before) if is_stub else lab.view / name
    other = lab.view / f"{name}-other"
    other.write_bytes(before)
    if not is_stub:
        path.write_bytes(before)
    one_at_a_time(lab)
    with (
        opened(os.open(other, os.O_RDONLY | os.O_DIRECT)) as other_fd,
        opened(os.open(path, os.O_RDWR)) as fd,
        opened(os.open(path, os.O_RDWR | os.O_DIRECT)) as direct_fd,
        mmap.mmap(fd, len(before), mmap.MAP_SHARED, mmap.PROT_READ) as mapped,
    ):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        mapped.madvise(mmap.MADV_RANDOM)
        # From now on the kernel knows that there is nothing that a write takes away.
        os.pwrite(direct_fd, aligned(before[-PAGE:]), len(before) - PAGE)
        queue, seen, data = Queue(), list[bytes](), aligned(after[:PAGE])
        steps = [
            lambda: queue.begin(READ, other_fd, mmap.mmap(-1, PAGE), 0),
            lambda: queue.begin(WRITE, direct_fd, data, 0),
            lambda: seen.append(mapped[:PAGE]),
        ]
        threads = [threading.Thread(target=step) for step in steps]
        # Another process has the mount go on: who waits for a page keeps Python from that.
        goes_on = subprocess.Popen(["sh", "-c", f"sleep 0.5; kill -CONT {lab.pid}"])
        os.kill(lab.pid, signal.SIGSTOP)
        for thread in threads:
            thread.start()
            time.sleep(0.1)
        assert goes_on.wait() == 0
        for thread in threads:
            thread.join()
        assert queue.results(2) == [PAGE, PAGE]
        assert seen[0] in (before[:PAGE], after[:PAGE])
        assert mapped[:PAGE] == after[:PAGE]
        assert os.pread(fd, len(before), 0) == after[:PAGE] + before[PAGE:]


def test_many_are_answered_beside_readers(lab: MountedLab) -> None:
    """Also more at a time than there are threads for them."""
    path, count = lab.view / "many", 48
    path.write_bytes(bytes(count * PAGE))
    is_over = threading.Event()

    def read_on() -> None:
        while not is_over.is_set():
            path.read_bytes()

    readers = [threading.Thread(target=read_on) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        for turn in range(20):
            content = noise(count * PAGE, turn)
            queue = Queue()
            with opened(os.open(path, os.O_WRONLY | os.O_DIRECT)) as fd:
                for start in range(0, len(content), PAGE):
                    queue.begin(WRITE, fd, aligned(content[start : start + PAGE]), start)
                assert queue.results(count) == [PAGE] * count
            assert path.read_bytes() == content
    finally:
        is_over.set()
        for reader in readers:
            reader.join()
    eventually(lambda: (lab.data / "many").read_bytes() == content, "it is written below")
