"""What one user can take of the descriptors, and what is left to the others."""

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TextIO

import pytest

from fuse_stub.files.descriptors import Descriptors
from fuse_stub.files.inodes import descriptors_cached_max
from tests.fuse_stub.test_fill_lane import mount_in_fork
from tests.support.mounts import ALICE, BOB, MountedLab, as_user, mounted_lab

LIMIT = 800


def taken(descriptors: Descriptors, uid: int) -> int:
    """How many a user gets who takes all."""
    count = 0
    with suppress(OSError):
        while True:
            descriptors.take(uid)
            count += 1
    return count


def test_each_user_leaves_as_many_as_the_user_has() -> None:
    descriptors = Descriptors(LIMIT)
    all_of_them = (LIMIT - LIMIT // 4 - descriptors_cached_max(LIMIT)) // 2
    alice, bob, root = (taken(descriptors, uid) for uid in (ALICE, BOB, 0))
    assert (alice, bob) == (all_of_them // 2, all_of_them // 4)
    assert alice + bob + root == all_of_them
    descriptors.give_back(ALICE)
    descriptors.take(0)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MountedLab]:
    """A mount whose process has few descriptors."""

    limited = partial(mount_in_fork, descriptors_max=LIMIT)
    monkeypatch.setattr("fuse_stub.process.allow_descriptors", lambda: None)
    monkeypatch.setattr("fuse_stub.process.mount_in_background", limited)
    with mounted_lab(tmp_path) as lab:
        yield lab


@pytest.mark.root
@pytest.mark.parametrize("removes", [False, True])
def test_others_list_and_open_while_one_user_has_the_whole_share(
    lab: MountedLab, removes: bool
) -> None:
    files = 600
    (lab.view / "hers").mkdir(mode=0o777)
    (lab.view / "hers").chmod(0o777)
    for number in range(files):
        (lab.view / "hers" / f"{number}").touch(mode=0o666)
        (lab.view / "hers" / f"{number}").chmod(0o666)
    (lab.view / "other").mkdir()
    (lab.view / "other" / "file").write_bytes(b"content")

    def bob() -> None:
        for _ in range(20):
            assert os.listdir(lab.view / "other") == ["file"]
            assert (lab.view / "other" / "file").read_bytes() == b"content"

    def alice() -> None:
        held = []
        for number in range(files):
            path = lab.view / "hers" / f"{number}"
            try:
                held.append(os.open(path, os.O_RDWR))
                if removes:
                    path.unlink()
            except OSError as error:
                assert error.errno == errno.EMFILE
                break
        assert 50 < len(held) < files
        ready[1].write("x")
        ready[1].close()
        assert go_on[0].read(1) == "x"

    ready, go_on = pipe(), pipe()
    child = os.fork()
    if child == 0:
        try:
            go_on[1].close()
            as_user(ALICE, alice)
            os._exit(0)
        finally:
            os._exit(1)
    ready[1].close()
    assert ready[0].read(1) == "x"
    as_user(BOB, bob)
    assert os.listdir(lab.view / "other") == ["file"]
    go_on[1].write("x")
    go_on[1].close()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def pipe() -> tuple[TextIO, TextIO]:
    reader, writer = os.pipe()
    return open(reader), open(writer, "w")
