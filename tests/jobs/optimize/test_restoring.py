"""While a restore fills the volume, optimize frees space with hardly any room for chunks."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from dedupd_core.config.room import working_bytes
from dedupd_core.units import KIB, MIB
from dedupd_core.volume.commit import VolumeCommitter
from fuse_stub.busy.quiet_parts import present_quiet
from jobs.optimize import admission
from jobs.optimize.judgements import Judgements
from tests.conftest import MakeFileSystem
from tests.jobs.optimize.test_admission import lowest_free
from tests.support.lab import OLD_NS, free_bytes, noise, write_out
from tests.support.mounts import MountedLab, mounted_lab
from tests.support.room import leave_room, reserve_bytes

pytestmark = pytest.mark.root

SLACK_BYTES = 256 * KIB
"""Blocks of extents and directories, which a file system takes as it likes."""

POLICY = {"min_file_saving": "0.05", "restore_mode": "on"}


@pytest.fixture
def disk(loop_fs: MakeFileSystem, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(admission, "WRITERS_S", 0.0)  # there are none
    return loop_fs("ext4", "200M", in_memory=True)


@contextmanager
def restored_onto(disk: Path) -> Iterator[MountedLab]:
    with mounted_lab(disk, POLICY) as lab:
        yield lab
        lab.unmount()  # the kernel has kept what was written
        lab.mount()
        for path, content in contents(lab).items():
            assert (lab.view / path).read_bytes() == content
        lab.unmount()
        lab.verify_clean()


def contents(lab: MountedLab) -> dict[str, bytes]:
    """What was written: each file says in its name of what it is made."""
    names = sorted(path.name for path in lab.view.iterdir())
    return {name: content_of(name) for name in names}


def content_of(name: str) -> bytes:
    """Of a file with a name like ``3.5000.copy``: so many KiB of noise of that number."""
    number, kib, _ = name.split(".")
    return noise(int(kib) * KIB, int(number))


def restore(lab: MountedLab, *names: str) -> None:
    for name in names:
        (lab.view / name).write_bytes(content_of(name))
    leave_alone(lab, *names)


def leave_alone(lab: MountedLab, *names: str) -> None:
    """As programs that restore do: the time of its last change is the last that they write."""
    for name in names:
        os.utime(lab.view / name, ns=(OLD_NS, OLD_NS))


def optimize(lab: MountedLab, disk: Path) -> int:
    """As the service does, run by run, until one frees nothing; how many bytes came back."""
    before = free_bytes(lab)
    with lowest_free(lab) as lowest:
        for _ in range(5):
            if not lab.optimize().freed_bytes:
                break
    assert lowest[0] >= reserve_bytes(disk) - SLACK_BYTES, "the reserve was touched"
    return free_bytes(lab) - before


@pytest.mark.parametrize("room_bytes", [4 * MIB, 12 * MIB])
def test_copies_are_found_and_taken_where_neither_fits(disk: Path, room_bytes: int) -> None:
    """Below what users leave of the room, and above."""
    assert 4 * MIB < working_bytes(200 * MIB) < 12 * MIB
    with restored_onto(disk) as lab:
        restore(lab, "1.20480.one", "1.20480.two")
        leave_room(disk, room_bytes)
        assert optimize(lab, disk) >= 14 * MIB
        assert lab.stub("1.20480.one") is not None
        assert lab.stub("1.20480.two") is not None


@pytest.mark.parametrize("odd_bytes", [1, 4095, 12345])
def test_parts_are_of_whole_blocks(disk: Path, odd_bytes: int) -> None:
    """Of any length that is asked for: what is punched in part reads as zeros."""
    path = disk / "file"
    path.write_bytes(noise(3 * MIB, 1))
    write_out(disk)
    block_bytes = os.statvfs(disk).f_bsize
    with open(path, "rb") as file:
        quiet = [(0, MIB + 1), (MIB + 7, 3 * MIB)]
        found = list(present_quiet(file.fileno(), quiet, block_bytes, MIB + odd_bytes))
    assert MIB - block_bytes <= sum(end - start for start, end in found) <= MIB + odd_bytes
    assert all(start % block_bytes == 0 == end % block_bytes for start, end in found)


def test_what_is_stored_already_needs_no_room(disk: Path) -> None:
    """Neither large files nor small ones, which are taken many at a time."""
    with restored_onto(disk) as lab:
        restore(lab, "1.8192.one", "1.8192.two", "2.900.one", "2.900.two")
        assert lab.optimize().files_optimized == 4
        copies = [f"1.8192.{at}" for at in range(3)] + [f"2.900.{at}" for at in range(40)]
        restore(lab, *copies)
        leave_room(disk, 3 * MIB // 2)
        assert optimize(lab, disk) >= 55 * MIB
        for name in copies:
            assert lab.stub(name) is not None


def test_what_saves_nothing_keeps_the_room_as_it_is(disk: Path) -> None:
    with restored_onto(disk) as lab:
        restore(lab, "99.20480.one", *(f"{at}.700.one" for at in range(20)))
        leave_room(disk, 5 * MIB)
        assert optimize(lab, disk) >= -2 * MIB  # the catalogue is made


class Killed(BaseException):
    """In the place of a signal."""


def test_what_a_killed_run_has_stored_is_found(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for files that were judged before, with nothing to share."""

    def be_killed(*_: object) -> NoReturn:
        raise Killed

    with restored_onto(disk) as lab:
        restore(lab, "1.4096.one")
        assert lab.optimize().files_optimized == 0
        restore(lab, "1.4096.two")
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(VolumeCommitter, "commit", be_killed)
            lab.optimize()
        lab.optimize()
        assert lab.stub("1.4096.one") is not None
        assert lab.stub("1.4096.two") is not None


