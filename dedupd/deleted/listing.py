"""Deletions as people see them: what is lost, and whose it was."""

import os
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from dedupd import native
from dedupd.config.policy import Policy
from dedupd.deleted.expiry import NS, end_ns
from dedupd.deleted.log import DeletionId, DeletionLogs
from dedupd.errors import DamagedStub
from dedupd.format.deletion import Cause, Deletion
from dedupd.format.stub import decode_stub
from dedupd.system.files import opened
from dedupd.system.paths import open_beneath
from dedupd.system.takeover import is_privileged
from dedupd.volume.volume import Volume

DELETED = b"user.dedupd.deleted"
"""The attribute of a directory by which a mount tells users what they can have back."""


class Lost(NamedTuple):
    """A deletion that can be had back until ``end_ns`` (ns since 1970)."""

    id: DeletionId
    deletion: Deletion
    end_ns: int

    def to_json(self) -> dict[str, Any]:
        one = self.deletion
        return {
            "id": str(self.id),
            "path": os.fsdecode(one.path),
            "cause": one.cause.name.lower(),
            "time_s": one.time_ns / NS,
            "end_s": self.end_ns / NS,
            "length_bytes": length_of(one),
            "uid": one.uid,
            "gid": one.gid,
            "mode": one.mode,
            "mtime_ns": one.mtime_ns,
            "lost_own_blocks": one.lost_own_blocks,
            "privileged": is_privileged(one.mode, [name for name, _ in one.attributes]),
        }


def length_of(one: Deletion) -> int:
    """The length that it comes back with. Own blocks that are gone must not come back as zeros."""
    return one.stub.covered if one.lost_own_blocks else one.size


def lost(
    volume: Volume,
    policy: Policy,
    below: bytes,
    uid: int = 0,
    logs: DeletionLogs | None = None,
) -> Iterator[Lost]:
    """What can be had back of a path and all below it, the newest first.

    Users other than root see what was theirs. ``logs`` tell afterwards what is damaged in them.
    Raises OSError.
    """
    now_ns = time.time_ns()
    prefix = below + b"/" if below else b""
    for one_id, one in (logs or DeletionLogs(volume)).newest_first():
        if uid not in (0, one.uid) or not (one.path == below or one.path.startswith(prefix)):
            continue
        until_ns = end_ns(one, policy)
        if until_ns > now_ns and is_lost(volume, one):
            yield Lost(one_id, one, until_ns)


def is_lost(volume: Volume, one: Deletion) -> bool:
    """Whether the content is not where it was: a deletion is noted before it happens, and it may
    have been had back."""
    if not one.has_path:
        return True
    try:
        with opened(open_beneath(volume.data_fd, one.path, os.O_PATH | os.O_NOFOLLOW)) as fd:
            status = os.fstat(fd)
            # What came back, or is new, may have been given the number of what went.
            is_same = status.st_ino == one.inode and native.system.generation(fd) == one.generation
            if is_same and one.cause in (Cause.REMOVED, Cause.REPLACED):
                return False
            value = os.getxattr(b"/proc/self/fd/%d" % fd, volume.space.name)
        there = decode_stub(value, volume.space.volume_id, "")
    except (OSError, DamagedStub):
        return True
    mine = one.stub
    return not there.is_clean or (there.recipe, there.covered) != (mine.recipe, mine.covered)
