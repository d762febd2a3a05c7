"""A store is made in a directory of the caller, and no other directory changes."""

import os
import stat
from pathlib import Path

import pytest

from dedupd_core.errors import UsageError
from dedupd_core.shared.creation import create_store
from dedupd_core.system.disk import Disk
from tests.support.lab import let_others_pass
from tests.support.mounts import ALICE, as_user

pytestmark = pytest.mark.root


def create(path: Path, disk: Disk) -> None:
    create_store(str(path), chunk_size="64k", fingerprint="blake3", disk=disk, force=True)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_directory_of_another_user_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "store"
    path.mkdir(mode=0o755)
    os.chown(path, ALICE, ALICE)
    with pytest.raises(UsageError, match="belongs to another user"):
        create(path, Disk())
    assert (path.stat().st_uid, mode(path)) == (ALICE, 0o755)


def test_a_directory_that_was_put_in_place_of_a_new_one_keeps_its_mode(tmp_path: Path) -> None:
    let_others_pass(tmp_path)
    hers, path = tmp_path / "hers", tmp_path / "hers/store"
    hers.mkdir()
    (hers / "public").mkdir(mode=0o755)
    for one in (hers, hers / "public"):
        os.chown(one, ALICE, ALICE)

    class RacingDisk(Disk):
        def make_dir(self, dir_fd: int, name: bytes) -> None:
            super().make_dir(dir_fd, name)
            as_user(ALICE, exchange)

    def exchange() -> None:
        os.rename(path, hers / "away")
        os.rename(hers / "public", path)

    with pytest.raises(UsageError, match="belongs to another user"):
        create(path, RacingDisk())
    assert (path.stat().st_uid, mode(path)) == (ALICE, 0o755)
    assert os.listdir(path) == []
