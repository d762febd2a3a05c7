"""What any volume of a store needs is kept, and one that cannot be seen stops collections."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dedupd_core.errors import Damaged, NoSpace, UnseenMember, UsageError
from dedupd_core.format.container import Kind
from dedupd_core.stores.local_store import STORE_DIRS
from dedupd_core.system.disk import Disk
from dedupd_core.units import KIB
from jobs.adopt.adopt_job import Adopt
from jobs.adopt.proof import VolumeCopy
from jobs.frame.run import JobRun
from jobs.gc.gc_job import NOTHING_NEW, Gc
from tests.support.copies import belong_here
from tests.support.lab import Lab, fill, new_lab, noise, stop_at
from tests.support.shared import SharedLab, rejoin


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[SharedLab]:
    yield SharedLab(tmp_path)


@pytest.fixture
def pair(shared: SharedLab) -> tuple[Lab, Lab]:
    """Two volumes with the same files, and each with one of its own."""
    a, b = shared.volume("a"), shared.volume("b")
    for at, lab in enumerate((a, b)):
        fill(lab)
        lab.put("alone", noise(400 * KIB, 50 + at))
        lab.optimize()
    return a, b


def test_only_what_no_volume_needs_is_collected(pair: tuple[Lab, Lab]) -> None:
    a, b = pair
    contents = {name: b.read(name) for name in ("base", "prose", "alone")}
    for name in ("base", "copy", "edited", "prose", "alone"):
        (a.data / name).unlink()
    report = a.collect()
    assert report.errors == 0
    assert 390 * KIB < report.orphaned_bytes < 420 * KIB  # that of a alone
    assert report.stubs == 2 + 7
    assert {name: b.read(name) for name in contents} == contents
    assert b.collect().outcome == NOTHING_NEW
    a.compact()
    assert {name: b.read(name) for name in contents} == contents
    b.verify_clean()


def test_a_collection_takes_all_volumes(pair: tuple[Lab, Lab]) -> None:
    a, _ = pair
    with a.opened() as volume, volume.job_lock(), pytest.raises(UnseenMember, match="not locked"):
        Gc(volume, JobRun("gc")).run()


def refused(lab: Lab, name: str) -> str:
    """Collecting from ``lab`` is refused, and the message names the volume."""
    with pytest.raises(UnseenMember, match=f"/{name}") as refusal:
        lab.collect()
    return str(refusal.value)


def test_a_volume_that_is_gone_stops_collections(shared: SharedLab, pair: tuple[Lab, Lab]) -> None:
    a, b = pair
    b.root.rename(shared.directory / "renamed")
    assert "rejoin" in refused(a, "b")
    moved = Lab(shared.directory / "renamed")
    moved.put("more", noise(10 * KIB))
    with pytest.raises(UnseenMember, match="moved"):
        moved.optimize()
    assert moved.read("alone") == noise(400 * KIB, 51)
    assert rejoin(moved).losses == []
    assert shared.known() == {"a", "renamed"}
    moved.optimize()
    assert a.collect().errors == 0
    a.verify_clean()


def test_a_volume_in_the_place_of_another_stops_collections(
    shared: SharedLab, pair: tuple[Lab, Lab]
) -> None:
    a, b = pair
    other = new_lab(shared.directory / "c")
    b.root.rename(shared.directory / "renamed")
    other.root.rename(b.root)
    assert "another volume" in refused(a, "b")
    b.root.rename(other.root)
    (shared.directory / "renamed").rename(b.root)
    assert a.collect().errors == 0


def test_an_older_copy_of_a_volume_stops_collections(
    shared: SharedLab, pair: tuple[Lab, Lab]
) -> None:
    a, b = pair
    old = shared.directory / "old"
    shutil.copytree(b.base, old, symlinks=True)
    (b.data / "alone").unlink()
    assert a.collect().orphaned_chunks > 0
    # Brought back, the file needs what was collected since.
    token = (old / "membership.json").read_bytes()
    (b.base / "membership.json").write_bytes(token)
    assert "older" in refused(a, "b")
    with pytest.raises(UnseenMember, match="older"):
        b.optimize()
    assert rejoin(b).losses == []
    assert a.collect().errors == 0


def test_an_older_copy_of_a_store_stops_collections(
    shared: SharedLab, pair: tuple[Lab, Lab]
) -> None:
    a, b = pair
    old = (shared.path / "members.json").read_bytes()
    b.put("more", noise(10 * KIB, 3))
    b.optimize()
    (shared.path / "members.json").write_bytes(old)
    assert "older" in refused(a, "b")


def test_what_a_volume_from_an_older_copy_needs_is_live_again(
    shared: SharedLab, pair: tuple[Lab, Lab]
) -> None:
    a, b = pair
    copy = shared.directory / "copy"
    with b.opened() as volume:
        name = volume.parameters.attribute
    attribute = os.getxattr(b.data / "alone", name)
    with stop_at("gc.swept", 2):
        (b.data / "alone").rename(copy)  # out of sight of the collection
        b.collect()
    copy.rename(b.data / "alone")
    assert os.getxattr(b.data / "alone", name) == attribute
    report = rejoin(b)
    assert report.losses == []
    assert report.revived > 0
    a.compact()
    assert b.read("alone") == noise(400 * KIB, 51)


def test_a_volume_that_needs_what_is_gone_is_not_taken_in_unasked(
    shared: SharedLab, pair: tuple[Lab, Lab]
) -> None:
    _, b = pair
    for path in (shared.path / STORE_DIRS[Kind.CHUNKS]).glob("*"):
        path.unlink()
    before = (shared.path / "members.json").read_bytes()
    report = rejoin(b)
    assert {loss.path for loss in report.losses} >= {"alone", "base"}
    assert (shared.path / "members.json").read_bytes() == before
    assert rejoin(b, accepts_losses=True).outcome.startswith("registered")
    assert (shared.path / "members.json").read_bytes() != before


def test_a_copy_beside_its_volume_is_not_taken_in(shared: SharedLab, pair: tuple[Lab, Lab]) -> None:
    _, b = pair
    copy = shared.directory / "copy"
    shutil.copytree(b.root, copy, symlinks=True)
    belong_here(copy)
    with pytest.raises(UsageError, match="copy"):
        rejoin(Lab(copy))
    with pytest.raises(UnseenMember, match="copy"):
        Lab(copy).optimize()


def test_a_volume_that_lost_all_its_stubs_stops_collections(
    shared: SharedLab, pair: tuple[Lab, Lab]
) -> None:
    a, b = pair
    fresh = shared.volume("c")
    fresh.put("plain", b"never a stub")
    assert a.collect().errors == 0  # a volume that never had a stub may have none
    with b.opened() as volume:
        name = volume.parameters.attribute
    for path in b.data.iterdir():
        if name in os.listxattr(path):
            os.removexattr(path, name)
    refused = a.collect()
    assert refused.orphaned_chunks == 0
    assert len(refused.messages) == 1 and "/b: none of its" in refused.messages[0]
    assert a.collect(all_garbage=True).orphaned_chunks > 0
    assert a.collect().errors == 0


def test_a_lost_list_of_volumes_stops_everything(shared: SharedLab, pair: tuple[Lab, Lab]) -> None:
    a, _ = pair
    (shared.path / "members.json").unlink()
    with pytest.raises(Damaged, match="lists the volumes"):
        a.collect()
    with pytest.raises(Damaged, match="lists the volumes"):
        a.optimize()
    assert a.read("base")


@pytest.mark.parametrize("point", ["shared.token-offered", "shared.token-taken"])
def test_a_step_between_tokens_may_stop_anywhere(pair: tuple[Lab, Lab], point: str) -> None:
    a, b = pair
    for _ in range(2):
        with stop_at(point):
            a.collect()
    b.optimize()
    assert a.collect().errors == 0


def test_a_full_disk_can_be_collected(
    pair: tuple[Lab, Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = pair
    real, left = Disk.replace_file, [1]

    def full(disk: Disk, fd: int, name: bytes, *rest: Any, **more: Any) -> None:
        if name in (b"membership.json", b"members.json"):
            if not left[0]:
                raise NoSpace("no space left")
            left[0] -= 1
        real(disk, fd, name, *rest, **more)

    monkeypatch.setattr(Disk, "replace_file", full)
    for left[0] in (0, 1, 2):
        (a.data / ("base", "prose", "alone")[left[0]]).unlink()
        a.collect()
    monkeypatch.undo()
    b.optimize()
    assert a.collect().errors == 0
    assert b.read("base")
    b.verify_clean()


def test_a_volume_that_was_restored_file_by_file_is_taken_in(
    shared: SharedLab, pair: tuple[Lab, Lab]
) -> None:
    a, b = pair
    content = b.read("alone")
    copy = shared.directory / "copy"
    subprocess.run(["cp", "-a", "--sparse=always", b.root, copy], check=True)
    shutil.rmtree(b.root)
    refused(a, "b")
    copy.rename(b.root)
    assert "adopt" in refused(a, "b")
    with VolumeCopy.open(str(b.root)) as volume, volume.tree_lock(), volume.mount_lock():
        assert Adopt(volume, JobRun("adopt")).run().adopted == 7
    assert "rejoin" in refused(a, "b")
    assert rejoin(b).losses == []
    assert a.collect().errors == 0
    assert b.read("alone") == content
    a.verify_clean()
