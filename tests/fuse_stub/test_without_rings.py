"""Where the kernel offers io_uring and no ring can be had: all goes on by /dev/fuse."""

import ctypes
import errno
import os
import platform
import resource
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tests.fuse_stub.test_rings import threads
from tests.support.lab import noise
from tests.support.mount_logs import log_of
from tests.support.mounts import Nursery, mounted_lab, serve_for_test
from tests.support.service import eventually
from tests.support.ways import RING

pytestmark = [pytest.mark.root, pytest.mark.parametrize("way", [RING], indirect=True)]

_LIBC = ctypes.CDLL(None, use_errno=True)

IO_URING_SETUP, IO_URING_ENTER = 425, 426
"""Numbers of system calls, the same on all architectures but alpha."""

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""As seccomp names them (AUDIT_ARCH_…)."""

CAP_IPC_LOCK = 14
PLENTY = 1024
RING_PAGES = 2
"""What the kernel counts of a ring with few entries, of those who may not lock memory at will."""


def refuse(call: int) -> None:
    """Have the kernel refuse a system call to this process, as containers do."""
    load, jump_equal, give = 0x20, 0x15, 0x06
    allow, fail = 0x7FFF0000, 0x00050000 | errno.EPERM
    program = [
        (load, 0, 0, 4),  # the architecture
        (jump_equal, 0, 3, _ARCHITECTURES[platform.machine()]),
        (load, 0, 0, 0),  # the number of the call
        (jump_equal, 0, 1, call),
        (give, 0, 0, fail),
        (give, 0, 0, allow),
    ]
    filters = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *one) for one in program))
    whole = ctypes.create_string_buffer(
        struct.pack("@HP", len(program), ctypes.addressof(filters)), 16
    )
    pr_set_seccomp, mode_filter = 22, 2
    assert _LIBC.prctl(pr_set_seccomp, mode_filter, whole, 0, 0) == 0, os.strerror(
        ctypes.get_errno()
    )


def serve_refused(
    call: int, path: str, mountpoint: str, cache_bytes: int, answer: Connection
) -> None:
    refuse(call)
    serve_for_test(path, mountpoint, cache_bytes, answer)


def serve_bounded(
    rings: int, path: str, mountpoint: str, cache_bytes: int, answer: Connection
) -> None:
    """Serve a mount that has room for so many rings (RLIMIT_MEMLOCK)."""
    header = ctypes.create_string_buffer(struct.pack("=Ii", 0x20080522, 0))
    sets = ctypes.create_string_buffer(24)
    assert _LIBC.capget(header, sets) == 0
    words = list(struct.unpack("=6I", sets.raw))
    words[0] &= ~(1 << CAP_IPC_LOCK)
    assert _LIBC.capset(header, struct.pack("=6I", *words)) == 0
    room = rings * RING_PAGES * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (room, hard))
    serve_for_test(path, mountpoint, cache_bytes, answer)


@pytest.mark.parametrize(
    ("serve", "argument", "number"),
    [
        pytest.param(serve_refused, IO_URING_SETUP, errno.EPERM, id="none can be made"),
        pytest.param(serve_refused, IO_URING_ENTER, errno.EPERM, id="none can be used"),
        pytest.param(serve_bounded, 0, errno.ENOMEM, id="no room for one"),
        pytest.param(serve_bounded, 1, errno.ENOMEM, id="no room for a second one"),
    ],
)
def test_all_goes_on_by_the_device(
    tmp_path: Path, serve: Callable[..., None], argument: int, number: int
) -> None:
    content = noise(300_000)
    if serve is serve_refused and platform.machine() not in _ARCHITECTURES:
        pytest.skip("no name of this architecture")
    with mounted_lab(tmp_path, nursery=Nursery(partial(serve, argument))) as lab:
        status = lab.status()
        assert (status["by_ring"], status["ring_failure"]) == (False, number)
        lab.make_stub("f", content)
        assert (lab.view / "f").read_bytes() == content
        with open(lab.view / "f", "r+b") as file:
            file.write(b"new")
            os.fsync(file.fileno())
        assert (lab.view / "f").read_bytes() == b"new" + content[3:]
        assert os.listdir(lab.view) == ["f"]
        lab.unmount()
        log = log_of(str(lab.view)).read_text()
        assert f"io_uring is offered, but cannot be used: {os.strerror(number)}" in log
        assert "by /dev/fuse" in log
        lab.verify_clean()


def test_of_what_is_used_no_failure_is_told(tmp_path: Path) -> None:
    with mounted_lab(tmp_path) as lab:
        status = lab.status()
        assert (status["by_ring"], status["ring_failure"]) == (True, None)


def test_threads_that_cannot_be_had_are_tried_again(tmp_path: Path) -> None:
    """Those of the beginning have a ring, those that should begin later have none."""
    # The kernel counts what all processes of a user lock: a bound at the start, of which other
    # mounts take a part, would not be a known one.
    serve = partial(serve_bounded, PLENTY)
    with mounted_lab(tmp_path, nursery=Nursery(serve)) as lab, ThreadPoolExecutor(16) as pool:
        assert lab.status()["by_ring"]
        _, hard = resource.prlimit(lab.pid, resource.RLIMIT_MEMLOCK)
        resource.prlimit(lab.pid, resource.RLIMIT_MEMLOCK, (0, hard))
        first = threads(lab, "mount-ring")

        def use(number: int) -> None:
            path = lab.view / f"{number}"
            path.write_bytes(noise(50_000, number))
            with open(path, "rb") as file:
                os.fsync(file.fileno())
            assert path.read_bytes() == noise(50_000, number)

        list(pool.map(use, range(100)))
        assert threads(lab, "mount-ring") <= first
        resource.prlimit(lab.pid, resource.RLIMIT_MEMLOCK, (hard, hard))

        def has_more() -> bool:
            list(pool.map(use, range(100, 200)))
            return threads(lab, "mount-ring") > first

        eventually(has_more, "threads are had once there is room")
