"""Looking up many names at once: what ``stat`` says of each, and a handle that opens it again."""

import os
from pathlib import Path

import pytest

from dedupd import native


def test_what_is_told_of_a_name_is_what_stat_says(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content" * 1000)
    os.utime(tmp_path / "file", ns=(1_234_567_890_123_456_789, -987_654_321))
    (tmp_path / "directory").mkdir(mode=0o2750)
    (tmp_path / "link").symlink_to("nowhere")
    os.mkfifo(tmp_path / "fifo")
    os.link(tmp_path / "file", tmp_path / "second name")
    names = [os.fsencode(name) for name in [*os.listdir(tmp_path), ".", ".."]]
    fd = os.open(tmp_path, os.O_RDONLY)
    for name, found in zip(names, native.system.look_up(fd, names), strict=True):
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        assert found is not None
        attributes = [attribute for attribute in dir(found) if attribute.startswith("st_")]
        assert len(attributes) == 13
        for attribute in attributes:
            assert getattr(found, attribute) == getattr(status, attribute), (name, attribute)
    os.close(fd)


def test_a_name_that_is_not_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "here").touch()
    fd = os.open(tmp_path, os.O_RDONLY)
    found = native.system.look_up(fd, [b"absent", b"here", b"absent"])
    assert [one is None for one in found] == [True, False, True]
    os.close(fd)


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    (tmp_path / "here").touch()
    fd = os.open(tmp_path, os.O_RDONLY)
    before = os.listdir("/proc/self/fd")
    native.system.look_up(fd, [b"here", b"absent"] * 10)
    assert os.listdir("/proc/self/fd") == before
    os.close(fd)


@pytest.mark.root
def test_the_handle_opens_the_file_again(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    fd = os.open(tmp_path, os.O_RDONLY)
    (found,) = native.system.look_up(fd, [b"file"])
    assert found is not None
    (tmp_path / "file").rename(tmp_path / "renamed")
    again = native.system.open_by_handle(fd, found.handle, os.O_RDONLY)
    assert os.read(again, 100) == b"content"
    os.close(again)
    os.close(fd)
