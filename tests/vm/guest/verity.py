"""Files below a mount that fs-verity protects: they stay plain, and the others are optimized."""

import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.lab import noise, prose
from tests.support.mounts import MountedLab, mounted_lab
from tests.vm.guest.disks import made
from tests.vm.guest.kernel_features import lacks

ENABLE_VERITY = 0x4080_6685
_VERSION, _SHA256 = 1, 1
MAKE = {"ext4": ["mkfs.ext4", "-q", "-O", "verity"], "btrfs": ["mkfs.btrfs", "-q"]}
CONTENT = prose(600_000)


@pytest.fixture(params=["ext4", "btrfs"])
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MountedLab]:
    features = Path("/sys/fs/ext4/features/verity")
    if request.param == "ext4" and not features.exists():
        lacks("fs-verity of ext4")
    with made(tmp_path, MAKE[request.param]) as point, mounted_lab(point) as lab:
        yield lab
        lab.unmount()
        lab.verify_clean()


def protect(path: Path) -> None:
    """Enable fs-verity on a file. Raises OSError."""
    argument = struct.pack("<IIIIQIIQ", _VERSION, _SHA256, 4096, 0, 0, 0, 0, 0).ljust(128, b"\0")
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, ENABLE_VERITY, argument)
    finally:
        os.close(fd)


def test_a_protected_file_stays_plain_and_the_others_become_stubs(lab: MountedLab) -> None:
    contents = {"protected": CONTENT, "same": CONTENT, "other": prose(300_000, 2) + noise(9_000)}
    for name, content in contents.items():
        lab.put(name, content)
    protect(lab.data / "protected")
    report = lab.optimize()
    assert {name: lab.stub(name) is not None for name in contents} == {
        "protected": False,
        "same": True,
        "other": True,
    }, report.messages
    assert {name: (lab.view / name).read_bytes() for name in contents} == contents
    with pytest.raises(OSError) as caught:
        (lab.view / "protected").write_bytes(b"changed")
    assert caught.value.errno in (1, 13), "as below: not permitted"
    lab.collect()
    lab.unmount()
    lab.mount()
    assert {name: (lab.view / name).read_bytes() for name in contents} == contents
    (lab.view / "protected").unlink()


def test_a_user_cannot_protect_a_file_through_the_mount(lab: MountedLab) -> None:
    """It would be the stub that is protected, and not what it stands for."""
    stub = lab.make_stub("stub", CONTENT)
    (lab.view / "plain").write_bytes(CONTENT)
    for path in (stub, lab.view / "plain"):
        with pytest.raises(OSError):
            protect(path)
        assert path.read_bytes() == CONTENT
        with open(path, "r+b") as file:
            file.write(b"still writable")
        assert path.read_bytes() == b"still writable" + CONTENT[14:]


def test_a_stub_that_was_protected_below_is_read_right(lab: MountedLab) -> None:
    lab.make_stub("stub", CONTENT)
    try:
        protect(lab.data / "stub")
    except OSError:
        return  # the file system protects no file with holes
    lab.unmount()
    lab.mount()
    assert (lab.view / "stub").read_bytes() == CONTENT
    report = lab.unoptimize()
    assert (lab.view / "stub").read_bytes() == CONTENT
    assert report.errors == 1 and lab.stub("stub") is not None, report.messages
