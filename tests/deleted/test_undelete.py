"""Files put back by root into directories that users change, and files that cannot come back."""

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dedupd_core.deleted.undelete import FILES_MAX, Attach, DeletedFile, Undelete, UndeleteResult
from dedupd_core.errors import DedupdError
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import opened
from dedupd_core.system.paths import explain
from tests.support.lab import let_others_pass
from tests.support.mounts import ALICE, BOB, as_user

pytestmark = pytest.mark.root


class Exchanging(Disk):
    """Has a user do something once a file is durable, before it gets its name."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action

    def sync_file(self, fd: int) -> None:
        super().sync_file(fd)
        self._action()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """With a directory of a user's."""
    let_others_pass(tmp_path)
    path = tmp_path / "tree"
    (path / "hers").mkdir(parents=True)
    os.chown(path / "hers", ALICE, ALICE)
    return path


def give(fd: int, one: DeletedFile) -> None:
    os.write(fd, one.id.encode())
    os.fchown(fd, one.uid, one.gid)


def wanted(path: str, uid: int = ALICE) -> DeletedFile:
    return DeletedFile(f"id of {path}", os.fsencode(path), uid, uid, 0.0)


def take(
    tree: Path, *orders: DeletedFile, disk: Disk | None = None, attach: Attach = give
) -> list[UndeleteResult]:
    with opened(os.open(tree, os.O_RDONLY)) as fd:
        return list(Undelete(fd, disk or Disk(), attach).take(orders))


def reasons(results: list[UndeleteResult]) -> list[str]:
    return [explain(one.error) for one in results if one.error is not None]


def test_a_file_that_was_put_in_place_of_the_unfinished_one_is_reported(tree: Path) -> None:
    (tree / "hers/own").write_text("hers")
    os.chown(tree / "hers/own", ALICE, ALICE)
    exchange = Exchanging(
        lambda: as_user(
            ALICE, lambda: os.rename(tree / "hers/own", tree / "hers/.dedupd-undelete-0")
        )
    )
    (reason,) = reasons(take(tree, wanted("hers/f"), disk=exchange))
    assert "another user has created a file with this name" in reason
    assert (tree / "hers/f").stat().st_uid == ALICE


def test_directories_that_users_exchange_during_a_run_get_no_file_of_another(tree: Path) -> None:
    """The names are given in the directory that was checked."""
    for name in ("a", "b"):
        (tree / "hers" / name).mkdir()
        os.chown(tree / "hers" / name, ALICE, ALICE)
    hers = tree / "hers"

    def exchange() -> None:
        os.rename(hers / "a", hers / "c")
        os.rename(hers / "b", hers / "a")

    results = take(tree, wanted("hers/a/f"), disk=Exchanging(lambda: as_user(ALICE, exchange)))
    assert reasons(results) == []
    assert os.listdir(hers / "c") == ["f"]
    assert os.listdir(hers / "a") == []


def test_only_what_a_run_has_left_is_removed(tree: Path) -> None:
    hers = tree / "hers"
    (hers / ".dedupd-undelete-3").write_text("left by a kill")
    os.setxattr(hers / ".dedupd-undelete-3", "trusted.dedupd.unfinished", b"file")
    (hers / ".dedupd-undelete-1").write_text("root's own")
    (hers / ".dedupd-undelete-2").write_text("hers")
    os.setxattr(hers / ".dedupd-undelete-2", "user.dedupd.unfinished", b"file")
    (hers / ".dedupd-undelete-notes").write_text("hers")
    (hers / ".dedupd-undelete-4").mkdir()
    os.chown(hers / ".dedupd-undelete-4", ALICE, ALICE)
    (hers / ".dedupd-undelete-5/directory").mkdir(parents=True)
    (hers / ".dedupd-undelete-5").chmod(0o700)
    (hers / ".dedupd-undelete-6").mkdir(mode=0o700)
    (hers / ".dedupd-undelete-6/file").write_text("root's own")
    (hers / ".dedupd-undelete-7").symlink_to(hers)
    os.mkfifo(hers / ".dedupd-undelete-8")
    (hers / ".dedupd-undelete-9").write_text("of a run that is at work")
    os.setxattr(hers / ".dedupd-undelete-9", "trusted.dedupd.unfinished", b"file")
    with open(hers / ".dedupd-undelete-9", "rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert reasons(take(tree, wanted("hers/f"))) == []
    kept = {"f", *(f".dedupd-undelete-{name}" for name in ("notes", 1, 2, 4, 6, 7, 8, 9))}
    assert set(os.listdir(hers)) == kept
    assert os.listdir(hers / ".dedupd-undelete-6") == ["file"]


def test_two_runs_in_one_directory_leave_each_other_alone(tree: Path) -> None:
    with opened(os.open(tree, os.O_RDONLY)) as fd:
        first = Undelete(fd, Disk(), give).take([wanted("hers/a"), wanted("hers/b")])
        next(first)
        second = list(Undelete(fd, Disk(), give).take([wanted("hers/c")]))
        assert reasons(second) == reasons(list(first)) == []
    assert sorted(os.listdir(tree / "hers")) == ["a", "b", "c"]


def test_a_run_that_is_stopped_leaves_no_unfinished_file(tree: Path) -> None:
    with opened(os.open(tree, os.O_RDONLY)) as fd:
        run = Undelete(fd, Disk(), give).take([wanted(f"hers/{number}") for number in range(9)])
        for _ in range(3):
            next(run)
        run.close()  # type: ignore[attr-defined]
    assert sorted(os.listdir(tree / "hers")) == ["0", "1", "2"]


def test_a_file_that_cannot_come_back_stops_no_other(tree: Path) -> None:
    """Whatever fails, in whichever step, and in each group of files."""
    count = 2 * FILES_MAX + 50

    def attach(fd: int, one: DeletedFile) -> None:
        number = int(one.path.rpartition(b"/")[2])
        if number % 10 == 3:
            raise OSError(errno.EIO, os.strerror(errno.EIO), fd)
        if number % 10 == 4:
            raise DedupdError("its recipe is damaged")
        if number % 10 == 5:
            os.setxattr(fd, b"no.such.name", b"")
        give(fd, one)

    (tree / "hers/17").mkdir()
    beside = time.strftime("17.deleted-%Y%m%d-%H%M%S", time.localtime(0.0))
    (tree / "hers" / beside).mkdir()
    orders = [wanted(f"{'hers' if n % 7 else 'new'}/{n}") for n in range(count)]
    orders[100] = wanted("his/100")
    (tree / "his").mkdir()
    os.chown(tree / "his", BOB, BOB)
    results = take(tree, *orders, attach=attach)
    failed = {n for n in range(count) if n % 10 in (3, 4, 5)} | {17, 100}
    assert {n for n, one in enumerate(results) if one.error is not None} == failed
    texts = reasons(results)
    assert texts.count("Input/output error") == sum(n % 10 == 3 for n in range(count))
    assert texts.count("Operation not supported") == sum(n % 10 == 5 for n in range(count))
    names = {*os.listdir(tree / "hers"), *os.listdir(tree / "new"), *os.listdir(tree / "his")}
    expected = {str(n) for n in set(range(count)) - failed}
    assert names == expected | {"17", beside}
    assert stat.S_IMODE((tree / "new").stat().st_mode) == 0o700
