"""Files that users write to all the time are optimized by the ranges that are quiet."""

import ctypes
import os
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dedupd_core import failpoint
from dedupd_core.errors import DedupdError
from dedupd_core.format.recipe import RecipeRef
from dedupd_core.format.stub import Flag
from dedupd_core.stub.commit_steps import Outcome
from dedupd_core.units import MIB
from dedupd_core.volume.commit_requests import CommitRequest
from fuse_stub.busy.part_lane import FILE_BYTES_MIN
from fuse_stub.busy.quiet_parts import GRAIN_BYTES, QuietParts
from tests.support.lab import noise, requests_of, write_out
from tests.support.mounts import MountedLab, Nursery, mounted_lab, serve_ageless, serve_until

pytestmark = pytest.mark.root

SIZE = FILE_BYTES_MIN + 2 * MIB + 4096
CONTENT = noise(SIZE // 2, 5) + noise(SIZE // 2, 5)
NAME = "guest.img"
POLICY = {"busy_files": "ranges", "min_age": "1h"}
"""The file is never old enough as a whole; to the mount of these tests each range is."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MountedLab]:
    directory = tmp_path_factory.mktemp("busy")
    with mounted_lab(directory, POLICY, Nursery(serve_ageless)) as lab:
        yield lab


@pytest.fixture
def lab(shared: MountedLab) -> Iterator[MountedLab]:
    """The same mount for all tests, empty at the start of each."""
    yield shared
    for path in shared.view.iterdir():
        path.unlink()


class Guest:
    """A program that has its disk open for writing, and knows what it wrote."""

    def __init__(self, lab: MountedLab, content: bytes = CONTENT) -> None:
        self.lab = lab
        self.path = lab.view / NAME
        self.path.write_bytes(content)
        write_out(lab.data)
        self.content = bytearray(content)
        self.fd = os.open(self.path, os.O_RDWR)

    def __enter__(self) -> "Guest":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def write(self, at: int, data: bytes) -> None:
        os.pwrite(self.fd, data, at)
        if at > len(self.content):
            self.content.extend(bytes(at - len(self.content)))
        self.content[at : at + len(data)] = data

    def cut(self, size: int) -> None:
        os.truncate(self.path, size)
        kept = self.content[:size]
        self.content = kept + bytes(size - len(kept))

    def punch(self, start: int, length: int) -> None:
        fallocate(self.fd, start, length)
        end = min(start + length, len(self.content))
        self.content[start:end] = bytes(max(0, end - start))

    def check(self) -> None:
        assert os.pread(self.fd, len(self.content) + 1, 0) == self.content
        # As the store and the file below have it, and not a cache of the kernel's.
        assert self.lab.read(NAME) == self.content

    @property
    def blocks_bytes(self) -> int:
        return os.stat(self.lab.data / NAME).st_blocks * 512

    @property
    def is_partial(self) -> bool:
        stub = self.lab.stub(NAME)
        return stub is not None and bool(stub.flags & Flag.PARTIAL)


def verify_clean(lab: MountedLab) -> None:
    lab.unmount()
    lab.verify_clean()
    lab.mount()


def fallocate(fd: int, start: int, length: int) -> None:
    """Punch a hole."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(fd, 3, ctypes.c_long(start), ctypes.c_long(length)):
        raise OSError(ctypes.get_errno(), "fallocate")


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[], None]], list[str]]:
    """Have something happen at a fail point of the job, once; the points that it passed."""

    def install(point: str, action: Callable[[], None]) -> list[str]:
        passed: list[str] = []

        def hook(name: str) -> None:
            passed.append(name)
            if name == point and passed.count(name) == 1:
                action()

        monkeypatch.setattr(failpoint, "hook", hook)
        return passed

    return install


At = Callable[[str, Callable[[], None]], list[str]]


def test_a_file_that_is_open_for_writing_is_taken_by_its_ranges(lab: MountedLab) -> None:
    with Guest(lab) as guest:
        before = os.stat(guest.path)
        report = lab.optimize()
        after = os.stat(guest.path)
        assert guest.is_partial, report
        assert guest.blocks_bytes <= 8192
        assert report.freed_bytes >= SIZE - 8192
        assert report.sums.new_raw_bytes < SIZE * 0.6, "its two halves are equal"
        assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
        guest.check()
        guest.write(3 * MIB + 5, b"fresh")
        guest.check()
        assert 0 < guest.blocks_bytes <= 16384
        lab.optimize()
        guest.check()
    verify_clean(lab)


def test_what_is_written_while_it_is_stored_keeps_its_blocks(lab: MountedLab, at: At) -> None:
    with Guest(lab) as guest:
        passed = at("commit.begun", lambda: guest.write(5 * MIB + 77, b"while it is committed"))
        lab.optimize()
        assert "commit.begun" in passed
        assert guest.is_partial
        assert MIB <= guest.blocks_bytes <= MIB + 16384
        guest.check()
    verify_clean(lab)


def test_a_write_while_chunks_are_stored_is_not_lost(lab: MountedLab, at: At) -> None:
    with Guest(lab, noise(SIZE, 77)) as guest:
        passed = at("writer.appended", lambda: guest.write(9 * MIB - 3, b"across two ranges"))
        lab.optimize()
        assert passed.index("writer.appended") < passed.index("commit.begun"), passed
        assert 2 * MIB <= guest.blocks_bytes <= 2 * MIB + 16384
        guest.check()


