"""Files that are made plain a piece at a time, on a live mount."""

import json
import os
import resource
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dedupd_core.errors import Busy, NoSpace, UsageError
from dedupd_core.format.stub import Flag
from dedupd_core.stub import filling
from dedupd_core.system.control_socket import ControlClient
from dedupd_core.units import KIB
from dedupd_core.volume.restore import require_room, restore_file
from fuse_stub import fill_lane, process
from fuse_stub.mounts import mount_process
from jobs.frame.run import Cancelled, JobRun
from tests.support.lab import noise
from tests.support.mounts import MountedLab, mounted_lab
from tests.support.service import eventually

pytestmark = pytest.mark.root

PIECE = 64 * KIB
CONTENT = noise(40 * PIECE + 123)


def mount_in_fork(
    path: str, mountpoint: str, *, cache_bytes: int, descriptors_max: int | None = None
) -> int:
    """As ``mount_process.mount_in_background``, by a process that has what a test has patched.

    Where ``descriptors_max`` is given, it has none of the descriptors of other tests.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            if descriptors_max is not None:
                _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
                os.closerange(3, writer)
                os.closerange(writer + 1, hard_limit)
                resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors_max, hard_limit))
            with mount_process.open_volume(path) as volume:
                root, base_fd = volume.root, os.dup(volume.base_fd)
            process.serve_for_parent(root, base_fd, mountpoint, cache_bytes, writer)
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as answer:
        assert json.loads(answer.read()) == {}
    return pid


class Patched:
    """Serves mounts in processes that have what a test has patched."""

    def __init__(self, descriptors_max: int | None = None) -> None:
        self._descriptors_max = descriptors_max

    def serve(self, path: str, mountpoint: str, *, cache_bytes: int) -> int:
        return mount_in_fork(
            path, mountpoint, cache_bytes=cache_bytes, descriptors_max=self._descriptors_max
        )


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MountedLab]:
    """A mount that fills up one small piece in each step."""
    monkeypatch.setattr(filling, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(fill_lane, "STEP_S", 0.0)
    with mounted_lab(tmp_path, nursery=Patched()) as lab:
        yield lab


def begin(lab: MountedLab, steps: int) -> ControlClient:
    """A file that is filled up in part, by a client that waits."""
    client = lab.client()
    assert client.call("fill_begin", path="f") == {"is_plain": False}
    for number in range(steps):
        reply = client.call("fill")
        assert reply == {"is_plain": False, "filled_bytes": (number + 1) * PIECE}
    return client


def own_bytes(lab: MountedLab) -> int:
    return (lab.data / "f").stat().st_blocks * 512


def test_users_work_with_a_file_between_its_pieces(lab: MountedLab) -> None:
    path, model = lab.make_stub("f", CONTENT), bytearray(CONTENT)
    with begin(lab, 3) as client, open(path, "r+b", buffering=0) as file:
        for number in range(200):
            at = (number * 7919 * 13) % (len(model) - 10)
            os.pwrite(file.fileno(), b"user", at)
            model[at : at + 4] = b"user"
            if number == 100:
                os.ftruncate(file.fileno(), 30 * PIECE + 7)
                os.ftruncate(file.fileno(), 33 * PIECE + 9)
                model[30 * PIECE + 7 :] = bytes(3 * PIECE + 2)
            if number % 10 == 0:
                client.call("fill")
            assert os.pread(file.fileno(), 10_000, at) == model[at : at + 10_000]
        assert path.read_bytes() == model
        while not client.call("fill")["is_plain"]:
            pass
        os.pwrite(file.fileno(), b"later", 5)
        model[5:10] = b"later"
    assert lab.stub("f") is None
    assert path.read_bytes() == model
    assert (lab.data / "f").read_bytes() == model


def test_no_job_and_no_second_client_takes_a_file_that_is_being_filled(lab: MountedLab) -> None:
    path = lab.make_stub("f", CONTENT)
    with begin(lab, 3) as client:
        report = lab.optimize()
        assert report.files_optimized == 0
        with lab.opened() as volume, pytest.raises(Busy):
            restore_file(volume, b"f")
        while not client.call("fill")["is_plain"]:
            pass
    assert path.read_bytes() == CONTENT and lab.stub("f") is None


def test_a_client_that_hangs_up_gives_the_space_back(lab: MountedLab) -> None:
    path = lab.make_stub("f", CONTENT)
    before, stub = path.stat(), lab.stub("f")
    with begin(lab, 5):
        assert own_bytes(lab) >= 5 * PIECE
    eventually(lambda: own_bytes(lab) == 0, "what was filled is taken back")
    assert stub is not None and path.stat().st_mtime_ns == before.st_mtime_ns
    assert lab.stub("f") == replace(stub, flags=stub.flags | Flag.WRITTEN)
    assert path.read_bytes() == CONTENT
    with lab.opened() as volume:
        assert restore_file(volume, b"f").filled_bytes == len(CONTENT)


def test_a_job_that_is_stopped_ends_the_filling(lab: MountedLab) -> None:
    path = lab.make_stub("f", CONTENT)
    run = JobRun("unoptimize")

    def safe_point() -> None:
        if own_bytes(lab) >= 5 * PIECE:
            run.cancel()
        run.safe_point()

    with lab.opened() as volume, pytest.raises(Cancelled):
        restore_file(volume, b"f", safe_point)
    eventually(lambda: own_bytes(lab) == 0, "what was filled is taken back")
    assert path.read_bytes() == CONTENT


def test_an_unmount_does_not_wait_for_the_end_of_the_file(lab: MountedLab) -> None:
    path = lab.make_stub("f", CONTENT)
    with begin(lab, 5):
        began_s = time.monotonic()
        lab.unmount()
        assert time.monotonic() - began_s < 60  # far less: but the machine may be busy
    assert own_bytes(lab) >= 5 * PIECE
    stub = lab.stub("f")
    assert stub is not None and not stub.flags.transient
    assert lab.read("f") == CONTENT
    lab.verify_clean()
    lab.mount()
    assert path.read_bytes() == CONTENT
    with lab.opened() as volume:
        assert restore_file(volume, b"f").filled_bytes == len(CONTENT) - 5 * PIECE


def test_a_file_that_is_emptied_meanwhile_is_plain(lab: MountedLab) -> None:
    path = lab.make_stub("f", CONTENT)
    with begin(lab, 5) as client:
        path.write_bytes(b"new")
        assert client.call("fill")["is_plain"]
        assert client.call("fill")["kind"] == UsageError.__name__
    assert path.read_bytes() == b"new" and lab.stub("f") is None


def test_a_file_that_is_removed_meanwhile_is_let_go(lab: MountedLab) -> None:
    path = lab.make_stub("f", CONTENT)
    with begin(lab, 5) as client:
        path.unlink()
        while not client.call("fill")["is_plain"]:
            pass
    eventually(lambda: lab.status()["files_open"] == 0, "the file is closed")


def test_the_reserve_is_left_to_users(lab: MountedLab) -> None:
    path = lab.make_stub("f", CONTENT)
    with begin(lab, 5) as client:
        assert client.call("fill_begin", path="f") == {"is_plain": False}
        assert own_bytes(lab) == 0
        lab.set_policy('min_age = "0s"\nreserve = "99%"\n')
        assert client.call("fill_begin", path="f") == {"is_plain": False}
        reply = client.call("fill")
        assert reply["kind"] == NoSpace.__name__ and "it stays a stub" in reply["error"]
        assert own_bytes(lab) == 0
    with lab.opened() as volume, pytest.raises(NoSpace, match="expanding f"):
        require_room(volume, b"f", lambda: None)
    assert path.read_bytes() == CONTENT
