"""Blocks that come back to nobody if a file becomes a stub, and blocks that nobody knew of."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from dedupd_core import native
from dedupd_core.system.files import opened
from dedupd_core.units import KIB, MIB
from jobs.tree.candidates import SHARED_BELOW as SHARED
from tests.conftest import MakeFileSystem
from tests.support.lab import OLD_NS, Lab, new_lab, noise, run_cli, stop_at

pytestmark = pytest.mark.root

TAKES_ALL = 'min_age = "0s"\nmin_size = 1\n'


def reflink(source: Path, copy: Path) -> None:
    subprocess.run(["cp", "-p", "--reflink=always", source, copy], check=True)


def allocated(lab: Lab, name: str) -> int:
    return (lab.data / name).stat().st_blocks * 512


@pytest.mark.parametrize("kind", ["btrfs", "xfs"])
def test_a_file_and_its_reflink_copies_are_left_and_said(
    loop_fs: MakeFileSystem, kind: str
) -> None:
    lab = new_lab(loop_fs(kind, "400M") / "volume")
    for name, length in (("large", 12 * MIB), ("small", 200 * KIB)):
        lab.put(name, noise(length, length))
        reflink(lab.data / name, lab.data / f"{name} copy")
    lab.put("alone", noise(3 * MIB, 1))
    lab.put("small alone", noise(150 * KIB, 2))
    subprocess.run(["sync"], check=True)
    report = lab.optimize()
    assert report.files_left == {SHARED: 4}
    assert report.shared_left_bytes == 2 * (12 * MIB + 200 * KIB)
    assert report.files_optimized == 2
    assert report.freed_bytes >= 3 * MIB + 150 * KIB
    assert report.shared_taken_bytes == 0
    assert lab.stub("small") is lab.stub("large copy") is None
    again = lab.optimize()
    assert (again.files_optimized, again.files_left) == (0, {SHARED: 4})

    (lab.data / "small copy").unlink()
    (lab.data / "large copy").unlink()
    subprocess.run(["sync"], check=True)
    report = lab.optimize()
    assert (report.files_optimized, report.files_left) == (2, {})
    lab.verify_clean()


def test_a_file_that_a_snapshot_has_is_left_unless_the_policy_takes_it(
    loop_fs: MakeFileSystem,
) -> None:
    point = loop_fs("btrfs", "400M")
    subprocess.run(["btrfs", "subvolume", "create", point / "share"], check=True)
    lab = new_lab(point / "share" / "volume")
    contents = {"large": noise(9 * MIB), "small": noise(200 * KIB, 1)}
    for name, content in contents.items():
        lab.put(name, content)
    snapshot: list[str | Path] = ["btrfs", "subvolume", "snapshot", "-r"]
    snapshot += [point / "share", point / "snapshot"]
    subprocess.run(snapshot, check=True)
    report = lab.optimize()
    assert (report.files_optimized, report.files_left) == (0, {SHARED: 2})
    assert report.sums.stored_bytes == 0
    run_cli("run", "optimize", lab.root)
    status = json.loads(run_cli("status", lab.root, "--here", "--json").stdout)
    assert status["shared_left"] == {"files": 2, "bytes": 9 * MIB + 200 * KIB}
    assert status["saved_bytes"] == 0
    assert f"2 files, 9.20 MiB: {SHARED}" in run_cli("doctor", lab.root, "--json").stdout

    lab.set_policy(TAKES_ALL + 'shared_extents = "take"\n')
    report = lab.optimize()
    assert (report.files_optimized, report.files_left) == (2, {})
    assert report.shared_taken_bytes == 9 * MIB + 200 * KIB
    assert {name: lab.read(name) for name in contents} == contents
    lab.verify_clean()


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs"])
def test_blocks_that_were_allocated_behind_the_end_are_freed(
    loop_fs: MakeFileSystem, kind: str
) -> None:
    lab = new_lab(loop_fs(kind, "400M") / "volume")
    contents = preallocated(lab)
    mtime_ns = {name: (lab.data / name).stat().st_mtime_ns for name in contents}
    report = lab.optimize()
    assert report.files_optimized == 2
    assert report.freed_bytes >= 48 * MIB
    assert [allocated(lab, name) for name in contents] == [0, 0]
    assert {name: (lab.data / name).stat().st_mtime_ns for name in contents} == mtime_ns
    assert {name: lab.read(name) for name in contents} == contents
    lab.verify_clean()


def preallocated(lab: Lab) -> dict[str, bytes]:
    """Two files with 24 MiB of blocks each, of which they use few."""
    contents = {"large": noise(5 * MIB), "small": noise(100 * KIB, 1)}
    for name, content in contents.items():
        path = lab.put(name, content)
        with opened(os.open(path, os.O_RDWR)) as fd:
            native.system.fallocate_keep_size(fd, 0, 24 * MIB)
        os.utime(path, ns=(OLD_NS, OLD_NS))
        assert allocated(lab, name) >= 24 * MIB
    return contents


def test_a_death_after_the_blocks_behind_the_end_are_freed_costs_nothing(
    loop_fs: MakeFileSystem,
) -> None:
    lab = new_lab(loop_fs("ext4", "400M") / "volume")
    contents = preallocated(lab)
    with stop_at("stub.trimmed"):
        lab.optimize()
    assert {name: lab.read(name) for name in contents} == contents
    lab.optimize()
    assert {(lab.data / name).stat().st_mtime_ns for name in contents} == {OLD_NS}
    assert [allocated(lab, name) for name in contents] == [0, 0]
    assert {name: lab.read(name) for name in contents} == contents
    lab.verify_clean()
