"""Blocks that the disk cannot give: they cost what lies in them, and no job stops at them.

btrfs keeps checksums: a bit that is flipped below it makes reading the block an error, as a bad
sector does.
"""

import errno
import fcntl
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from dedupd_core.errors import Damaged
from dedupd_core.format.container import FILE_HEADER_BYTES, Kind
from dedupd_core.format.ids import PackedPairs, make_id
from dedupd_core.store.container import rescue
from dedupd_core.store.merge_log import MergeLogWriter
from dedupd_core.system import files
from dedupd_core.system.files import is_readable, opened, read_readable
from dedupd_core.volume.catalog import Catalog
from jobs.frame.run import JobRun
from jobs.reconcile.reconcile_job import Reconcile
from jobs.scrub.scrub_job import ScrubReport
from tests.conftest import MakeFileSystem
from tests.support.lab import Lab, flip_bit, new_lab, noise, write_out
from tests.support.service import eventually
from tests.support.upkeep import chunks_of, entry, scrub

_GET_FLAGS, _NO_CHECKSUMS = 0x8008_6601, 0x0080_0000
"""``FS_IOC_GETFLAGS``, and the flag of a file that btrfs writes in place, without checksums."""

CONTENTS = {"first": noise(400_000, 3), "second": noise(300_000, 4), "small": noise(9_000, 9)}


def filled(point: Path) -> Lab:
    """A volume of one container of chunks, whose table takes several blocks."""
    lab = new_lab(point / "volume", "4k")
    for name, content in CONTENTS.items():
        lab.put(name, content)
        lab.optimize()
    lab.set_policy('min_age = "0s"\nmin_size = "1"\ncompaction_min_dead = 0.1\n')
    return lab


def keeps_checksums(path: Path) -> bool:
    """Whether btrfs does for this file."""
    with open(path, "rb") as file:
        raw = fcntl.ioctl(file, _GET_FLAGS, bytes(struct.calcsize("@l")))
    return not struct.unpack("@l", raw)[0] & _NO_CHECKSUMS


def make_unreadable(point: Path, path: Path, at: int) -> None:
    """Flip a bit of a file below its file system, wherever that has, or had, these bytes."""
    assert keeps_checksums(path), f"{path}: damage in it would be read as content"
    write_out(point)
    image = point.parent / "image"
    content, disk = path.read_bytes()[at : at + 64], image.read_bytes()
    found = disk.find(content)
    while found >= 0:
        flip_bit(image, found)
        found = disk.find(content, found + 1)
    with opened(os.open(path, os.O_RDONLY)) as fd:

        def is_lost() -> bool:
            # The kernel drops pages where it can, which on a busy machine is not always at once.
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            return not is_readable(fd, at & -files.BLOCK_BYTES, at + 64)

        eventually(is_lost, f"{path} cannot be read")


def readable(lab: Lab) -> set[str]:
    """The files that can be read, and must read right."""
    found = set()
    for name, content in CONTENTS.items():
        if not (lab.data / name).exists():
            continue
        try:
            assert lab.read(name) == content
        except Damaged:
            continue
        found.add(name)
    return found


def run_everything(lab: Lab) -> ScrubReport:
    """Every job, on a volume with damage; returns what a full scrub said of it."""
    lab.verify()
    lab.collect()
    lab.put("new", noise(100_000, 5))
    assert lab.optimize().errors == 0
    assert lab.read("new") == noise(100_000, 5)
    lab.compact()
    return scrub(lab.root)


@pytest.mark.root
@pytest.mark.parametrize("at", [0, 4096])
def test_a_block_of_a_table_costs_nothing(loop_fs: MakeFileSystem, at: int) -> None:
    point = loop_fs("btrfs", "256M")
    lab = filled(point)
    make_unreadable(point, lab.table(Kind.CHUNKS), at)
    assert readable(lab) == set(CONTENTS)
    assert run_everything(lab).losses == []
    assert readable(lab) == set(CONTENTS)
    lab.verify_clean()


@pytest.mark.root
def test_a_block_of_a_container_costs_the_chunks_in_it(loop_fs: MakeFileSystem) -> None:
    point = loop_fs("btrfs", "256M")
    lab = filled(point)
    make_unreadable(point, lab.container(Kind.CHUNKS), 100_000)
    # Further on there is damage that a full scrub must come to.
    last = chunks_of(lab, "second")[-1][0]
    flip = entry(lab, Kind.CHUNKS, last).offset + 100
    path = lab.container(Kind.CHUNKS)
    with opened(os.open(path, os.O_RDWR)) as fd:
        byte = os.pread(fd, 1, flip)
        os.pwrite(fd, bytes([byte[0] ^ 1]), flip)
    report = run_everything(lab)
    assert {loss.path for loss in report.losses} == {"first", "second"}
    assert report.lost_bytes < 40_000
    assert readable(lab) == {"small"}


@pytest.mark.root
def test_a_block_of_recipes_is_made_up_for_by_their_copies(loop_fs: MakeFileSystem) -> None:
    point = loop_fs("btrfs", "256M")
    lab = filled(point)
    for number in range(20):
        lab.put(f"more{number}", noise(100_000, 50 + number))
    lab.optimize()
    offsets = (entry(lab, Kind.RECIPES, make_id(1, at)).offset for at in range(20))
    at = next(offset for offset in offsets if offset >= files.BLOCK_BYTES)
    make_unreadable(point, lab.container(Kind.RECIPES), at)
    assert readable(lab) == set(CONTENTS)
    (lab.data / "small").unlink()
    report = lab.collect(full=True)
    assert (report.errors, report.outcome) == (0, "done"), report.messages[:3]
    assert scrub(lab.root).losses == []
    assert readable(lab) >= {"first", "second"}


