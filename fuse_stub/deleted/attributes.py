"""Deletions for users, by attributes that are in no list (docs/backup.md, "Deleted and earlier").

``user.dedupd.deleted`` of a directory says what can be had back below it, and the same with an id
appended (``user.dedupd.deleted.3-4096``) what is older than that. Setting ``user.dedupd.undelete``
of a new, empty file to an id makes it that file. Every user has what was theirs, root everything;
root can append the words of :class:`~dedupd.deleted.undelete.Order`.
"""

import errno
import json
import os
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from dedupd.deleted.expiry import end_ns
from dedupd.deleted.listing import DELETED, lost
from dedupd.deleted.log import DeletionId, DeletionLogs
from dedupd.deleted.revival import revive, take_back
from dedupd.deleted.undelete import Order, rights_of
from dedupd.errors import UsageError
from dedupd.format.deletion import Deletion
from dedupd.format.stub import StubAttribute
from dedupd.system.takeover import Rights
from dedupd.system.tree_paths import path_in_tree
from dedupd.volume.volume import Volume
from fuse_stub.files.open_file import OpenFile
from fuse_stub.files.open_files import OpenFiles

ANSWER_BYTES_MAX = 60_000
"""Of one answer; the kernel takes 65,536 of an attribute."""

Uncommitted = Callable[[OpenFile], AbstractAsyncContextManager[None]]


def is_listing(name: bytes) -> bool:
    return name == DELETED or name.startswith(DELETED + b".")


def listing(volume: Volume, directory_fd: int, name: bytes, uid: int) -> bytes:
    """The value of a listing attribute: JSON, one deletion a line, the newest first.

    Raises OSError (ENODATA where nothing can be had back).
    """
    below = path_in_tree(volume.data_fd, directory_fd)
    if below is None:
        raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))
    older_than = name[len(DELETED) + 1 :]
    try:
        before = DeletionId.parse(older_than.decode()) if older_than else None
    except (UsageError, UnicodeDecodeError):
        raise OSError(errno.ENODATA, os.strerror(errno.ENODATA)) from None
    lines, length = list[bytes](), 0
    for one in lost(volume, volume.policy(), below, uid):
        if before is not None and one.id >= before:
            continue
        line = json.dumps(one.to_json()).encode() + b"\n"
        if length + len(line) > ANSWER_BYTES_MAX:
            break
        lines.append(line)
        length += len(line)
    if not lines:
        raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))
    return b"".join(lines)


async def undelete(
    volume: Volume, files: OpenFiles, uncommitted: Uncommitted, ino: int, value: bytes, uid: int
) -> None:
    """Make an empty file what a deletion took. Raises OSError, Damaged."""
    try:
        order = Order.parse(value.decode())
        if uid != 0 and (order.privileges or order.force):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        one = DeletionLogs(volume).get(order.id, unproven=order.force)
        if uid not in (0, one.uid) or time.time_ns() >= end_ns(one, volume.policy()):
            raise UsageError("another user's, or expired")
    except (UsageError, UnicodeDecodeError):
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT)) from None
    file = await files.acquire(ino, write=True)
    with files.using(file):
        file.changes += 1
        async with uncommitted(file):
            status = os.fstat(file.fd)
            if file.stub is not None or uid not in (0, status.st_uid) or status.st_size:
                raise OSError(errno.EPERM, os.strerror(errno.EPERM))
            rights = rights_of(uid, privileges=order.privileges)
            stub = _revived(volume, file, one, order.id.log, rights)
            file.stub = files.sparse(file, stub)
            file.privileged = bool(os.fstat(file.fd).st_mode & 0o6000)


def _revived(
    volume: Volume, file: OpenFile, one: Deletion, log: int, rights: Rights
) -> StubAttribute:
    """As :func:`revive`. A collection may take the deletion meanwhile: it removes the log before
    it looks at the tree, so what comes after that is taken back."""
    stub = revive(volume, file.fd, one, rights)
    if not DeletionLogs(volume).has(log):
        take_back(volume, file.fd)
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    return stub
