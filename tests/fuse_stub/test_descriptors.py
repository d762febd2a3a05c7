"""What one user can take of the descriptors, and what is left to the others."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from tests.fuse_stub.test_fill_lane import Patched
from tests.support.mounts import ALICE, BOB, MountedLab, as_user, mounted_lab

LIMIT = 800


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MountedLab]:
    """A mount whose process has few descriptors."""
    monkeypatch.setattr("fuse_stub.process.allow_descriptors", lambda: None)
    with mounted_lab(tmp_path, nursery=Patched(descriptors_max=LIMIT)) as lab:
        yield lab


@pytest.mark.root
@pytest.mark.parametrize("removes", [False, True])
def test_others_go_on_while_one_user_holds_all_that_a_user_may(
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
        with open(lab.view / "hers" / "0-bob", "w") as own:
            (lab.view / "hers" / "0-bob").unlink()
            own.write("x")

    def alice() -> None:
        held = []
        for number in range(files):
            path = lab.view / "hers" / f"{number}"
            fd = os.open(path, os.O_RDWR)
            assert os.read(fd, 10) == b""
            try:
                if removes:
                    path.unlink()
            except OSError as error:
                assert error.errno == errno.EMFILE
                break
            held.append(fd)
        if removes:
            assert 50 < len(held) < files
        else:
            assert len(held) == files
        for fd in held:
            assert os.pwrite(fd, b"x", 0) == 1
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


@pytest.mark.root
def test_more_files_are_open_than_the_mount_has_descriptors(lab: MountedLab) -> None:
    opened: list[int] = []
    for number in range(LIMIT + 100):
        path = lab.view / f"{number}"
        path.write_bytes(b"%d" % number)
        opened.append(os.open(path, os.O_RDWR))
    for number, fd in enumerate(opened):
        # So that nothing comes from the cache of the kernel.
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        assert os.read(fd, 100) == b"%d" % number
        os.write(fd, b"+")
        os.close(fd)
    assert (lab.data / "7").read_bytes() == b"7+"


def pipe() -> tuple[TextIO, TextIO]:
    reader, writer = os.pipe()
    return open(reader), open(writer, "w")