@pytest.mark.root
def test_a_block_of_garbage_does_not_keep_a_container(loop_fs: MakeFileSystem) -> None:
    point = loop_fs("btrfs", "256M")
    lab = filled(point)
    make_unreadable(point, lab.container(Kind.CHUNKS), 100_000)
    assert lab.read("second") == CONTENTS["second"]
    report = lab.compact()
    assert (report.rewritten, report.errors) == (0, 0)
    (lab.data / "first").unlink()
    lab.collect()
    report = lab.compact()
    assert (report.rewritten, report.errors) == (1, 0), report
    assert lab.read("second") == CONTENTS["second"]


@pytest.mark.root
def test_the_block_of_a_containers_header_is_rewritten(
    loop_fs: MakeFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rescue, "READ_PAUSE_S", 0.01)
    point = loop_fs("btrfs", "256M")
    lab = filled(point)
    make_unreadable(point, lab.container(Kind.CHUNKS), 64)
    report = run_everything(lab)
    assert {loss.path for loss in report.losses} == {"first"}
    assert report.lost_bytes < 20_000
    assert readable(lab) == {"second", "small"}
    assert lab.collect().errors == 0


@pytest.mark.parametrize("failures", [1, 2, 4])
def test_a_block_that_can_be_read_at_last_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    lab = filled(tmp_path)
    path = lab.container(Kind.CHUNKS)
    records = path.read_bytes()[FILE_HEADER_BYTES:]
    left = failures

    def fails_for_a_while(fd: int, length: int, offset: int) -> bytes:
        nonlocal left
        if offset == 0 and left and os.path.samestat(os.fstat(fd), path.stat()):
            left -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return os.pread(fd, length, offset)

    monkeypatch.setattr(rescue, "READ_PAUSE_S", 0.01)
    monkeypatch.setattr(files, "read_at", fails_for_a_while)
    monkeypatch.setattr(files, "_readable", lambda *_: b"")
    with lab.opened() as volume, volume.containers(Kind.CHUNKS) as directory:
        rescue.mend(directory, 1)
    assert left == 0 and path.read_bytes()[FILE_HEADER_BYTES:] == records
    monkeypatch.undo()
    assert not scrub(lab.root).losses and readable(lab) == set(CONTENTS)


@pytest.mark.root
def test_a_container_whose_last_block_is_gone_grows_no_more(loop_fs: MakeFileSystem) -> None:
    point = loop_fs("btrfs", "256M")
    lab = filled(point)
    path = lab.container(Kind.CHUNKS)
    make_unreadable(point, path, path.stat().st_size - 200)
    assert {loss.path for loss in run_everything(lab).losses} == {"small"}
    assert readable(lab) == {"first", "second"}


@pytest.mark.root
def test_a_block_of_a_merge_log_costs_the_log(loop_fs: MakeFileSystem) -> None:
    point = loop_fs("btrfs", "256M")
    lab = filled(point)
    with lab.opened() as volume, opened(volume.store.open_merge_directory()) as fd:
        writer = MergeLogWriter(fd, volume.space.volume_id, volume.disk, volume.room())
        writer.add(PackedPairs(noise(16_000)))
        writer.complete()
        writer.close()
    make_unreadable(point, lab.base / "store/merge/merge.log", 8192)
    with lab.opened() as volume, volume.job_lock():
        report = Reconcile(volume, JobRun("reconcile")).run()
    assert report.outcome == "done" and "it is rebuilt" in report.messages[0]
    assert readable(lab) == set(CONTENTS)


@pytest.mark.root
def test_a_block_of_the_catalogue_costs_the_history(loop_fs: MakeFileSystem) -> None:
    """LMDB maps its file into memory: a page that is not there kills whatever touches it.

    The catalogue has btrfs write it in place, without checksums. A copy of it, as a backup gives
    it back, has them.
    """
    point = loop_fs("btrfs", "256M")
    directory = point / "catalog"
    with Catalog(str(directory)) as catalog:
        for number in range(200):
            catalog.put(f"run/{number:020d}", "x" * 1000)
    path = directory / "data.mdb"
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)
    at = content.index(b"x" * 500) & -files.BLOCK_BYTES
    make_unreadable(point, path, at)
    script = (
        "import sys\n"
        "from dedupd_core.volume.catalog import Catalog\n"
        "Catalog(sys.argv[1]).put('a', 1)"
    )
    subprocess.run([sys.executable, "-c", script, directory], check=True)
    with Catalog(str(directory)) as catalog:
        assert catalog.get("a") == 1
        assert catalog.latest("run/", 1) == []


def test_blocks_that_cannot_be_read_are_zeros(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, content = tmp_path / "file", noise(20_000)
    path.write_bytes(content)
    read = os.pread

    def pread(fd: int, length: int, offset: int) -> bytes:
        if offset < 8192 and offset + length > 4096:
            raise OSError(errno.EIO, "a bad sector")
        return read(fd, length, offset)

    monkeypatch.setattr(os, "pread", pread)
    with opened(os.open(path, os.O_RDONLY)) as fd:
        expected = content[:4096] + bytes(4096) + content[8192:]
        for start, length in ((0, 30_000), (5, 9000), (4100, 10), (8190, 5), (19_990, 100)):
            assert read_readable(fd, length, start) == expected[start : start + length]
        assert is_readable(fd, 8192, 20_000) and not is_readable(fd, 0, 20_000)
