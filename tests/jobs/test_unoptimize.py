"""Unoptimize: the way out, for one file, a part of the tree or all, as long as there is space."""

import os
import random
import subprocess
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from dedupd_core.errors import NoSpace
from dedupd_core.format.container import Kind
from dedupd_core.stub.filling import PIECE_BYTES
from dedupd_core.stub.stub_file import SparseStub
from dedupd_core.system.files import opened
from dedupd_core.units import KIB, MIB
from dedupd_core.volume.restore import restore_file
from jobs.frame.run import Cancelled, JobRun
from tests.conftest import MakeFileSystem
from tests.support.lab import (
    OLD_NS,
    RAW_SOCKETS,
    fill,
    free_bytes,
    lab_in,
    new_lab,
    noise,
    run_cli,
    write_out,
)
from tests.support.upkeep import chunks_of, damage_record, scrub


def test_every_file_is_as_it_was_before(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        contents = fill(lab)
        (lab.data / "base").chmod(0o640)
        os.setxattr(lab.data / "base", "user.note", b"kept")
        lab.optimize()
        report = lab.unoptimize()
        assert (report.files_restored, report.errors) == (len(contents), 0)
        assert report.logical_bytes == sum(map(len, contents.values()))
        for name, content in contents.items():
            assert lab.stub(name) is None
            assert (lab.data / name).read_bytes() == content
            assert (lab.data / name).stat().st_mtime_ns == OLD_NS
        assert (lab.data / "base").stat().st_mode & 0o777 == 0o640
        assert os.getxattr(lab.data / "base", "user.note") == b"kept"


@pytest.mark.root
def test_a_stub_that_was_given_capabilities_keeps_them(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        path = lab.put("program", noise(100_000))
        lab.optimize()
        assert lab.stub("program") is not None
        os.setxattr(path, "security.capability", RAW_SOCKETS)
        lab.unoptimize()
        assert lab.stub("program") is None
        assert os.getxattr(path, "security.capability") == RAW_SOCKETS


def test_it_may_be_repeated(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        fill(lab)
        lab.optimize()
        lab.unoptimize()
        assert lab.unoptimize().files_restored == 0


def test_one_file_is_made_plain_and_once_is_enough(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        contents = fill(lab)
        lab.optimize()
        with lab.opened() as volume:
            assert restore_file(volume, b"prose").was_stub
            assert not restore_file(volume, b"prose").was_stub
        assert (lab.data / "prose").read_bytes() == contents["prose"]
        assert lab.stub("base") is not None


def test_a_file_of_zeros_becomes_one_hole(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        lab.put("zeros", bytes(500 * KIB))
        lab.optimize()
        lab.unoptimize()
        assert (lab.data / "zeros").read_bytes() == bytes(500 * KIB)
        assert (lab.data / "zeros").stat().st_blocks == 0


@pytest.mark.root
def test_unoptimize_asks_for_the_space_before_it_begins(loop_fs: MakeFileSystem) -> None:
    lab = new_lab(loop_fs(size="48M") / "volume")
    content = noise(5 * MIB)
    for at in range(12):
        lab.put(f"{at}", content)
        lab.optimize()
    with pytest.raises(NoSpace) as caught:
        lab.unoptimize()
    assert "expanding 12 files needs 60.00 MiB" in str(caught.value)
    assert "are missing" in str(caught.value)
    assert all(lab.stub(f"{at}") for at in range(12))
    lab.unoptimize(b"3")
    assert (lab.data / "3").read_bytes() == content
    lab.verify_clean()


@pytest.mark.root
def test_a_restore_that_runs_out_of_space_leaves_the_stub_as_it_was(
    loop_fs: MakeFileSystem,
) -> None:
    lab = new_lab(loop_fs(size="48M") / "volume")
    content = noise(12 * MIB)
    lab.put("file", content)
    lab.optimize()
    (lab.root / "filler").write_bytes(noise(free_bytes(lab) - 3 * MIB, 1))
    before = lab.stub("file")
    with lab.opened() as volume, pytest.raises(NoSpace, match="it stays a stub"):
        restore_file(volume, b"file")
    assert lab.stub("file") == before
    assert (lab.data / "file").stat().st_blocks == 0
    assert (lab.data / "file").stat().st_mtime_ns == OLD_NS
    assert lab.read("file") == content
    lab.verify_clean()


def test_a_restore_that_is_stopped_leaves_the_stub_as_it_was(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        content = noise(11 * MIB)
        lab.put("file", content)
        lab.optimize()
        before = lab.stub("file")
        run, checks = JobRun("unoptimize"), count(1)

        def check() -> None:
            if next(checks) == 2:
                assert (lab.data / "file").stat().st_blocks * 512 == 2 * PIECE_BYTES
                run.cancel()
            run.safe_point()

        with lab.opened() as volume, pytest.raises(Cancelled):
            restore_file(volume, b"file", check)
        assert lab.stub("file") == before
        assert (lab.data / "file").stat().st_blocks == 0
        assert lab.read("file") == content


@pytest.mark.parametrize("own_bytes", [256 * KIB, 192 * KIB])
def test_a_stub_with_blocks_of_its_own_counts_them_once_a_restore_was_stopped(
    tmp_path: Path, own_bytes: int
) -> None:
    """So a change of its holes below the mount is noticed still. Pieces of 128 KiB are compared."""
    with lab_in(tmp_path) as lab:
        content = noise(11 * MIB)
        lab.put("file", content)
        lab.optimize()
        own = noise(own_bytes, 1)
        with lab.opened() as volume, opened(os.open(lab.data / "file", os.O_RDWR)) as fd:
            attribute = volume.space.read(fd, "file")
            assert attribute is not None
            load = partial(volume.content, where="file")
            stub = SparseStub(fd, attribute, volume.stub_files, load)
            assert stub.write(5 * MIB, own) == len(own)
            os.fsync(fd)
            assert stub.seal()
        before = lab.stub("file")
        assert before is not None and before.local_bytes == own_bytes
        run, checks = JobRun("unoptimize"), count(1)

        def check() -> None:
            if next(checks) == 2:
                run.cancel()
            run.safe_point()

        with lab.opened() as volume, pytest.raises(Cancelled):
            restore_file(volume, b"file", check)
        assert lab.stub("file") == replace(before, local_bytes=256 * KIB)
        assert lab.read("file") == content[: 5 * MIB] + own + content[5 * MIB + len(own) :]


def test_a_damaged_file_stays_a_stub_and_does_not_stop_the_others(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "volume")
    contents = fill(lab)
    lab.optimize()
    lab.lose(Kind.RECIPES)
    report = lab.unoptimize()
    assert report.files_restored == 1 and lab.stub("one-chunk") is None
    assert report.errors == len(contents) - 1
    assert all(message.partition(":")[0] in contents for message in report.messages)
    assert lab.stub("base") is not None


def test_islands_in_a_sparse_file_do_not_grow(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        path = lab.data / "islands"
        with open(path, "wb") as file:
            for number in range(20):
                file.seek(number * 100_000)
                file.write(b"an island")
        write_out(path)
        before = os.stat(path).st_blocks
        content = path.read_bytes()
        lab.optimize()
        assert lab.stub("islands") is not None
        lab.unoptimize()
        assert path.read_bytes() == content
        assert os.stat(path).st_blocks <= before


@pytest.mark.root
def test_islands_in_a_sparse_file_need_no_more_space_than_they_did(
    loop_fs: MakeFileSystem,
) -> None:
    """Their chunks are mostly zeros: taken for data, they would need thrice what there is."""
    lab = new_lab(loop_fs(size="48M") / "volume")
    rng = random.Random(1)
    path = lab.data / "islands"
    with open(path, "wb") as file:
        for number in range(1200):
            file.seek(number * 100_000)
            file.write(rng.randbytes(4096))
    content = path.read_bytes()
    assert lab.optimize().files_optimized == 1
    assert lab.unoptimize().files_restored == 1
    assert path.read_bytes() == content
    lab.verify_clean()


def test_disable_leaves_nothing_of_copies_repairs_and_notes(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "volume")
    contents = fill(lab)
    lab.set_policy('min_age = "0s"\nmin_size = "1"\nredundancy_threshold = 1\n')
    lab.optimize()
    scrub(lab.root)
    damage_record(lab, Kind.CHUNKS, chunks_of(lab, "base")[0][0])
    scrub(lab.root)
    assert run_cli("disable", "--unoptimize", lab.root).returncode == 0
    assert {path.name: path.read_bytes() for path in lab.root.iterdir()} == contents


@pytest.mark.root
def test_a_quota_that_is_used_up_is_the_finding_of_its_file_and_the_others_go_on(
    loop_fs: MakeFileSystem,
) -> None:
    """A qgroup of btrfs holds for root as well, as quotas of XFS do."""
    point = loop_fs("btrfs", "400M")

    def btrfs(*command: str) -> None:
        subprocess.run(["btrfs", *command], check=True, capture_output=True)

    btrfs("subvolume", "create", str(point / "share"))
    lab = new_lab(point / "share" / "volume")
    contents = {"a small": noise(MIB, 1), "large": noise(40 * MIB, 2), "small": noise(MIB, 3)}
    for name, content in contents.items():
        lab.put(name, content)
    lab.optimize()
    write_out(lab.root)
    btrfs("quota", "enable", str(point))
    btrfs("quota", "rescan", "-w", str(point))
    btrfs("qgroup", "limit", "60M", str(point / "share"))
    report = lab.unoptimize()
    assert report.files_restored == 2
    assert report.errors == 1
    assert "large: the quota of user 0, of group 0, or" in report.messages[0]
    assert [lab.stub(name) is None for name in contents] == [True, False, True]
    btrfs("qgroup", "limit", "none", str(point / "share"))
    assert lab.unoptimize().files_restored == 1
    assert {name: (lab.data / name).read_bytes() for name in contents} == contents
