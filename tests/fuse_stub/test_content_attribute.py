"""``user.dedupd.content``: equal digests mean equal content, and no file has one that is stale."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dedupd_core.units import KIB
from tests.support.lab import noise
from tests.support.mounts import MountedLab, mounted_lab

NAME = "user.dedupd.content"


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[MountedLab]:
    with mounted_lab(tmp_path) as lab:
        yield lab


def digest(lab: MountedLab, name: str) -> bytes | None:
    try:
        return os.getxattr(lab.view / name, NAME)
    except OSError as error:
        assert error.errno == errno.ENODATA
        return None


def test_stubs_of_equal_content_have_equal_digests(lab: MountedLab) -> None:
    large = noise(500 * KIB, 1)
    contents = {"one": large, "two": large, "other": noise(500 * KIB, 2), "small": noise(9 * KIB)}
    for name, content in contents.items():
        (lab.view / name).write_bytes(content)
        assert digest(lab, name) is None
    lab.optimize()
    found = {name: digest(lab, name) for name in contents}
    assert None not in found.values()
    assert found["one"] == found["two"]
    assert len(set(found.values())) == 3
    assert all(len(one or b"") == 32 for one in found.values())


def test_a_changed_file_has_none_until_it_is_taken_again(lab: MountedLab) -> None:
    for name in ("written", "cut", "grown"):
        (lab.view / name).write_bytes(noise(300 * KIB, 1))
    lab.optimize()
    before = digest(lab, "written")
    assert before
    with open(lab.view / "written", "r+b", buffering=0) as file:
        file.write(b"x")
        assert digest(lab, "written") is None
    os.truncate(lab.view / "cut", 200 * KIB)
    os.truncate(lab.view / "grown", 400 * KIB)
    assert digest(lab, "cut") is digest(lab, "grown") is None
    lab.optimize()
    assert digest(lab, "written") not in (None, before)


def test_it_is_not_listed_and_cannot_be_set(lab: MountedLab) -> None:
    (lab.view / "file").write_bytes(noise(100 * KIB))
    lab.optimize()
    assert NAME not in os.listxattr(lab.view / "file")
    with pytest.raises(PermissionError):
        os.setxattr(lab.view / "file", NAME, b"mine")
    with pytest.raises(PermissionError):
        os.removexattr(lab.view / "file", NAME)
    assert digest(lab, ".") is None
