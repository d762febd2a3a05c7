"""A write that is refused leaves nothing behind: neither in the file nor in the kernel's cache."""

import errno
import os
from collections.abc import Iterator

import pytest

from tests.conftest import MakeFileSystem
from tests.support.lab import fill_to_the_brim, noise
from tests.support.mounts import MountedLab, mounted_lab

pytestmark = pytest.mark.root

CONTENT = noise(200_000)


@pytest.fixture
def lab(loop_fs: MakeFileSystem) -> Iterator[MountedLab]:
    with mounted_lab(loop_fs("ext4", "64M")) as lab:
        lab.set_policy('min_age = "0s"\nmin_size = "1"\nreserve = 0\n')
        yield lab


@pytest.mark.parametrize("at", [0, 5_000, 131_000])
def test_what_was_read_before_is_read_again(lab: MountedLab, at: int) -> None:
    path = lab.make_stub("f", CONTENT)
    assert path.read_bytes() == CONTENT
    fill_to_the_brim(lab.data / "ballast")
    with open(path, "r+b", buffering=0) as file:
        with pytest.raises(OSError) as caught:
            os.pwrite(file.fileno(), b"refused", at)
        assert caught.value.errno == errno.ENOSPC
    assert path.read_bytes() == CONTENT
    (lab.data / "ballast").unlink()


def test_the_end_of_a_file_stays(lab: MountedLab) -> None:
    path = lab.view / "f"
    path.write_bytes(CONTENT)
    assert path.read_bytes() == CONTENT
    fill_to_the_brim(lab.data / "ballast")
    with open(path, "r+b", buffering=0) as file:
        file.seek(0, os.SEEK_END)
        with pytest.raises(OSError):
            while True:
                file.write(bytes(1_000_003))
    assert path.read_bytes().rstrip(b"\0") == CONTENT.rstrip(b"\0")
    (lab.data / "ballast").unlink()
