"""How much may be written: all but the reserve, as the file system is at that moment."""

import os
from pathlib import Path

import pytest

from dedupd_core.config.reserve import Reserve
from dedupd_core.config.room import Room
from dedupd_core.errors import NoSpace
from dedupd_core.system.files import free_space, opened
from dedupd_core.units import MIB
from tests.conftest import MakeFileSystem

pytestmark = pytest.mark.root


def test_users_take_of_the_room_and_never_of_the_reserve(loop_fs: MakeFileSystem) -> None:
    point = loop_fs("ext4", "64M")
    with opened(os.open(point, os.O_RDONLY)) as fd:
        free = free_space(fd).free_bytes
        room = Room(fd, Reserve(size_bytes=free - 20 * MIB), "share")
        assert room.left_bytes == 20 * MIB
        room.require(20 * MIB, "a.img")
        with pytest.raises(NoSpace, match=r"^share: no space left for a\.img: .* `reserve`$"):
            room.require(20 * MIB + 1, "a.img")
        _fill(point / "theirs", 30 * MIB)
        assert -10 * MIB - 64 * 1024 <= room.left_bytes <= -10 * MIB
        with pytest.raises(NoSpace):
            room.require(0, "a.img")


def test_a_reserve_of_nothing_leaves_all_of_it_to_jobs(loop_fs: MakeFileSystem) -> None:
    with opened(os.open(loop_fs("ext4", "64M"), os.O_RDONLY)) as fd:
        room = Room(fd, Reserve(size_bytes=0), "share")
        assert room.left_bytes == free_space(fd).free_bytes


def _fill(path: Path, length: int) -> None:
    with open(path, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, length)