@pytest.mark.parametrize("point", ["writer.appended", "commit.begun", "commit.durable"])
def test_a_cut_ends_what_was_begun(lab: MountedLab, at: At, point: str) -> None:
    with Guest(lab, noise(SIZE, len(point))) as guest:

        def cut() -> None:
            guest.cut(4 * MIB + 123)
            guest.cut(SIZE)
            guest.write(12 * MIB, b"after the cut")

        passed = at(point, cut)
        lab.optimize()
        assert point in passed
        guest.check()
        lab.optimize()
        guest.check()
    verify_clean(lab)


def test_a_sparse_disk_is_taken_with_its_holes(lab: MountedLab) -> None:
    with Guest(lab, b"") as guest:
        guest.cut(SIZE)
        for number in range(0, 4000, 2):
            guest.write(number * 4096, noise(4096, number % 40))
        report = lab.optimize()
        assert guest.is_partial
        assert guest.blocks_bytes <= 8192
        assert report.sums.chunks < 2000, "not one for each block"
        guest.write(4096 * 7 + 9, b"into a hole")
        guest.check()
    verify_clean(lab)


def test_what_is_young_stays(tmp_path: Path) -> None:
    with mounted_lab(tmp_path, POLICY, Nursery()) as lab, Guest(lab) as guest:
        lab.optimize()
        assert lab.stub(NAME) is None
        guest.check()


@pytest.mark.parametrize("seed", range(3))
def test_any_changes_between_any_two_steps_are_kept(
    lab: MountedLab, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    with Guest(lab) as guest:

        def change(_: str = "") -> None:
            place, length = rng.randrange(SIZE), rng.choice((1, 700, 4096, 300_000))
            kind = rng.random()
            if kind < 0.85:
                guest.write(place, noise(length, rng.randrange(99)))
            elif kind < 0.93:
                guest.punch(place, length)
            else:
                guest.cut(rng.choice((SIZE, place)))

        for _ in range(3):
            if len(guest.content) < SIZE:
                guest.cut(SIZE)
            change()
            monkeypatch.setattr(failpoint, "hook", change)
            lab.optimize()
            monkeypatch.setattr(failpoint, "hook", None)
            guest.check()
    lab.optimize()
    assert lab.read(NAME) == guest.content
    verify_clean(lab)


def test_a_killed_mount_loses_nothing_of_a_busy_file(tmp_path: Path) -> None:
    with mounted_lab(tmp_path, POLICY, Nursery(serve_ageless)) as lab:
        guest = Guest(lab)
        lab.optimize()
        guest.write(7 * MIB + 9, noise(9000, 4))
        os.fsync(guest.fd)
        lab.kill()
        os.close(guest.fd)
        lab.mount()
        guest.fd = os.open(guest.path, os.O_RDWR)
        with guest:
            guest.check()
            lab.optimize()
            guest.check()
        verify_clean(lab)


@pytest.mark.parametrize("point", ["parts.attribute-set", "parts.punched"])
def test_a_mount_that_dies_between_two_steps_loses_nothing(tmp_path: Path, point: str) -> None:
    with mounted_lab(tmp_path, POLICY, Nursery(serve_until, (point,))) as lab:
        guest = Guest(lab)
        guest.write(7 * MIB + 9, noise(9000, 4))
        os.fsync(guest.fd)
        with suppress(DedupdError):
            lab.optimize()
        lab.wait_until_dead()
        os.close(guest.fd)
        assert lab.stub(NAME) is not None
        lab.mount()
        assert guest.path.read_bytes() == guest.content
        verify_clean(lab)


def test_a_file_with_an_offer_has_no_other_commit(lab: MountedLab) -> None:
    with Guest(lab) as guest, lab.client() as client, lab.client() as other:
        offer = client.call("parts_offer", path=NAME, age_s=0.0)
        assert offer["ranges"]
        whole = CommitRequest(NAME.encode(), lab.identity(NAME), RecipeRef(1, bytes(16), False))
        reply = other.call_with("commit_many", requests_of([whole]).to_bytes())
        assert reply["results"][0][1]["outcome"] == Outcome.IN_USE
        assert other.call("parts_offer", path=NAME, age_s=0.0)["kind"] == "Busy"
        client.call("parts_end", inode=offer["inode"], saves_little=False)
        assert other.call("parts_offer", path=NAME, age_s=0.0)["ranges"] == offer["ranges"]
        guest.check()


def test_writes_are_told_apart_by_whole_ranges() -> None:
    parts = QuietParts(8 * GRAIN_BYTES, None)
    parts.ranges = [(4096, GRAIN_BYTES), (2 * GRAIN_BYTES, 4 * GRAIN_BYTES + 4096)]
    parts.note(3 * GRAIN_BYTES - 1, 3 * GRAIN_BYTES)
    assert [part for part in parts.pieces() if not parts.is_written(part[0])] == [
        (4096, GRAIN_BYTES),
        (3 * GRAIN_BYTES, 4 * GRAIN_BYTES),
        (4 * GRAIN_BYTES, 4 * GRAIN_BYTES + 4096),
    ]
