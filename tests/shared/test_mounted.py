"""Volumes on a shared store under their mounts: each mount takes part in a collection."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dedupd_core.errors import UnseenMember
from dedupd_core.format.container import Kind
from dedupd_core.units import KIB
from jobs.gc.tree_marker import TreeMarker
from tests.support.lab import noise
from tests.support.mounts import MountedLab
from tests.support.service import eventually
from tests.support.shared import SharedLab

pytestmark = pytest.mark.root

COMMON, LOST = noise(600 * KIB), noise(500 * KIB, 1)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[MountedLab, MountedLab]]:
    """Two mounted volumes on one store."""
    shared = SharedLab(tmp_path)
    labs = []
    for name in ("a", "b"):
        (view := tmp_path / f"view-{name}").mkdir()
        lab = MountedLab(shared.volume(name).root, view)
        lab.mount()
        labs.append(lab)
    a, b = labs
    try:
        yield a, b
    finally:
        for lab in labs:
            if lab.pid:
                lab.unmount()
    a.verify_clean()


def collect(lab: MountedLab) -> int:
    """Collect and compact by way of one volume; returns how many chunks became garbage."""
    report = lab.collect()
    assert report.messages == []
    assert lab.compact().messages == []
    return report.orphaned_chunks


def test_commits_go_through_both_mounts(pair: tuple[MountedLab, MountedLab]) -> None:
    a, b = pair
    for lab in pair:
        lab.make_stub("file", COMMON)
    (a.view / "file").unlink()
    assert collect(a) == 0
    assert (b.view / "file").read_bytes() == COMMON
    b.make_stub("alone", LOST)
    (b.view / "alone").unlink()
    assert collect(a) > 0


def test_a_file_that_moves_in_another_volume_is_kept(
    pair: tuple[MountedLab, MountedLab], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the other volume is walked, each file goes to where the walk has been."""
    a, b = pair
    for name in ("one", "two", "three"):
        b.make_stub(f"{name}/file", noise(300 * KIB, len(name) * 7))
    before = {path.read_bytes() for path in b.view.rglob("file")}
    moved: list[Path] = []
    listing = TreeMarker._list

    def move(self: TreeMarker, fd: int) -> list[bytes]:
        names = listing(self, fd)
        here = os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))
        if here in ("one", "two", "three") and not moved:
            for path in b.view.rglob("file"):
                if path.parent.name != here:
                    moved.append(path.rename(b.view / here / path.parent.name))
        return names

    monkeypatch.setattr(TreeMarker, "_list", move)
    assert collect(a) == 0
    assert len(moved) == 2
    assert {path.read_bytes() for path in b.view.rglob("*") if path.is_file()} == before


def test_an_open_file_without_a_name_in_another_volume_is_kept(
    pair: tuple[MountedLab, MountedLab],
) -> None:
    a, b = pair
    path = b.make_stub("file", LOST)
    with open(path, "rb") as file:
        path.unlink()
        assert collect(a) == 0
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert file.read() == LOST
    # The mount closes the stub some seconds after the last request for it.
    eventually(lambda: collect(a) > 0, "its chunks are collected")


def test_a_volume_whose_mount_over_it_is_dead_stops_collections(tmp_path: Path) -> None:
    shared = SharedLab(tmp_path)
    a, root = shared.volume("a"), shared.volume("b").root
    b = MountedLab(root, root)
    b.mount()
    try:
        (b.view / "file").write_bytes(LOST)
        b.optimize()
        assert a.collect().orphaned_chunks == 0
        b.kill()
        with pytest.raises(UnseenMember, match="/b"):
            a.collect()
    finally:
        b.unmount()
    assert a.collect().orphaned_chunks == 0
    assert b.read("file") == LOST


def test_the_mount_of_another_volume_lets_go_of_old_containers(
    pair: tuple[MountedLab, MountedLab],
) -> None:
    a, b = pair

    def held() -> set[str]:
        links = []
        for link in Path(f"/proc/{b.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # it has just been closed
                links.append(os.readlink(link))
        return {name for name in links if "/chunks/00000001.dat" in name}

    for at in range(3):
        b.make_stub(f"file{at}", noise(400 * KIB, 20 + at))
    (b.view / "file1").unlink()
    for at in (0, 2):
        with open(b.view / f"file{at}", "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            assert file.read() == noise(400 * KIB, 20 + at)
    assert held()
    a.set_policy("compaction_min_dead = 0.01\n")
    assert a.collect().messages == []
    with b.opened() as volume:
        inode = os.stat(f"{volume.directory(Kind.CHUNKS)}/00000001.dat").st_ino
    a.compact()
    assert not [name for name in held() if name.endswith("(deleted)")]
    with b.opened() as volume:
        after = os.stat(f"{volume.directory(Kind.CHUNKS)}/00000001.dat").st_ino
    assert after != inode, "nothing was compacted"
    for at in (0, 2):
        assert (b.view / f"file{at}").read_bytes() == noise(400 * KIB, 20 + at)
