"""Native code that is given a door has its effects by it: in order, one by one, or not at all."""

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dedupd_core import native
from dedupd_core.errors import NoSpace
from dedupd_core.stub.transition import FileIdentity
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import opened
from tests.support.lab import OLD_NS

NAME = b"user.dedupd"
FILES = 100
FINISH = ["punch", "reach", "set_times", "reach", "set_attribute"]


class Door:
    """Has each step carried out, but for the one at ``fails_at``, which ends in ``error``."""

    def __init__(self, fails_at: int = -1, error: int | BaseException = 0) -> None:
        self.steps: list[tuple[str, str]] = []
        self.threads: set[int] = set()
        self._fails_at = fails_at
        self._error = error

    def __call__(self, name: str, *arguments: Any) -> int:
        self.threads.add(threading.get_ident())
        file = "" if name == "reach" else os.readlink(f"/proc/self/fd/{arguments[0]}")
        self.steps.append((name, Path(file).name))
        if len(self.steps) - 1 == self._fails_at:
            if isinstance(self._error, BaseException):
                raise self._error
            return -self._error
        if name != "reach":
            return getattr(Disk(), name)(*arguments) or 0
        return 0

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.steps]


@contextmanager
def batch_of(
    directory: Path, door: Door
) -> Iterator[tuple[native.commit.CommitBatch, native.commit.CommitRequests]]:
    """Files of several threads' worth, to be committed by a door."""
    requests = native.commit.CommitRequests()
    for number in range(FILES):
        path = directory / f"file{number}"
        path.write_bytes(b"x" * 5000)
        os.utime(path, ns=(OLD_NS, OLD_NS))
        identity = FileIdentity.of(path.stat())
        requests.add(path.name.encode(), identity, (1 << 32, bytes(16), False))
    with opened(os.open(directory, os.O_RDONLY)) as fd:
        batch = native.commit.CommitBatch(fd, NAME, (0, 0), 4096, 8, True, door)
        yield batch, requests
        batch.close()


def has_attribute(directory: Path, number: int) -> bool:
    return NAME.decode() in os.listxattr(directory / f"file{number}")


def test_each_file_of_a_batch_has_its_steps_in_order_on_one_thread(tmp_path: Path) -> None:
    door = Door()
    names = [f"file{number}" for number in range(FILES)]
    with batch_of(tmp_path, door) as (batch, requests):
        assert batch.begin(requests) == []
        assert [file for name, file in door.steps if name == "set_attribute"] == names
        door.steps.clear()
        assert batch.finish()[0] == []
    assert door.names == FINISH * FILES
    assert [file for name, file in door.steps if name == "punch"] == names
    assert door.threads == {threading.get_ident()}


def test_a_step_that_fails_costs_its_file_only(tmp_path: Path) -> None:
    with batch_of(tmp_path, Door(20, errno.EIO)) as (batch, requests):
        ((at, refusal),) = batch.begin(requests)
        assert (at, refusal.why, refusal.errno) == (10, "io", errno.EIO)
        assert not has_attribute(tmp_path, 10)
        assert batch.finish()[0] == []
    assert (tmp_path / "file10").read_bytes() == b"x" * 5000


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("a mistake")])
def test_an_exception_ends_a_batch_with_no_more_steps(tmp_path: Path, error: BaseException) -> None:
    door = Door(20, error)
    with batch_of(tmp_path, door) as (batch, requests):
        with pytest.raises(type(error)):
            batch.begin(requests)
        assert len(door.steps) == 21
        assert [has_attribute(tmp_path, n) for n in range(FILES)] == [n < 10 for n in range(FILES)]
        assert batch.revert() == 0
        assert not any(has_attribute(tmp_path, n) for n in range(FILES))


def test_an_exception_between_two_steps_leaves_what_was_done(tmp_path: Path) -> None:
    door, space = Door(3, KeyboardInterrupt()), (NAME, (0, 0), 4096)
    with opened(os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)) as fd:
        os.pwrite(fd, b"x" * 5000, 0)
        os.utime(fd, ns=(OLD_NS, OLD_NS))
        file = FileIdentity.of(os.fstat(fd)), (1 << 32, bytes(16), False), None
        begun = native.commit.begin(fd, file, space, door)
        assert isinstance(begun, tuple)
        value = os.getxattr(fd, NAME)
        with pytest.raises(KeyboardInterrupt):
            native.commit.finish(fd, begun, file, space, door)
        assert os.pread(fd, 5000, 0) == bytes(5000)
        assert os.fstat(fd).st_mtime_ns != OLD_NS and os.getxattr(fd, NAME) == value
    assert door.names == ["set_attribute", "reach", *FINISH[:2]]


def test_the_errors_of_a_disk_reach_native_code_by_their_numbers() -> None:
    class Failing(Disk):
        def punch(self, fd: int, offset: int, length: int) -> None:
            raise OSError(errno.EROFS, "read-only")

        def truncate(self, fd: int, length: int) -> None:
            raise NoSpace("no space left")

    door = Failing().door
    assert door is not None
    assert door("punch", 0, 0, 0) == -errno.EROFS
    assert door("truncate", 0, 0) == -errno.ENOSPC


def test_production_has_no_door(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Disk().door is None
    monkeypatch.setattr("dedupd_core.failpoint.hook", lambda name: None)
    assert Disk().door is not None
