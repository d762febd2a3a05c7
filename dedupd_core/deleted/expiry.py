"""Decides which deletions are kept: until they expire, within users' shares, and while the space is
not needed."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dedupd_core.config.policy import Policy
from dedupd_core.deleted.dropped import remove_unfinished
from dedupd_core.deleted.log import DeletionId, DeletionLogs
from dedupd_core.deleted.recipe_sizes import RecipeSizes
from dedupd_core.deleted.shares import MIXED, KeptDeletions, surplus
from dedupd_core.deleted.writer import LOG_S_MAX
from dedupd_core.format.deletion import Deletion, LogHeader, encoded_bytes
from dedupd_core.system.files import FreeSpace
from dedupd_core.volume.volume import Volume

NS = 1_000_000_000

CALM_SHARE = 1.1
"""Space is low until this factor of a threshold is free. Jobs and users move the free space up and
down, and a disk that is used to 95 % has 5 % free, or a little more."""

IDLE_NS = int(2 * LOG_S_MAX * NS)
"""A log of this age gets no more entries, even if a clock was set."""


def end_ns(one: Deletion, policy: Policy) -> int:
    """Return when a deletion expires, ns since 1970. A shorter time in the policy applies at once;
    a longer time applies to later deletions."""
    return one.time_ns + int(min(one.keep_s, policy.keep_deleted_s_max) * NS)


@dataclass(frozen=True, slots=True)
class ExpiredDeletions:
    """The offset of the first kept deletion in each log. ``early``: the number of deletions that
    are dropped early, because the space is needed."""

    firsts: Mapping[int, int]
    early: int

    def has(self, one: DeletionId) -> bool:
        return one.offset < self.firsts.get(one.log, 0)


@dataclass(slots=True)
class _Log:
    """A log whose deletions from offset ``first`` to ``end`` are kept."""

    number: int
    header: LogHeader | None
    first: int
    end: int

    def drop(self, logs: DeletionLogs, volume: Volume) -> None:
        """Drop the deletions before this range. A log that may still get entries stays: a
        collection must not drop a deletion that it has not read."""
        header, is_empty = self.header, self.first >= self.end
        is_idle = header is None or time.time_ns() > header.created_ns + IDLE_NS
        if is_empty and (is_idle or header is None or header.uid is None):
            logs.remove(self.number, volume.disk)
        elif header is not None and header.uid is not None and self.first > header.first:
            logs.drop_before(self.number, self.first, volume.disk)


def expire(
    volume: Volume,
    policy: Policy,
    space: FreeSpace,
    pause: Callable[[], None] = lambda: None,
    *,
    dry_run: bool = False,
) -> ExpiredDeletions:
    """Drop expired deletions, and those beyond their users' shares.

    The start of each log is dropped; this is durable after a sync of the file system. All remaining
    deletions count as needed, so each readable one can be restored. ``pause`` is called now and
    then before anything is dropped; it may raise. Raises OSError.
    """
    logs, sizes = DeletionLogs(volume), RecipeSizes(volume, pause)
    read, kept = dict[int, _Log](), list[KeptDeletions]()
    for number in logs.numbers():
        pause()
        read[number] = _read(logs, number, policy, sizes, kept)

    def fits(total: int) -> bool:
        return total <= allowed_bytes(policy, space, total)

    sizes.refine(fits)
    allowed = allowed_bytes(policy, space, sizes.total)
    dropped = surplus(kept, sizes.by_recipe, allowed)
    for one in dropped:
        read[one.log].first = max(read[one.log].first, one.end)
    if not dry_run:
        remove_unfinished(volume.base_fd, volume.disk)
        for log in read.values():
            log.drop(logs, volume)
    firsts = {number: log.first for number, log in read.items()}
    return ExpiredDeletions(firsts, sum(len(one.recipes) for one in dropped))


def _read(
    logs: DeletionLogs, number: int, policy: Policy, sizes: RecipeSizes, kept: list[KeptDeletions]
) -> _Log:
    """Return a log without its expired deletions; the others are added to ``kept``."""
    header, now_ns = logs.header(number), time.time_ns()
    rows = [] if header is None else logs.read(number)
    if header is None or not rows:
        return _Log(number, header, 0, 0)
    ends = [at.offset + encoded_bytes(one) for at, one in rows]
    live = [at for at, (_, one) in enumerate(rows) if end_ns(one, policy) > now_ns]
    if not live:
        return _Log(number, header, ends[-1], ends[-1])
    if header.uid is None:  # it is dropped as one
        recipes = tuple(sizes.add(one.stub) for _, one in rows)
        kept.append(KeptDeletions(MIXED, rows[-1][1].time_ns, number, ends[-1], recipes))
        return _Log(number, header, header.first, ends[-1])
    for (_, one), end in zip(rows[live[0] :], ends[live[0] :], strict=True):
        kept.append(KeptDeletions(header.uid, one.time_ns, number, end, (sizes.add(one.stub),)))
    return _Log(number, header, rows[live[0]][0].offset, ends[-1])


def allowed_bytes(policy: Policy, space: FreeSpace, kept_bytes: int) -> int:
    """Return how many bytes may be kept. Below ``space_low``: half of the current bytes; below
    ``space_critical`` or the reserve: none."""
    total = space.total_bytes
    critical_bytes = int(policy.space_critical.bytes_of(total) * CALM_SHARE)
    if space.free_bytes < max(critical_bytes, policy.reserve.bytes_of(total)):
        return 0
    share = policy.keep_deleted_max.bytes_of(total)
    if space.free_bytes < policy.space_low.bytes_of(total):
        return min(share, kept_bytes // 2)
    return share
