"""Committing a batch of files here, through the door of a disk and without one."""

import ctypes
import errno
import fcntl
import os
import platform
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from dedupd_core.format.recipe import RecipeRef
from dedupd_core.format.stub import Flag, StubAttribute
from dedupd_core.stub.commit_steps import Outcome, Result
from dedupd_core.stub.transition import FileIdentity
from dedupd_core.system.disk import Disk
from dedupd_core.volume.commit import VolumeCommitter
from dedupd_core.volume.commit_requests import CommitRequest
from tests.support.lab import (
    OLD_NS,
    Lab,
    as_user,
    descriptors,
    descriptors_to_begin_with,
    new_lab,
    noise,
    public_directory,
    requests_of,
)

SIZE = 30_000
REF = RecipeRef((1 << 32) | 7, bytes(range(16)), direct=True)


class Steps(Disk):
    """Has each effect of the native code; ``between`` runs when the attributes have been set."""

    def __init__(self) -> None:
        self.between: Callable[[], None] = lambda: None

    def sync_file_system(self, fd: int) -> None:
        self.between()


class Unseen(Steps):
    """Native code makes its system calls by itself."""

    @property
    def door(self) -> None:
        return None


@pytest.fixture(params=[Steps, Unseen])
def disk(request: pytest.FixtureRequest) -> Steps:
    disk = request.param()
    assert isinstance(disk, Steps)
    return disk


@pytest.fixture
def lab(tmp_path: Path, disk: Steps) -> Iterator[Lab]:
    yield new_lab(tmp_path / "volume", disk=disk)


class Seen(NamedTuple):
    """Everything about a file that a commit may or may not change."""

    attribute: StubAttribute | None
    blocks: int
    size: int
    mode: int
    atime_ns: int
    mtime_ns: int


def see(lab: Lab, name: str) -> Seen:
    status = os.lstat(lab.data / name)
    attribute = lab.stub(name)
    return Seen(
        attribute,
        status.st_blocks,
        status.st_size,
        status.st_mode,
        status.st_atime_ns,
        status.st_mtime_ns,
    )


def put(lab: Lab, name: str, seed: int = 0) -> CommitRequest:
    """A file, and the request to commit it."""
    (lab.data / name).parent.mkdir(exist_ok=True)
    path = lab.put(name, noise(SIZE, seed))
    os.utime(path, ns=(OLD_NS + 5, OLD_NS))
    return CommitRequest(name.encode(), FileIdentity.of(path.stat()), REF)


def commit(lab: Lab, *requests: CommitRequest) -> list[Result]:
    with lab.opened() as volume:
        return VolumeCommitter(volume, threads=3).commit(requests_of(requests))


def outcomes(results: list[Result]) -> list[Outcome]:
    return [result.outcome for result in results]


def test_files_become_stubs_of_their_recipes_and_users_see_no_change(lab: Lab) -> None:
    requests = [put(lab, f"directory{n % 3}/file{n}", n) for n in range(40)]
    before = [see(lab, os.fsdecode(request.path)) for request in requests]
    assert set(outcomes(commit(lab, *requests))) == {Outcome.DONE}
    for request, old in zip(requests, before, strict=True):
        stub = StubAttribute(REF.recipe, REF.digest, SIZE, OLD_NS, Flag.DIRECT)
        now = see(lab, os.fsdecode(request.path))
        assert now == old._replace(attribute=stub, blocks=0)


def test_a_time_of_last_access_that_64_bits_have_no_room_for_stays(lab: Lab) -> None:
    path = lab.data / "file"
    request, atime_ns = put(lab, "file"), (1 << 63) + 5
    os.utime(path, ns=(atime_ns, OLD_NS))
    if path.stat().st_atime_ns != atime_ns:
        pytest.skip("no such times here")
    now = request._replace(identity=FileIdentity.of(path.stat()))
    assert outcomes(commit(lab, now)) == [Outcome.DONE]
    assert see(lab, "file").atime_ns == atime_ns


def test_a_recipe_of_many_chunks_makes_no_direct_stub(lab: Lab) -> None:
    request = put(lab, "file")._replace(recipe=REF._replace(direct=False))
    assert outcomes(commit(lab, request)) == [Outcome.DONE]
    stub = lab.stub("file")
    assert stub is not None and not stub.flags


def another_size(path: Path) -> None:
    path.write_bytes(b"shorter")


def same_size(path: Path) -> None:
    path.write_bytes(noise(SIZE, seed=99))


