"""Whether a file may be read once it is open: it is as it was found, at rest, and its blocks are
its own."""

import os
import time

from dedupd_core import native
from dedupd_core.stub.transition import LARGE_UNITS, FileIdentity
from dedupd_core.system.leases import has_writers
from jobs.optimize.buffers import FileTask
from jobs.tree.candidates import SHARED_BELOW

SETTLE_NS = 50_000_000
"""A write within one tick of the kernel's clock (4 to 10 ms) of a file's last change would leave
no trace in its times; a file is read only once it is older than several ticks."""

SECOND_NS = 1_000_000_000

CHANGED_BEFORE = "changed since it was found"


def examine(fd: int, task: FileTask, *, unshared_only: bool) -> None:
    """Fill in what the reader needs of a file that is taken as a whole; ``task.failure`` says why
    it may not be read. With ``unshared_only`` its blocks have to be its own. Raises OSError.
    """
    _wait_until_settled(fd)
    status, source = os.fstat(fd), task.source
    task.identity = FileIdentity.of(status)
    if task.identity != task.candidate.identity:
        task.failure = CHANGED_BEFORE
    elif has_writers(fd):
        # Asked after the identity was taken: a write through a mapping whose page is dirty already
        # leaves no trace in the times, and only now none can be open.
        task.failure = "in use"
    else:
        _examine_blocks(fd, task, status.st_size, unshared_only=unshared_only)
    # A hole takes no room, and what is in the store already is not read.
    source.freed_bytes = status.st_blocks * 512
    source.need_bytes = min(status.st_size, source.freed_bytes)


def examine_busy(fd: int, task: FileTask, *, unshared_only: bool) -> None:
    """As :func:`examine`, of a file that users may write to: what they change is known to the
    mount."""
    assert task.busy is not None
    _examine_blocks(fd, task, task.identity.size, unshared_only=unshared_only)
    status = os.fstat(fd)
    found = task.busy.inode, task.busy.owner
    if not task.failure and (status.st_ino, status.st_uid) != found:
        task.failure = CHANGED_BEFORE


def _examine_blocks(fd: int, task: FileTask, size: int, *, unshared_only: bool) -> None:
    task.source.shared_bytes = native.system.shared_bytes(fd, size)
    if native.system.has_large_units(fd):
        task.failure = LARGE_UNITS
    elif task.source.shared_bytes and unshared_only:
        task.failure = SHARED_BELOW


def _wait_until_settled(fd: int) -> None:
    status = os.fstat(fd)
    # Small inodes of ext4 have whole seconds, of which the last change was in any part.
    coarse_ns = 0 if status.st_ctime_ns % SECOND_NS else SECOND_NS
    age_ns = time.time_ns() - max(status.st_ctime_ns + coarse_ns, status.st_mtime_ns)
    if -coarse_ns <= age_ns < SETTLE_NS:
        time.sleep((SETTLE_NS - age_ns) / 1e9)