def is_all_stored(lab: MountedLab, *names: str) -> bool:
    write_out(lab.data)
    return all(os.stat(lab.data / name).st_blocks == 0 for name in names)


def test_a_mount_that_saw_no_write_offers_what_does_not_fit(disk: Path) -> None:
    """As after a kill of the service."""
    with restored_onto(disk) as lab:
        restore(lab, "1.20480.one", "1.20480.two")
        lab.unmount()
        lab.mount()
        leave_room(disk, 4 * MIB)
        assert optimize(lab, disk) >= 14 * MIB
        assert is_all_stored(lab, "1.20480.one", "1.20480.two")


def test_a_copy_that_was_looked_at_while_it_was_written_goes_by_its_parts(disk: Path) -> None:
    """Its parts saved too little by themselves."""
    with restored_onto(disk) as lab:
        restore(lab, "1.20480.one")
        assert lab.optimize().files_optimized == 0
        (lab.view / "1.20480.two").write_bytes(content_of("1.20480.two"))
        leave_room(disk, 5 * MIB)
        assert lab.optimize().files_optimized == 0
        leave_alone(lab, "1.20480.two")
        assert optimize(lab, disk) >= 14 * MIB
        assert is_all_stored(lab, "1.20480.one", "1.20480.two")


@pytest.mark.parametrize("case", ["left before", "left by the same run", "killed"])
def test_files_that_were_left_are_found_by_parts_that_are_stored(
    disk: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """The parts pay by themselves, of a file that is being written."""

    def be_killed(*_: object) -> NoReturn:
        raise Killed

    with restored_onto(disk) as lab:
        restore(lab, "1.2048.left")
        if case != "left by the same run":
            assert lab.optimize().files_optimized == 0
        often = content_of("1.2048.left") * 9
        (lab.view / "often").write_bytes(often)
        with monkeypatch.context() as patch, ExitStack() as until_then:
            if case == "killed":
                patch.setattr(Judgements, "end", be_killed)
                until_then.enter_context(pytest.raises(Killed))
            lab.optimize()
        assert lab.stub("often") is not None
        assert lab.stub("1.2048.left") is None
        lab.optimize()
        assert is_all_stored(lab, "1.2048.left")
        assert (lab.view / "often").read_bytes() == often
        (lab.view / "often").unlink()


def test_parts_that_save_nothing_stay_where_others_are_read_again(disk: Path) -> None:
    with restored_onto(disk) as lab:
        restore(lab, "2.900.one")
        assert lab.optimize().files_optimized == 0
        restore(lab, "2.900.two")
        (lab.view / "1.20480.one").write_bytes(content_of("1.20480.one"))
        report = lab.optimize()
        assert (report.files_recalled, report.files_optimized) == (2, 2)
        assert report.sums.stored_bytes < MIB, "chunks that no file needs"
        assert lab.stub("1.20480.one") is None


def test_files_with_repeated_parts_are_taken_where_they_do_not_fit(disk: Path) -> None:
    """Nothing but the file itself has its chunks."""
    with restored_onto(disk) as lab:
        part = noise(2 * MIB - 5 * KIB, 3)
        (lab.view / "of parts").write_bytes(part * 15)
        leave_alone(lab, "of parts")
        leave_room(disk, 5 * MIB)
        assert optimize(lab, disk) >= 20 * MIB
        assert (lab.view / "of parts").read_bytes() == part * 15
        (lab.view / "of parts").unlink()