def mode_only(path: Path) -> None:
    path.chmod(0o600)


def replaced(path: Path) -> None:
    path.rename(path.with_name("old"))
    path.write_bytes(noise(SIZE, seed=98))
    os.utime(path, ns=(OLD_NS + 5, OLD_NS))


CHANGES = [another_size, same_size, mode_only, replaced]


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changed_since_it_was_read_is_left_alone(
    lab: Lab, change: Callable[[Path], None]
) -> None:
    requests = [put(lab, name) for name in ("first", "second", "third")]
    change(lab.data / "second")
    before = see(lab, "second")
    assert outcomes(commit(lab, *requests)) == [Outcome.DONE, Outcome.CHANGED, Outcome.DONE]
    assert see(lab, "second") == before


def test_a_file_whose_lease_was_broken_by_force_keeps_its_bytes(lab: Lab, disk: Steps) -> None:
    """Who opens the file waits for the commit for 45 s, as the kernel is set up; a sync may take
    longer. What he writes into a stub, below the mount, would be all that is left of its block."""
    requests = [put(lab, name) for name in ("first", "second", "third")]
    path = lab.data / "second"
    writers = list[int]()

    def break_lease() -> None:
        for name in os.listdir("/proc/self/fd"):
            if os.path.realpath(f"/proc/self/fd/{name}") == str(path):
                fcntl.fcntl(int(name), fcntl.F_SETLEASE, fcntl.F_UNLCK)
        writers.append(os.open(path, os.O_RDWR))

    disk.between = break_lease
    results = commit(lab, *requests)
    os.pwrite(writers[0], b"changed", 0)
    os.close(writers[0])
    assert outcomes(results) == [Outcome.DONE, Outcome.IN_USE, Outcome.DONE]
    assert lab.stub("second") is None
    assert path.read_bytes() == b"changed" + noise(SIZE)[7:]


def linked(path: Path) -> None:
    os.link(path, path.with_name("another name"))


def touched(path: Path) -> None:
    os.utime(path, ns=(OLD_NS, OLD_NS + 1))


@pytest.mark.parametrize("change", [mode_only, linked, touched])
def test_a_file_that_changes_before_it_is_punched_keeps_its_bytes(
    lab: Lab, disk: Steps, change: Callable[[Path], None]
) -> None:
    """Whoever opens the file waits for the commit; these changes need not open it."""
    requests = [put(lab, name) for name in ("first", "second", "third")]
    disk.between = lambda: change(lab.data / "second")
    assert outcomes(commit(lab, *requests)) == [Outcome.DONE, Outcome.CHANGED, Outcome.DONE]
    assert lab.stub("second") is None
    assert (lab.data / "second").read_bytes() == noise(SIZE)


def test_files_that_are_gone_or_in_use_are_told_apart(lab: Lab, tmp_path: Path) -> None:
    names = ["gone", "link", "way/file", "pipe", "open", "fine"]
    requests = [put(lab, name) for name in names]
    (lab.data / "gone").unlink()
    (lab.data / "link").unlink()
    (lab.data / "link").symlink_to("fine")
    (lab.data / "way").rename(lab.data / "hidden")
    (lab.data / "way").symlink_to("hidden")
    (lab.data / "pipe").unlink()
    os.mkfifo(lab.data / "pipe")
    with open(lab.data / "open", "rb"):
        results = commit(lab, *requests)
    assert outcomes(results)[:3] == [Outcome.GONE] * 3
    assert outcomes(results)[4:] == [Outcome.IN_USE, Outcome.DONE]
    assert results[3].outcome is not Outcome.DONE
    assert lab.stub("hidden/file") is None


def test_a_stub_is_not_made_one_again(lab: Lab) -> None:
    request = put(lab, "file")
    assert outcomes(commit(lab, request)) == [Outcome.DONE]
    before = see(lab, "file")
    again = request._replace(identity=FileIdentity.of((lab.data / "file").stat()))
    assert outcomes(commit(lab, again)) == [Outcome.CHANGED]
    assert see(lab, "file") == before


def test_a_written_stub_gets_its_new_recipe_beside_plain_files(lab: Lab) -> None:
    first, plain = put(lab, "stub"), put(lab, "plain")
    assert outcomes(commit(lab, first)) == [Outcome.DONE]
    old = os.getxattr(lab.data / "stub", "trusted.dedupd")
    written = CommitRequest(
        b"stub", FileIdentity.of((lab.data / "stub").stat()), REF._replace(recipe=9 << 32), old
    )
    assert outcomes(commit(lab, plain, written)) == [Outcome.DONE, Outcome.DONE]
    stub = lab.stub("stub")
    assert stub is not None and stub.recipe == 9 << 32


