"""Handles that are made from the number of an inode, in the form of the file system."""

import errno
import os
from pathlib import Path

import pytest

from dedupd_core import native
from dedupd_core.system.files import opened
from fuse_stub.files.file_handles import open_number
from tests.conftest import MakeFileSystem

pytestmark = pytest.mark.root

PLACES = [("ext4", ""), ("xfs", ""), ("xfs", "inode32"), ("btrfs", "")]


@pytest.fixture(params=PLACES, ids=lambda place: "-".join(filter(None, place)))
def top(request: pytest.FixtureRequest, loop_fs: MakeFileSystem) -> Path:
    kind, options = request.param
    point = loop_fs(kind, options=options)
    (point / "file").write_text("content")
    return point


def test_a_handle_of_number_and_generation_is_the_kernels(top: Path) -> None:
    with (
        opened(os.open(top, os.O_RDONLY)) as root_fd,
        opened(os.open(top / "file", os.O_RDONLY)) as fd,
    ):
        sample = native.system.name_to_handle(root_fd)
        found = os.fstat(fd).st_ino, native.system.generation(fd)
        assert native.system.handle_of(sample, *found) == native.system.name_to_handle(fd)


def test_an_inode_is_opened_by_its_number_alone(top: Path) -> None:
    with opened(os.open(top, os.O_RDONLY)) as root_fd:
        ino = (top / "file").stat().st_ino
        with opened(open_number(root_fd, ino, os.O_RDONLY)) as fd:
            assert os.read(fd, 16) == b"content"
        (top / "file").unlink()
        with pytest.raises(OSError) as caught:
            open_number(root_fd, ino, os.O_RDONLY)
        assert caught.value.errno == errno.ESTALE


def test_no_handle_is_made_in_a_form_that_is_not_known() -> None:
    unknown = (0xB1).to_bytes(4, "little") + bytes(16)
    assert native.system.handle_of(unknown, 5, 7) is None
