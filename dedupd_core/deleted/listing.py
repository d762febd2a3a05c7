"""Deletions in the form for people: lost files and their owners."""

import json
import time
from collections.abc import Iterator
from typing import Any

from dedupd_core.config.policy import Policy
from dedupd_core.deleted.expiry import NS
from dedupd_core.deleted.log import DeletionId, DeletionLogs
from dedupd_core.deleted.log_cache import LogCache
from dedupd_core.format.deletion import Deletion
from dedupd_core.volume.volume import Volume

DELETED = b"user.dedupd.deleted"
"""The attribute of a directory that lists the files that users of a mount can restore."""

ROWS_AT_ONCE = 128
"""Deletions that native code examines per call, some ten microseconds each."""

U32_MAX, U64_MAX = (1 << 32) - 1, (1 << 64) - 1


def length_of(one: Deletion) -> int:
    """Return the restored length. Lost local blocks must not be restored as zeros."""
    return one.stub.covered if one.lost_own_blocks else one.size


def lost(
    volume: Volume,
    policy: Policy,
    below: bytes,
    uid: int = 0,
    logs: DeletionLogs | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the restorable deletions at and below a path, in the order of :func:`lines`.

    Users other than root only see their own files. Afterwards, ``logs`` reports damage. Raises
    OSError.
    """
    cache = LogCache(logs or DeletionLogs(volume))
    for some in lines(volume, policy, below, uid, cache):
        yield from map(json.loads, some)


def lines(
    volume: Volume,
    policy: Policy,
    below: bytes,
    uid: int,
    cache: LogCache,
    before: DeletionId | None = None,
) -> Iterator[list[bytes]]:
    """Yield the same as lines of JSON, a few at a time, for ids lower than ``before``.

    A caller can pause in between, even if there is nothing to restore. The latest log comes first,
    and of each log the latest deletion.
    """
    now_ns = time.time_ns()
    keep_ns = int(min(policy.keep_deleted_s_max * NS, U64_MAX))
    space = volume.space
    for number in cache.numbers(uid):
        if before is not None and number > before.log:
            continue
        end = before.offset if before is not None and number == before.log else U32_MAX
        log = cache.listed(number)
        while end:
            some, end = log.lines(
                below,
                number=number,
                uid=uid or None,
                before=end,
                now_ns=now_ns,
                keep_ns=keep_ns,
                limit=ROWS_AT_ONCE,
                data_fd=volume.data_fd,
                attribute=space.name,
                seed=space.seeds[0],
            )
            yield some