def test_a_batch_that_cannot_be_synced_is_taken_back_whole(lab: Lab, disk: Steps) -> None:
    requests = [put(lab, f"file{n}", n) for n in range(5)]
    before = [see(lab, os.fsdecode(request.path)) for request in requests]

    def between() -> None:
        assert os.getxattr(lab.data / "file3", "trusted.dedupd")  # opening it would wait
        raise OSError(errno.EIO, "the disk is gone")

    disk.between = between
    with pytest.raises(OSError, match="the disk is gone"):
        commit(lab, *requests)
    assert [see(lab, os.fsdecode(request.path)) for request in requests] == before


_NUMBERS = {
    "x86_64": {"fsetxattr": 190, "utimensat": 280, "fallocate": 285},
    "aarch64": {"fsetxattr": 7, "utimensat": 88, "fallocate": 47},
}
"""Of system calls."""


def refuse(call: str, error: int) -> None:
    """Have a system call fail in this process from here on, as a file system may have it fail."""
    number = _NUMBERS.get(platform.machine(), {}).get(call)
    assert number is not None
    load, jump_if_equal, answer = 0x20, 0x15, 0x06
    program = [
        (load, 0, 0, 0),
        (jump_if_equal, 0, 1, number),
        (answer, 0, 0, 0x0005_0000 | error),
        (answer, 0, 0, 0x7FFF_0000),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *step) for step in program))
    head = ctypes.create_string_buffer(
        struct.pack("@HP", len(program), ctypes.addressof(code)), struct.calcsize("@HP")
    )
    libc, no_new_privileges, seccomp, by_filter = ctypes.CDLL(None), 38, 22, 2
    assert libc.prctl(no_new_privileges, 1, 0, 0, 0) == 0
    assert libc.prctl(seccomp, by_filter, head) == 0


@pytest.mark.root
@pytest.mark.skipif(platform.machine() not in _NUMBERS, reason="not this machine's numbers")
@pytest.mark.parametrize("call", ["fallocate", "utimensat", "fsetxattr"])
@pytest.mark.parametrize("kind", [Steps, Unseen])
def test_a_commit_that_fails_from_its_punch_on_is_never_taken_back(
    call: str, kind: type[Steps]
) -> None:
    """Taken back, the file would be plain, and without its blocks."""

    def fail() -> None:
        disk = kind()
        lab = new_lab(directory / "volume", disk=disk)
        request = put(lab, "file")
        disk.between = lambda: refuse(call, errno.ENOSPC)
        assert outcomes(commit(lab, request)) == [Outcome.FAILED]
        stub = lab.stub("file")
        assert stub is not None and stub.recipe == REF.recipe and stub.flags & Flag.COMMITTING

    with public_directory() as directory:
        as_user(fail, 0)


def test_each_of_many_files_has_its_own_outcome(lab: Lab) -> None:
    requests = [put(lab, f"file{n}", n) for n in range(100)]
    (lab.data / "file7").unlink()
    os.utime(lab.data / "file64", ns=(OLD_NS, OLD_NS + 1))
    with open(lab.data / "file99", "rb"):
        results = outcomes(commit(lab, *requests))
    others = {7: Outcome.GONE, 64: Outcome.CHANGED, 99: Outcome.IN_USE}
    assert results == [others.get(n, Outcome.DONE) for n in range(100)]
    assert [n for n in range(100) if n != 7 and lab.stub(f"file{n}") is None] == [64, 99]


def test_a_batch_leaves_no_descriptor_open(lab: Lab, disk: Steps) -> None:
    requests = [put(lab, f"file{n}", n) for n in range(20)]
    (lab.data / "file7").unlink()
    with lab.opened() as volume:
        VolumeCommitter(volume).commit(requests_of(requests[:1]))
        before = descriptors_to_begin_with()
        VolumeCommitter(volume).commit(requests_of(requests[1:]))
        assert descriptors() == before


def test_the_last_block_of_a_file_is_freed_with_the_others(lab: Lab) -> None:
    for size in (1, 4095, 4096, 4097):
        path = lab.put(f"file{size}", noise(size))
        request = CommitRequest(path.name.encode(), FileIdentity.of(path.stat()), REF)
        assert outcomes(commit(lab, request)) == [Outcome.DONE]
        assert see(lab, path.name)[1:3] == (0, size)
