"""A mount's process, or a job, is killed in the middle of a commit or of giving a file back."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dedupd_core.deleted.listing import lost
from dedupd_core.deleted.log import DeletionLogs
from dedupd_core.errors import ServiceUnreachable
from dedupd_core.system import mount_table
from dedupd_core.volume.volume import Volume
from fuse_stub.mounts import mount_process
from fuse_stub.mounts.mount_points import clear_dead_mount
from jobs.tree.walk import walk
from tests.support import crash
from tests.support.deletions import newest_first
from tests.support.dying_mounts import dies_at
from tests.support.mounts import Nursery

pytestmark = pytest.mark.root

JOBS: dict[str, Callable[[Path], object]] = {
    "stub.attribute-set": crash.optimize_volume,
    "stub.punched": crash.optimize_volume,
    "stub.times-set": crash.optimize_volume,
    "stub.restoring": crash.unoptimize_volume,
    "stub.piece-filled": crash.unoptimize_volume,
    "stub.filled": crash.unoptimize_volume,
    "stub.plain": crash.unoptimize_volume,
}
"""Fail points that the mount's process passes, and the job that has it pass them."""


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with (
        crash.tmpfs(tmp_path_factory.mktemp("mounted")) as memory,
        crash.ext4(memory, size_mb=256, mkfs=("-b", "4096")) as point,
    ):
        yield point


@contextmanager
def mounted(root: Path, view: Path, dying_at: str = "") -> Iterator[None]:
    """A mount served by a process of its own, which dies at a fail point."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DEDUPD_FAIL_POINT", dying_at)
        Nursery().serve(str(root), str(view), cache_bytes=16 << 20)
    try:
        yield
    finally:
        clear_dead_mount(str(view))
        if mount_table.find(str(view)) is not None:
            mount_process.unmount(str(view))


@pytest.mark.parametrize("point", JOBS)
def test_a_mount_killed_at_a_fail_point_loses_nothing(fast: Path, point: str) -> None:
    root, view = fast / "root", fast / "view"
    for path in (root, view):
        crash.remove(path)
        path.mkdir()
    job = JOBS[point]
    before = crash.make_volume(root)
    if job is crash.unoptimize_volume:
        crash.optimize_volume(root)

    with mounted(root, view, dying_at=point), pytest.raises(ServiceUnreachable):
        job(root)
    assert crash.see(root) == before

    with mounted(root, view):
        assert crash.see_plain(view) == before
        job(root)
    with mounted(root, view):
        assert crash.see_plain(view) == before
    report = crash.verify_volume(root)
    assert (report.findings, report.unsettled, report.unsynced_bytes) == ([], 0, 0)
    assert (report.stubs == 0) == (job is crash.unoptimize_volume)
    assert crash.half_done(root) == []
    assert crash.see(root) == before


@pytest.mark.parametrize("point", JOBS)
def test_a_mount_after_a_killed_job_shows_no_trace_of_it(fast: Path, point: str) -> None:
    root, view = fast / "root", fast / "view"
    for path in (root, view):
        crash.remove(path)
        path.mkdir()
    job = JOBS[point]
    before = crash.make_volume(root)
    if job is crash.unoptimize_volume:
        crash.optimize_volume(root)
    command = "unoptimize" if job is crash.unoptimize_volume else "optimize"
    assert crash.was_killed(crash.run_cli("run", command, root, fail_at=point))

    with mounted(root, view):
        assert crash.see_plain(view) == before
    assert crash.half_done(root) == []


# --- before every effect that it has ----------------------------------------------------------

STEPS_MAX = 1000


def killed_at_steps(fast: Path, job: Callable[[Path], object], first: int, stride: int) -> int:
    start, root, view = fast / "start", fast / "root", fast / "view"
    for path in (start, root, view):
        crash.remove(path)
    start.mkdir()
    view.mkdir()
    before = crash.make_volume(start)
    if job is crash.unoptimize_volume:
        crash.optimize_volume(start)
    for kills, step in enumerate(range(first, STEPS_MAX, stride)):
        crash.copy_volume(start, root)
        died = dies_at(root, view, step, job)
        assert crash.see(root) == before, f"killed before step {step}"
        with mounted(root, view):
            assert crash.see_plain(view) == before, f"killed before step {step}, mounted again"
            job(root)
        report = crash.verify_volume(root)
        assert (report.findings, report.unsettled, report.unsynced_bytes) == ([], 0, 0)
        assert crash.half_done(root) == []
        assert crash.see(root) == before
        crash.remove(root)
        if not died:
            return kills
    raise AssertionError("it never lived on")


@pytest.mark.parametrize("job", [crash.optimize_volume, crash.unoptimize_volume])
def test_a_mount_killed_between_its_effects_loses_nothing(
    fast: Path, job: Callable[[Path], object]
) -> None:
    assert killed_at_steps(fast, job, 20, 40) >= 1


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("job", [crash.optimize_volume, crash.unoptimize_volume])
def test_a_mount_killed_between_any_two_of_its_effects_loses_nothing(
    fast: Path, job: Callable[[Path], object]
) -> None:
    kills = killed_at_steps(fast, job, 0, 1)
    print(f"\nkilled before each of {kills} effects of the mount process")
    assert kills >= 10


def test_a_mount_killed_after_it_noted_a_deletion_has_deleted_nothing(fast: Path) -> None:
    root, view = fast / "root", fast / "view"
    for path in (root, view):
        crash.remove(path)
        path.mkdir()
    before = crash.make_volume(root)
    crash.optimize_volume(root)
    with Volume.open(str(root)) as volume:
        stubs = [os.fsdecode(found.path) for found in walk(volume) if found.is_stub]
    name = next(one for one in stubs if (root / ".dedupd/data" / one).stat().st_nlink == 1)
    with mounted(root, view, dying_at="deleted.noted"), pytest.raises(OSError):
        (view / name).unlink()
    assert crash.see(root) == before
    with Volume.open(str(root)) as volume:
        assert len(list(newest_first(DeletionLogs(volume)))) == 1
        assert list(lost(volume, volume.policy(), b"")) == [], "it is there"
    with mounted(root, view):
        (view / name).unlink()
    with Volume.open(str(root)) as volume:
        found = [row["path"] for row in lost(volume, volume.policy(), b"")]
    assert set(found) == {name}
