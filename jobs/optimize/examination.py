"""The check of a file that is open for reading: it is as it was found, no process writes to it, and
its blocks are its own."""

import os

from dedupd_core import native
from dedupd_core.stub.transition import LARGE_UNITS
from dedupd_core.system.file_reader import open_failure
from jobs.optimize.buffers import FileTask
from jobs.tree.candidates import SHARED_BELOW

CHANGED_BEFORE = "changed since it was found"

_REASONS: "dict[native.ingest.Why, str]" = {
    "changed before": CHANGED_BEFORE,
    "in use": "in use",
    "large units": LARGE_UNITS,
    "shared": SHARED_BELOW,
    "changed": "changed while it was read",
}


def examine(fd: int, task: FileTask, *, unshared_only: bool) -> None:
    """Fill in what the reader needs to know; ``task.failure`` is the reason if it skips the file.
    With ``unshared_only``, the file must not share blocks. Raises OSError.

    Users may write to a file that the mount has offered, and the mount records what they change.
    """
    source, busy = task.source, task.busy
    found = native.ingest.examine(fd, task.identity, busy is None, unshared_only)
    if isinstance(found, native.ingest.Unread):
        note_unread(task, found)
        return
    source.shared_bytes, status = found, os.fstat(fd)
    if busy is None:
        # A hole takes no room, and what is in the store already is not read.
        source.freed_bytes = status.st_blocks * 512
        source.need_bytes = min(status.st_size, source.freed_bytes)
    elif (status.st_ino, status.st_uid) != (busy.inode, busy.owner):
        task.failure = CHANGED_BEFORE


def note_unread(task: FileTask, unread: "native.ingest.Unread") -> None:
    """Give a file up for the reason of native code."""
    task.source.shared_bytes = unread.shared_bytes
    if unread.why == "unopened":
        task.failure = open_failure(OSError(unread.errno, os.strerror(unread.errno)))
    elif unread.why == "io":
        task.failure = f"cannot be read: {os.strerror(unread.errno)}"
    else:
        task.failure = _REASONS[unread.why]
