"""Logs by user: nobody's deletions push out another's."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dedupd_core.deleted import log_space, writer
from dedupd_core.deleted.alarm import Alarm, AlarmState, keep_state
from dedupd_core.deleted.dropped import DroppedDeletions, add_counts, read_counts
from dedupd_core.deleted.log import DeletionId, DeletionLogs
from dedupd_core.deleted.writer import DeletionWriter
from dedupd_core.errors import NoSpace
from dedupd_core.system.disk import Disk
from dedupd_core.units import KIB
from dedupd_core.volume.volume import Volume
from tests.support.deletions import deletion_of
from tests.support.lab import new_lab, run_cli

ALICE, BOB = 40001, 40002
LARGE = bytes(60 * KIB)


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Volume]:
    lab = new_lab(tmp_path / "volume")
    lab.set_policy('keep_deleted = "7d"')
    with Volume.open(str(lab.root)) as one:
        yield one


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs have much less room than in production."""
    monkeypatch.setattr(log_space, "LOGS_BYTES_MAX", 4096 * KIB)
    monkeypatch.setattr(log_space, "USER_BYTES_MAX", 2048 * KIB)
    monkeypatch.setattr(log_space, "SLACK_BYTES", 256 * KIB)
    monkeypatch.setattr(writer, "LOG_BYTES_MAX", 256 * KIB)


def made(volume: Volume) -> DeletionWriter:
    return DeletionWriter(volume)


def rows(volume: Volume, uid: int) -> list[bytes]:
    """The paths of a user's deletions that can be read, the oldest first."""
    logs = DeletionLogs(volume)
    return [one.path for n in logs.numbers() for _, one in logs.read(n) if one.uid == uid]


def log_bytes(volume: Volume, uid: int) -> int:
    logs = DeletionLogs(volume)
    owners = {number: logs.header(number) for number in logs.numbers()}
    return sum(logs.size_bytes(n) for n, one in owners.items() if one and one.uid == uid)


def test_each_log_has_the_deletions_of_one_user_and_of_one_time(volume: Volume) -> None:
    one = made(volume)
    for at in range(6):
        kept_s = 3600 if at < 4 else 60
        deletion = deletion_of((ALICE, BOB)[at % 2], b"%d" % at)._replace(keep_s=kept_s)
        one.append(deletion)
    one.close()
    logs = DeletionLogs(volume)
    found = {number: logs.header(number) for number in logs.numbers()}
    assert [header.uid for header in found.values() if header] == [ALICE, BOB] * 2
    assert [[one.path for _, one in logs.read(number)] for number in found] == [
        [b"0", b"2"],
        [b"1", b"3"],
        [b"4"],
        [b"5"],
    ]


@pytest.mark.usefixtures("small")
def test_a_user_who_deletes_much_pushes_out_only_own_deletions(volume: Volume) -> None:
    one = made(volume)
    for at in range(20):
        one.append(deletion_of(BOB, b"bob%d" % at))
    for at in range(300):  # 18 MiB
        one.append(deletion_of(ALICE, b"alice%d" % at, LARGE))
    assert rows(volume, BOB) == [b"bob%d" % at for at in range(20)]
    left = rows(volume, ALICE)
    assert left == [b"alice%d" % at for at in range(300 - len(left), 300)], "the oldest went"
    assert 1500 * KIB <= log_bytes(volume, ALICE) <= log_space.USER_BYTES_MAX
    counts = one.take_counts()
    assert {uid: of_user.dropped for uid, of_user in counts.items()} == {ALICE: 300 - len(left)}
    assert one.take_counts() == {}
    one.close()


@pytest.mark.usefixtures("small")
def test_of_many_users_the_one_with_most_loses_the_oldest(volume: Volume) -> None:
    one = made(volume)
    for at in range(5):
        one.append(deletion_of(BOB, b"bob%d" % at, LARGE))
    for at in range(100):
        for uid in (ALICE, ALICE + 10, ALICE + 20):
            one.append(deletion_of(uid, b"%d" % at, LARGE))
    assert len(rows(volume, BOB)) == 5
    total = sum(DeletionLogs(volume).size_bytes(n) for n in DeletionLogs(volume).numbers())
    assert total <= log_space.LOGS_BYTES_MAX
    one.close()


