"""What a collection drops of the logs."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from dedupd_core.config.policy import Policy
from dedupd_core.config.reserve import Reserve
from dedupd_core.deleted import expiry
from dedupd_core.deleted.expiry import expire
from dedupd_core.deleted.log import DeletionLogs
from dedupd_core.deleted.writer import DeletionWriter
from dedupd_core.format.stub import Flag
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import FreeSpace
from dedupd_core.units import GIB
from dedupd_core.volume.volume import Volume
from tests.support.deletions import deletion_of
from tests.support.lab import new_lab

ALICE, BOB = 40001, 40002
HOUR_NS = 3600 * 10**9


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Volume]:
    with Volume.open(str(new_lab(tmp_path / "volume").root)) as one:
        yield one


def noted(volume: Volume, deletions: Sequence[tuple[int, bytes, int, int]]) -> DeletionWriter:
    """Deletions of a user, with a path, an age in hours, and a length."""
    writer = DeletionWriter(volume)
    for at, (uid, path, hours, size) in enumerate(deletions):
        one = deletion_of(uid, path, recipe=at + 1)
        stub = replace(one.stub, covered=size, flags=Flag.DIRECT)
        time_ns = time.time_ns() - hours * HOUR_NS
        writer.append(one._replace(time_ns=time_ns, keep_s=10**6, stub=stub))
    return writer


def paths(volume: Volume) -> list[bytes]:
    logs = DeletionLogs(volume)
    return sorted(one.path for number in logs.numbers() for _, one in logs.read(number))


def policy(share_bytes: int, hours: float = 24.0) -> Policy:
    zero = Reserve(size_bytes=0)
    return Policy(
        keep_deleted_s=hours * 3600,
        keep_deleted_max=Reserve(size_bytes=share_bytes),
        space_low=zero,
        space_critical=zero,
        reserve=zero,
    )


SPACE = FreeSpace(100 * GIB, 200 * GIB)
"""Free, and in total."""


def test_expired_deletions_are_dropped_and_the_others_stay(volume: Volume) -> None:
    noted(volume, [(ALICE, b"old", 30, 1), (BOB, b"older", 40, 1), (ALICE, b"new", 1, 1)]).close()
    found = expire(volume, policy(GIB), SPACE, dry_run=True)
    assert paths(volume) == [b"new", b"old", b"older"], "a dry run"
    assert expire(volume, policy(GIB), SPACE) == found
    assert paths(volume) == [b"new"]
    assert found.early == 0


def test_one_user_loses_nothing_for_what_another_deletes(volume: Volume) -> None:
    mine = [(BOB, b"bob%d" % at, 10 - at, 1000) for at in range(5)]
    noted(volume, [*mine, *((ALICE, b"alice%d" % at, 1, GIB) for at in range(9))]).close()
    found = expire(volume, policy(4 * GIB), SPACE)
    assert found.early == 6
    assert paths(volume) == [b"alice6", b"alice7", b"alice8", *(path for _, path, _, _ in mine)]


def test_below_the_critical_limit_nothing_is_kept(volume: Volume) -> None:
    noted(volume, [(ALICE, b"a", 1, 10), (BOB, b"b", 1, 10)]).close()
    full = FreeSpace(0, 200 * GIB)
    limits = policy(GIB)
    assert expiry.allowed_bytes(limits, full, 20) == GIB, "no limit"
    found = expire(volume, Policy(space_critical=Reserve(size_bytes=GIB)), full)
    assert (found.early, paths(volume)) == (2, [])


def test_what_is_noted_while_it_runs_stays(volume: Volume) -> None:
    """A log from which everything is dropped may be appended to in the same moment."""
    writer = noted(volume, [(ALICE, b"old", 30, 1)])
    late = deletion_of(ALICE, b"late")._replace(keep_s=10**6)
    drop = DeletionLogs.drop_before

    def dropping(self: DeletionLogs, number: int, first: int, disk: Disk) -> None:
        writer.append(late)
        drop(self, number, first, disk)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeletionLogs, "drop_before", dropping)
        expire(volume, policy(GIB), SPACE)
    writer.close()
    assert paths(volume) == [b"late"]


def test_logs_that_are_not_appended_to_any_more_are_removed(
    volume: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted(volume, [(ALICE, b"old", 30, 1)]).close()
    expire(volume, policy(GIB), SPACE)
    assert DeletionLogs(volume).numbers() == [1]
    monkeypatch.setattr(expiry, "IDLE_NS", -1)
    expire(volume, policy(GIB), SPACE)
    assert DeletionLogs(volume).numbers() == []
