"""The ways on which requests come from the kernel, for tests of mounts on each of them."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

RING = "ring"
DEVICE = "device"

WAY = "DEDUPD_TEST_WAY"
"""In the environment: the way of the mounts that tests make (``ring`` or ``device``). Without it
they take the device, and some tests take both."""

_OFFERED = Path("/sys/module/fuse/parameters/enable_uring")


def way() -> str:
    return os.environ.get(WAY, DEVICE)


def has_ring() -> bool:
    """Whether the kernel can have requests come by io_uring."""
    return os.access(_OFFERED, os.W_OK)


@contextmanager
def ring_is_offered() -> Iterator[None]:
    """For a block in which a mount begins: the kernel does not offer io_uring by default."""
    with open(_OFFERED) as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # against other tests
        before = _OFFERED.read_text()
        _OFFERED.write_text("Y")
        try:
            yield
        finally:
            _OFFERED.write_text(before)
