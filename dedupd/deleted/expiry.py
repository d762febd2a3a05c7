"""Which deletions are kept: for their time, within a share of the disk, and as long as nobody
needs the space."""

import time
from dataclasses import dataclass

from dedupd.config.policy import Policy
from dedupd.deleted.log import DeletionLogs
from dedupd.format.deletion import Deletion
from dedupd.system.disk import Disk
from dedupd.system.files import FreeSpace

NS = 1_000_000_000

CALM_SHARE = 1.1
"""Space is short until this much more than a threshold is free: jobs and users move it to and fro,
and a disk that is used to 95 % is one of which 5 % are free, or a little more."""


def end_ns(one: Deletion, policy: Policy) -> int:
    """Until when a deletion is kept, ns since 1970. A policy that was made shorter counts at once;
    one that was made longer counts for what is deleted from then on."""
    return one.time_ns + int(min(one.keep_s, policy.keep_deleted_s_max) * NS)


@dataclass(frozen=True, slots=True)
class Expired:
    """The logs that do not stay, and how many of them go before their time because the space is
    needed (``early``)."""

    logs: frozenset[int]
    early: int


def expire(
    logs: DeletionLogs, policy: Policy, space: FreeSpace, disk: Disk, *, dry_run: bool = False
) -> Expired:
    """Remove logs of which nothing is to be kept any more. Raises OSError.

    The latest log stays as long as anything may. A log goes as a whole, and what is in one that
    stays is needed, all of it: so each deletion that can be read can be had back.
    """
    now_ns, gone, sizes = time.time_ns(), list[int](), dict[int, int]()
    for number in logs.numbers():
        rows = logs.read(number)
        if all(end_ns(one, policy) <= now_ns for _, one in rows):
            gone.append(number)
        else:
            sizes[number] = sum({one.stub.recipe: one.stub.covered for _, one in rows}.values())
    left = sum(sizes.values())
    allowed, early = allowed_bytes(policy, space, left), list[int]()
    for number, size in sizes.items():
        is_last = len(early) == len(sizes) - 1
        if allowed and (left <= allowed or is_last):
            break
        early.append(number)
        left -= size
    if not dry_run:
        for number in [*gone, *early]:
            logs.remove(number, disk)
    return Expired(frozenset((*gone, *early)), len(early))


def allowed_bytes(policy: Policy, space: FreeSpace, kept_bytes: int) -> int:
    """How much may be kept, as files' lengths: below ``space_low`` the newer half of what is there,
    below ``space_critical``, or within the reserve, nothing."""
    total = space.total_bytes
    critical_bytes = int(policy.space_critical.bytes_of(total) * CALM_SHARE)
    if space.free_bytes < max(critical_bytes, policy.reserve.bytes_of(total)):
        return 0
    share = policy.keep_deleted_max.bytes_of(total)
    if space.free_bytes < policy.space_low.bytes_of(total):
        return min(share, kept_bytes // 2)
    return share
