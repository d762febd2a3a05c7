"""What a mount notes of deletions, if there is too much of it or the disk fails."""

import errno
import logging
import os
from pathlib import Path

import pytest
import trio

from dedupd_core.deleted.log import DeletionLogs
from dedupd_core.format.deletion import Cause
from dedupd_core.system.disk import Disk
from dedupd_core.volume.volume import Volume
from fuse_stub.deleted import noting
from fuse_stub.deleted.noting import ATTRIBUTES_BYTES_MAX, Deletions, kept_attributes
from fuse_stub.policy.watched_policy import WatchedPolicy
from tests.support.deletions import newest_first
from tests.support.lab import new_lab, noise

pytestmark = pytest.mark.root


class NotSyncing(Disk):
    """Fails to make files durable, once."""

    failures = 1

    def sync_file(self, fd: int) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync_file(fd)


def test_a_log_that_cannot_be_synced_is_appended_to_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(noting, "SYNC_S", 0.001)
    lab = new_lab(tmp_path / "volume")
    for name in ("a", "b"):
        lab.put(name, noise(20_000, len(name)))
    lab.optimize()
    lab.set_policy('keep_deleted = "7d"\n')

    async def until_it_failed(deletions: Deletions) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(deletions.sync)
            while "are not durable" not in caplog.text:
                await trio.sleep(0.001)
            nursery.cancel_scope.cancel()

    with Volume.open(str(lab.root), NotSyncing()) as volume:
        deletions = Deletions(volume, WatchedPolicy(volume, is_read_only=False))
        deletions.removing(volume.data_fd, b"a", Cause.REMOVED)
        with caplog.at_level(logging.ERROR):
            trio.run(until_it_failed, deletions)
        deletions.removing(volume.data_fd, b"b", Cause.REMOVED)
        deletions.close()
        rows = [(at.log, one.path) for at, one in newest_first(DeletionLogs(volume))]
    assert rows == [(2, b"b"), (1, b"a")]


def test_attributes_that_are_too_many_leave_room_for_acls() -> None:
    acl, small, large = (
        (b"system.posix_acl_access", bytes(50)),
        (b"user.a", b"x"),
        (b"user.b", bytes(ATTRIBUTES_BYTES_MAX)),
    )
    assert list(kept_attributes([small, acl])) == [acl, small]
    assert list(kept_attributes([small, large, acl])) == [acl, small]
    assert list(kept_attributes([large, acl, small])) == [acl, small]
