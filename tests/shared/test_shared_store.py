"""Several volumes on one store: they share chunks, and do without each other."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dedupd_core.errors import NotAVolume, StoreUnreachable, UnseenMember, UsageError
from dedupd_core.format.stub import decode_stub
from dedupd_core.system.disk import Disk
from dedupd_core.units import KIB
from dedupd_core.volume.enabling.enable import enable
from tests.support.disabling import disable
from tests.support.lab import fill, new_lab, noise, run_cli, stop_at
from tests.support.shared import SharedLab


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[SharedLab]:
    yield SharedLab(tmp_path)


def test_a_volume_finds_the_chunks_of_another(shared: SharedLab) -> None:
    a, b = shared.volume("a"), shared.volume("b")
    contents = fill(a)
    fill(b)
    assert a.optimize().sums.new_chunks > 0
    before = shared.chunk_bytes()
    report = b.optimize()
    assert report.files_optimized == len(contents)
    assert report.sums.new_chunks == 0
    assert shared.chunk_bytes() == before
    for lab in (a, b):
        assert {name: lab.read(name) for name in contents} == contents
        assert not (lab.base / "store").exists()
    assert a.verify_clean().stubs == 2 * len(contents)


def test_a_stub_is_no_stub_of_another_store(shared: SharedLab, tmp_path: Path) -> None:
    lab, own = shared.volume("a"), new_lab(tmp_path / "own")
    lab.put("file", noise(200 * KIB))
    lab.optimize()
    with lab.opened() as volume, own.opened() as other:
        assert volume.space.volume_id != volume.parameters.uuid_bytes
        assert other.space.volume_id == other.parameters.uuid_bytes
        value = os.getxattr(lab.data / "file", volume.space.name)
        assert decode_stub(value, volume.space.volume_id, "").covered == 200 * KIB
        with pytest.raises(Exception, match="attribute"):
            decode_stub(value, volume.parameters.uuid_bytes, "")


def test_a_volume_takes_the_chunks_of_its_store(tmp_path: Path) -> None:
    assert run_cli("store", "create", tmp_path / "s", "--chunk-size", "16k", "--force").stdout
    (tmp_path / "v").mkdir()
    made = run_cli("enable", "--store", tmp_path / "s", "--no-mount", "--force", tmp_path / "v")
    assert made.returncode == 0, made.stderr
    shown = run_cli("store", "status", "--json", tmp_path / "s")
    assert str(tmp_path / "v") in shown.stdout
    assert run_cli("store", "status", tmp_path / "s").returncode == 0
    text = (tmp_path / "v" / ".dedupd" / "volume.json").read_text()
    assert '"max_bytes": 32768' in text


def test_a_store_needs_a_directory_of_its_own(shared: SharedLab, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").write_bytes(b"mine")
    for path, reason in ((full, "not empty"), (shared.path, "already a store")):
        answer = run_cli("store", "create", "--force", path)
        assert (answer.returncode, reason in answer.stderr) == (2, True), answer.stderr
    lab = shared.volume("a")
    assert "volume" in run_cli("store", "create", "--force", lab.data / "store").stderr
    (shared.path / "inside").mkdir()
    with shared.opened() as one, pytest.raises(UsageError, match="must be outside its volumes"):
        new_lab(shared.path / "inside", shared=one)


def test_without_its_store_a_volume_cannot_be_opened(shared: SharedLab) -> None:
    lab = shared.volume("a")
    lab.put("file", noise(100 * KIB))
    lab.optimize()
    shared.path.rename(shared.directory / "elsewhere")
    with lab.opened() as volume, pytest.raises(StoreUnreachable, match="no store exists here"):
        volume.contents  # noqa: B018
    with pytest.raises(StoreUnreachable):
        lab.optimize()
    other = SharedLab(shared.directory)
    assert other.path == shared.path
    with pytest.raises(StoreUnreachable, match="not the store of"):
        lab.optimize()


def test_disabling_leaves_the_others_whole(shared: SharedLab) -> None:
    a, b = shared.volume("a"), shared.volume("b")
    contents = fill(a)
    fill(b)
    b.put("alone", noise(300 * KIB, 9))
    a.optimize()
    b.optimize()
    assert run_cli("disable", b.root).returncode == 2
    assert shared.known() == {"a", "b"}
    answer = run_cli("disable", "--unoptimize", b.root)
    assert answer.returncode == 0, answer.stderr
    assert shared.known() == {"a"}
    assert {name: (b.root / name).read_bytes() for name in contents} == contents
    report = a.collect()
    assert report.orphaned_bytes > 250 * KIB  # of the file that b alone had
    assert {name: a.read(name) for name in contents} == contents
    a.verify_clean()
    assert run_cli("disable", "--unoptimize", a.root).returncode == 0
    assert shared.known() == set()


@pytest.mark.parametrize(
    "point", ["enable.prepared", "enable.moved", "shared.joined", "enable.enabled"]
)
def test_an_interrupted_enable_goes_on_or_back(shared: SharedLab, point: str) -> None:
    root = shared.directory / "v"
    root.mkdir()
    (root / "file").write_bytes(b"content")
    with stop_at(point):
        shared.volume("v")
    with pytest.raises((UsageError, NotAVolume)):
        enable(str(root), policy_values={}, disk=Disk(), force=True)  # without the store
    if point != "enable.enabled":
        disable(str(root), disk=Disk())
        assert shared.known() == set()
        assert sorted(path.name for path in root.iterdir()) == ["file"]
    shared.volume("v")
    assert shared.known() == {"v"}


def test_jobs_on_one_tree_go_on_beside_a_job_of_another(shared: SharedLab) -> None:
    a, b = shared.volume("a"), shared.volume("b")
    contents = fill(a)
    a.optimize()
    with b.opened() as volume, volume.job_lock():
        assert a.unoptimize().files_restored == len(contents)
    assert {name: (a.data / name).read_bytes() for name in contents} == contents


def waits_for(lock: Path, pid: int) -> bool:
    """Whether a process waits for a lock that another one holds."""
    inode = lock.stat().st_ino
    return any(
        "->" in line and f" {pid} " in line and f":{inode} " in line
        for line in Path("/proc/locks").read_text().splitlines()
    )


def test_a_job_waits_for_the_store(shared: SharedLab) -> None:
    a, b = shared.volume("a"), shared.volume("b")
    a.put("file", noise(100 * KIB))
    with shared.opened() as one, one.job_lock():
        waiting = subprocess.Popen(
            [sys.executable, "-m", "dedupd.cli.main", "run", "optimize", str(a.root)],
            stdout=subprocess.DEVNULL,
        )
        while not waits_for(shared.path / "lock", waiting.pid):
            assert waiting.poll() is None
    assert waiting.wait(60) == 0
    assert a.stub("file") is not None
    b.put("file", noise(100 * KIB))
    assert b.optimize().sums.new_chunks == 0


def test_a_volume_that_its_store_does_not_know_makes_no_references(shared: SharedLab) -> None:
    a = shared.volume("a")
    with shared.opened() as one:
        for uuid in one.members():
            one.remove(uuid)
    a.put("file", noise(100 * KIB))
    with pytest.raises(UnseenMember, match="not registered"):
        a.optimize()
    with pytest.raises(UnseenMember):
        a.collect()