@pytest.mark.usefixtures("small")
def test_it_counts_logs_of_earlier_mounts(volume: Volume) -> None:
    for _ in range(3):
        one = made(volume)
        for at in range(40):
            one.append(deletion_of(ALICE, b"%d" % at, LARGE))
        one.close()
    assert log_bytes(volume, ALICE) <= log_space.USER_BYTES_MAX
    assert rows(volume, ALICE)[-1] == b"39"


@pytest.mark.usefixtures("small")
def test_while_an_alarm_stands_nothing_is_dropped(volume: Volume) -> None:
    one = made(volume)
    for at in range(10):
        one.append(deletion_of(ALICE, b"before%d" % at))
    keep_state(volume.base_fd, AlarmState(Alarm(1, 2, 60, 60, 60, ("a",))), Disk())
    refused = 0
    for at in range(60):
        try:
            one.append(deletion_of(ALICE, b"%d" % at, LARGE))
        except NoSpace:
            refused += 1
    assert refused
    assert rows(volume, ALICE)[:10] == [b"before%d" % at for at in range(10)]
    assert one.take_counts()[ALICE].refused == refused
    keep_state(volume.base_fd, AlarmState(), Disk())
    one.append(deletion_of(ALICE, b"after", LARGE))
    assert rows(volume, ALICE)[-1] == b"after"
    one.close()


def test_logs_that_were_closed_are_appended_to_again(
    volume: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "OPEN_MAX", 2)
    one = made(volume)
    for at in range(12):
        one.append(deletion_of(ALICE + at % 4, b"%d" % at))
        for fd in one.unsynced() if at % 3 == 0 else ():
            os.close(fd)
    assert len(DeletionLogs(volume).numbers()) == 4
    assert rows(volume, ALICE) == [b"0", b"4", b"8"]
    one.close()


def test_a_log_that_was_removed_is_replaced(volume: Volume) -> None:
    one, logs = made(volume), DeletionLogs(volume)
    one.append(deletion_of(ALICE, b"first"))
    logs.remove(1, Disk())
    one.append(deletion_of(ALICE, b"second"))
    assert rows(volume, ALICE) == [b"second"]
    assert logs.numbers() == [2], "no number is used twice"
    one.close()


def test_dropped_deletions_cannot_be_read_and_the_log_goes_on(volume: Volume) -> None:
    one, logs = made(volume), DeletionLogs(volume)
    for name in (b"first", b"second", b"third"):
        one.append(deletion_of(ALICE, name))
    first, second, third = (at for at, _ in logs.read(1))
    logs.drop_before(1, third.offset, Disk())
    assert [at for at, _ in logs.read(1)] == [third]
    assert [logs.has(at) for at in (first, second, third)] == [False, False, True]
    assert not logs.has(DeletionId(9, 64))
    one.append(deletion_of(ALICE, b"fourth"))
    assert rows(volume, ALICE) == [b"third", b"fourth"]
    one.close()


def test_what_was_dropped_is_reported(volume: Volume) -> None:
    one = made(volume)
    one.append(deletion_of(ALICE, b"a"))
    counts = {ALICE: DroppedDeletions(dropped=3), BOB: DroppedDeletions(refused=1)}
    add_counts(volume.base_fd, counts, Disk())
    add_counts(volume.base_fd, {ALICE: DroppedDeletions(dropped=2)}, Disk())
    assert read_counts(volume.base_fd)[ALICE].dropped == 5
    told = run_cli("deleted", volume.root).stderr
    assert f"user {ALICE} lost 5 recorded deletions, and 0 deletions could not" in told
    assert f"user {BOB} lost 0 recorded deletions, and 1 deletion could not" in told
    one.close()
