"""The kernel keeps no names where the file system below may ignore their case: it does not know
which names are the same, so that a removal by one of them would leave the others.

Kernels that ignore case themselves run the scenarios of ``tests/vm/guest/casefold.py``. Here a name
that changes below the mount stands for the other spelling of one that users remove.
"""

import os
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from dedupd_core.system.file_system import may_ignore_case
from dedupd_core.system.files import opened
from fuse_stub import mounted_volume
from tests.conftest import MakeFileSystem
from tests.support.mounts import Nursery, mounted_lab, serve_for_test

pytestmark = pytest.mark.root


def serve_ignoring_case(path: str, mountpoint: str, cache_bytes: int, answer: Connection) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mounted_volume, "may_ignore_case", lambda _: True)
        serve_for_test(path, mountpoint, cache_bytes, answer)


def test_a_name_is_looked_up_each_time(tmp_path: Path) -> None:
    with mounted_lab(tmp_path, nursery=Nursery(serve_ignoring_case)) as lab:
        made, listed, absent = (lab.view / name for name in ("made", "listed", "absent"))
        made.write_bytes(b"by a request that makes it")
        (lab.data / "listed").write_bytes(b"by a listing")
        assert {entry.stat().st_size for entry in os.scandir(lab.view)} == {26, 12}
        assert not absent.exists()
        for path in (made, listed):
            (lab.data / path.name).rename(lab.data / f"{path.name} elsewhere")
            assert not path.exists()
        (lab.data / "absent").touch()
        assert absent.exists()


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs"])
def test_the_usual_file_systems_do_not_ignore_case(kind: str, loop_fs: MakeFileSystem) -> None:
    point = loop_fs(kind)
    (point / "entry").touch()
    with opened(os.open(point, os.O_RDONLY | os.O_DIRECTORY)) as fd:
        assert not may_ignore_case(fd)
    assert [path.name for path in point.iterdir() if path.name != "lost+found"] == ["entry"]
