"""Deletions as people see them: what is lost, and whose it was."""

import os
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from dedupd.config.policy import Policy
from dedupd.deleted.expiry import NS, end_ns
from dedupd.deleted.log import DeletionId, DeletionLogs
from dedupd.deleted.log_cache import LogCache
from dedupd.format.deletion import Deletion, listed_deletion
from dedupd.system.tree.takeover import is_privileged
from dedupd.volume.volume import Volume

DELETED = b"user.dedupd.deleted"
"""The attribute of a directory by which a mount tells users what they can have back."""


ROWS_AT_ONCE = 128
"""Deletions that native code looks at in one call, some ten microseconds each, and hands over."""

U32_MAX, U64_MAX = (1 << 32) - 1, (1 << 64) - 1


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
    """What can be restored of a path and of everything below it, in the order of
    :func:`examined`.

    Users other than root see what was theirs. ``logs`` tell afterwards what is damaged in them.
    Raises OSError.
    """
    cache = LogCache(logs or DeletionLogs(volume))
    for one in examined(volume, policy, below, uid, cache):
        if one is not None:
            yield one


def examined(
    volume: Volume,
    policy: Policy,
    below: bytes,
    uid: int,
    cache: LogCache,
    before: DeletionId | None = None,
) -> Iterator[Lost | None]:
    """The same for deletions with a lower id than ``before``; None now and then, so that a caller
    can pause where there is nothing to be had back.

    The latest log comes first, and of each log the latest deletion.
    """
    now_ns = time.time_ns()
    keep_ns = int(min(policy.keep_deleted_s_max * NS, U64_MAX))
    space = volume.space
    for number in cache.numbers(uid):
        if before is not None and number > before.log:
            continue
        end = before.offset if before is not None and number == before.log else U32_MAX
        log, rows = cache.listed(number), [(end, b"", b"", b"")]
        while rows:
            rows = log.newest(
                below,
                uid=uid or None,
                before=rows[-1][0],
                now_ns=now_ns,
                keep_ns=keep_ns,
                limit=ROWS_AT_ONCE,
            )
            offsets = [row[0] for row in rows]
            is_lost = log.lost(offsets, volume.data_fd, space.name, space.seeds[0])
            for (offset, *parts), is_one in zip(rows, is_lost, strict=True):
                if is_one:
                    one = listed_deletion(*parts)
                    yield Lost(DeletionId(number, offset), one, end_ns(one, policy))
            yield None
