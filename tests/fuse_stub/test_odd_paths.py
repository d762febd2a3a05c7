"""Stubs below a path longer than PATH_MAX, and below directories named like those of a volume."""

import os
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from dedupd_core.deleted.log import DeletionLogs
from dedupd_core.format.deletion import Deletion
from dedupd_core.format.stub import Flag, StubAttribute
from dedupd_core.system.files import opened
from dedupd_core.system.paths import open_beneath
from dedupd_core.units import KIB
from fuse_stub.files import open_files, sealing, unsealed_stubs
from tests.support.deletions import newest_first
from tests.support.lab import noise
from tests.support.mounts import (
    ALICE,
    MountedLab,
    Nursery,
    is_serving,
    mounted_lab,
    serve_for_test,
)
from tests.support.odd_files import directory_made
from tests.support.service import eventually

pytestmark = pytest.mark.root

CONTENT = noise(300 * KIB)
DEEP = b"/".join([b"%02d" % level + b"d" * 200 for level in range(22)])


def serve_hastily(path: str, mountpoint: str, cache_bytes: int, answer: Connection) -> None:
    """Serve a mount that closes what is idle, and seals what is closed, at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_files, "IDLE_S", 0.0)
        patch.setattr(open_files, "WRITABLE_IDLE_S", 0.0)
        patch.setattr(open_files, "SWEEP_S", 0.01)
        patch.setattr(sealing, "TURN_S", 0.01)
        patch.setattr(unsealed_stubs, "SEAL_AFTER_S", 0.0)
        serve_for_test(path, mountpoint, cache_bytes, answer)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[MountedLab]:
    policy = {"keep_deleted": "7d", "space_low": "0", "space_critical": "0", "reserve": "0"}
    with mounted_lab(tmp_path, policy, Nursery(serve_hastily)) as one:
        yield one
        assert is_serving(one)
        one.unmount()
        one.verify_clean()


def deletions(lab: MountedLab) -> list[Deletion]:
    with lab.opened() as volume:
        return [one for _, one in newest_first(DeletionLogs(volume))]


def attribute(lab: MountedLab, path: bytes) -> StubAttribute | None:
    """That of a file, also below a path that is too long for a call."""
    with lab.opened() as volume, opened(open_beneath(volume.data_fd, path, os.O_RDONLY)) as fd:
        return volume.space.read(fd, "")


def wait_until_sealed(lab: MountedLab, path: bytes) -> None:
    def is_sealed() -> bool:
        assert is_serving(lab), "the mount has ended"
        stub = attribute(lab, path)
        return stub is not None and not stub.flags & Flag.WRITTEN

    eventually(is_sealed, f"{path!r} is sealed")


def test_a_stub_below_a_path_that_is_too_long_is_used_like_any_other(lab: MountedLab) -> None:
    """Written to, closed, sealed, read, cut, made plain and removed."""
    with (
        opened(os.open(lab.view, os.O_RDONLY)) as view,
        opened(directory_made(view, DEEP)) as directory,
    ):

        def at(name: str) -> int:
            return os.open(name, os.O_RDWR | os.O_CREAT, 0o644, dir_fd=directory)

        for name in ("small", "large", "cut", "plain", "removed"):
            with opened(at(name)) as fd:
                os.write(fd, CONTENT)
                os.fchown(fd, ALICE, ALICE)
        report = lab.optimize()
        assert (report.files_optimized, report.files_left) == (5, {}), report.messages
        expected = bytearray(CONTENT)
        for name, size in (("small", 100), ("large", 4096)):
            with opened(at(name)) as fd:
                os.pwrite(fd, b"n" * size, 4096)
            wait_until_sealed(lab, DEEP + b"/" + name.encode())
            with opened(at(name)) as fd:
                assert os.pread(fd, 1 << 20, 0) == (
                    bytes(expected[:4096]) + b"n" * size + bytes(expected[4096 + size :])
                )
        with opened(at("cut")) as fd:
            os.truncate(fd, 10_000)
            assert os.pread(fd, 1 << 20, 0) == CONTENT[:10_000]
        os.unlink("removed", dir_fd=directory)
        noted = {one.path for one in deletions(lab)}
        assert DEEP + b"/removed" in noted
        assert len(noted) == 4
        assert all(one.uid == ALICE for one in deletions(lab))
        plain = lab.unoptimize()
        assert (plain.errors, plain.files_restored) == (0, 4), plain.messages
        assert attribute(lab, DEEP + b"/plain") is None
        with opened(at("plain")) as fd:
            assert os.pread(fd, 1 << 20, 0) == CONTENT


def test_a_directory_that_looks_like_the_volumes_own_is_no_other_place(lab: MountedLab) -> None:
    """What is deleted in it is noted as deleted there."""
    stub = lab.make_stub("alice/.dedupd/data/bob/.bash_profile", CONTENT)
    written = lab.make_stub("alice/.dedupd/data/bob/written", CONTENT)
    os.chown(stub, ALICE, ALICE)
    with open(written, "r+b") as file:
        file.write(b"new")
    wait_until_sealed(lab, b"alice/.dedupd/data/bob/written")
    stub.unlink()
    assert {one.path for one in deletions(lab)} == {
        b"alice/.dedupd/data/bob/.bash_profile",
        b"alice/.dedupd/data/bob/written",
    }
