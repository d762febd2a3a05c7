"""Undelete, and a mount that serves it, killed before each of their durable effects."""

import os
import stat
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dedupd_core.deleted.listing import lost
from dedupd_core.deleted.undelete import UNFINISHED, Undelete, attach_below
from dedupd_core.errors import Busy
from dedupd_core.system.disk import Disk
from dedupd_core.system.tree.unfinished import is_mark
from dedupd_core.volume.volume import Volume
from tests.support import crash
from tests.support.deletions import wanted_of
from tests.support.dying_mounts import dies_at
from tests.support.lab import new_lab, noise, run_cli
from tests.support.mounts import (
    ALICE,
    BOB,
    GROUP_OBJ,
    MASK,
    NOBODY,
    OTHER,
    TEAM,
    USER,
    USER_OBJ,
    MountedLab,
    acl,
)

pytestmark = pytest.mark.root

STEPS_MAX = 200

FILES = {
    "new/hers": (ALICE, TEAM, 0o640),
    "roots": (0, 0, 0o755),
    "new/more/hers": (ALICE, TEAM, 0o604),
}
DIRECTORIES = {"new": (ALICE, TEAM, 0o700), "new/more": (ALICE, TEAM, 0o700)}

Seen = dict[str, crash.Seen]


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with (
        crash.tmpfs(tmp_path_factory.mktemp("undelete")) as memory,
        crash.ext4(memory, size_mb=256, mkfs=("-b", "4096")) as point,
    ):
        yield point


@pytest.fixture(scope="module")
def deleted(fast: Path) -> tuple[Path, Seen]:
    """A volume of which files and their directories were deleted; and what these files were."""
    root, view = fast / "start", fast / "view"
    view.mkdir()
    lab = new_lab(root)
    for name, (uid, gid, mode) in FILES.items():
        path = lab.put(name, noise(20_000, len(name)))
        os.chown(path, uid, gid)
        path.chmod(mode)
        os.setxattr(path, "user.colour", b"blue")
    lab.optimize()
    entries = [(USER_OBJ, 7, NOBODY), (USER, 7, BOB), (GROUP_OBJ, 7, NOBODY)]
    value = acl(*entries, (MASK, 7, NOBODY), (OTHER, 0, NOBODY))
    os.setxattr(lab.data, "system.posix_acl_default", value)
    lab.set_policy('keep_deleted = "7d"\nspace_low = "0"\nspace_critical = "0"\nreserve = "0"\n')
    before = crash.see(root)
    mount = MountedLab(root, view)
    mount.mount()
    for name in FILES:
        (view / name).unlink()
    for name in reversed(DIRECTORIES):
        (view / name).rmdir()
    mount.unmount()
    return root, {name: before[name] for name in FILES}


def undelete(root: Path, disk: Disk) -> None:
    with Volume.open(str(root), disk) as volume, volume.job_lock(), volume.mount_lock():
        rows = list(lost(volume, volume.policy(), b""))
        orders = [wanted_of(row, time.time()) for row in rows]
        results = list(Undelete(volume.data_fd, disk, attach_below(volume)).take(orders))
    assert [one.error for one in results if one.error is not None] == []


def undelete_by_mount(root: Path) -> None:
    run_cli("undelete", root.parent / "view")


def wait_until_free(root: Path) -> None:
    """A process that dies closes its mount first, and then the lock of it."""
    with Volume.open(str(root)) as volume:
        while True:
            try:
                with volume.mount_lock():
                    return
            except Busy:
                time.sleep(0.005)


def check(root: Path, before: Seen) -> set[str]:
    """What has its name is what it was; returns the names of the files that do."""
    seen = crash.see(root)
    for name, one in seen.items():
        path = root / ".dedupd/data" / name
        status = path.stat()
        found = (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode))
        if UNFINISHED.decode() in name:
            assert not status.st_mode & 0o6000
            if path.is_dir() and path.name.startswith(UNFINISHED.decode()):
                assert (status.st_uid, status.st_mode & 0o077) == (0, 0)
        elif path.is_dir():
            assert found == DIRECTORIES[name]
        else:
            # A kill right after a file has got its name leaves the note that it is unfinished.
            own = tuple(pair for pair in one.attributes if not is_mark(os.fsencode(pair[0])))
            assert (replace(one, attributes=own), found) == (before[name], FILES[name])
    return seen.keys() & FILES.keys()


def unfinished(root: Path) -> list[str]:
    """But for an empty file, which may be a user's."""
    names = [name for name in crash.see(root) if UNFINISHED.decode() in name]
    paths = [root / ".dedupd/data" / name for name in names]
    return [str(path) for path in paths if path.is_dir() or path.stat().st_size]


def killed_at_steps(fast: Path, deleted: tuple[Path, Seen], first: int, stride: int) -> int:
    """How many kills there were, each before another effect of the command."""
    start, before = deleted
    root, left = fast / "root", 0
    for kills, step in enumerate(range(first, STEPS_MAX, stride)):
        crash.copy_volume(start, root)
        died = crash.kill_at_step(lambda disk: undelete(root, disk), step)
        check(root, before)
        left += bool(unfinished(root))
        undelete(root, Disk())
        assert check(root, before) == FILES.keys(), f"killed before step {step}"
        assert unfinished(root) == []
        crash.remove(root)
        if not died:
            assert left > kills // 3
            return kills
    raise AssertionError("it never lived on")


def mounts_killed_at_steps(fast: Path, deleted: tuple[Path, Seen], first: int, stride: int) -> int:
    """The same of a mount that serves the command."""
    start, before = deleted
    root, view = fast / "root", fast / "view"
    for kills, step in enumerate(range(first, STEPS_MAX, stride)):
        crash.copy_volume(start, root)
        died = dies_at(root, view, step, undelete_by_mount)
        wait_until_free(root)
        check(root, before)
        undelete(root, Disk())
        assert check(root, before) == FILES.keys(), f"killed before step {step}"
        crash.remove(root)
        if not died:
            return kills
    raise AssertionError("it never lived on")


def test_undelete_killed_between_its_effects_shows_nothing_unfinished(
    fast: Path, deleted: tuple[Path, Seen]
) -> None:
    assert killed_at_steps(fast, deleted, 1, 4) > 5


def test_a_mount_killed_between_its_effects_shows_nothing_unfinished(
    fast: Path, deleted: tuple[Path, Seen]
) -> None:
    assert mounts_killed_at_steps(fast, deleted, 1, 4) > 2


@pytest.mark.slow
def test_both_killed_between_any_two_of_their_effects_show_nothing_unfinished(
    fast: Path, deleted: tuple[Path, Seen]
) -> None:
    assert killed_at_steps(fast, deleted, 0, 1) > 20
    assert mounts_killed_at_steps(fast, deleted, 0, 1) > 10
