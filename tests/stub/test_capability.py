"""A job that changes the blocks of a program keeps the rights of that program, and gives them to no
other file."""

import os
import stat
from pathlib import Path

import pytest

from dedupd_core.stub.transition import keeping_capability
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import opened
from tests.support.lab import let_others_pass, noise
from tests.support.mounts import ALICE, as_user

pytestmark = pytest.mark.root

CAPABILITY = "security.capability"
RAW_SOCKETS = bytes.fromhex("0100000200200000000000000000000000000000")


def exchange(hers: Path) -> None:
    """The owner of the directory puts a program of hers in place of that of root."""
    os.rename(hers / "program", hers / "away")
    (hers / "program").write_bytes(b"evil")
    (hers / "program").chmod(0o755)


@pytest.mark.parametrize("link", [False, True])
def test_a_file_that_takes_the_place_of_a_program_gets_none_of_its_rights(
    tmp_path: Path, link: bool
) -> None:
    let_others_pass(tmp_path)
    hers = tmp_path / "hers"
    hers.mkdir()
    os.chown(hers, ALICE, ALICE)
    (hers / "program").write_bytes(noise(8192))
    os.setxattr(hers / "program", CAPABILITY, RAW_SOCKETS)

    def race() -> None:
        exchange(hers)
        if link:
            os.rename(hers / "program", hers / "evil")
            (hers / "program").symlink_to("evil")

    with opened(os.open(hers / "program", os.O_RDWR)) as fd:
        with keeping_capability(fd, Disk()):
            os.truncate(fd, 4096)  # the kernel takes the capability away
            assert CAPABILITY not in os.listxattr(fd)
            as_user(ALICE, race)
        assert os.getxattr(fd, CAPABILITY) == RAW_SOCKETS
    assert os.getxattr(hers / "away", CAPABILITY) == RAW_SOCKETS
    for path in (hers / "program", hers / "evil"):
        if path.exists():
            assert CAPABILITY not in os.listxattr(path)
            assert stat.S_IMODE(path.stat().st_mode) == 0o755
