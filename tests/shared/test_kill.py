"""Killed before any step, what volumes share loses nothing, and the next run finishes."""

import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from dedupd_core.shared.fellows import all_held
from dedupd_core.system.disk import Disk
from dedupd_core.volume.volume import Volume
from jobs.frame.run import JobRun
from jobs.gc.gc_job import Gc
from jobs.move import Move, MovingVolume
from tests.crash.exploring import file_system_for_states
from tests.crash.scenarios import Contents
from tests.crash.shared_scenarios import (
    disabled_to_the_end,
    look,
    look_at_moved,
    move,
    moved_to_the_end,
    own_and_shared_volume,
    place,
    put_on_store,
    shared_to_the_end,
    two_directories,
    two_volumes,
    two_volumes_one_plain,
)
from tests.support import crash

pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with file_system_for_states(tmp_path_factory.mktemp("kill")) as point:
        yield point


def share(root: Path, disk: Disk) -> None:
    put_on_store(root, disk)
    for name in ("a", "b"):
        crash.optimize_volume(root / name, disk)


def collect(root: Path, disk: Disk) -> None:
    for path in ("base", "edited", "own/text"):
        (root / "a/.dedupd/data" / path).unlink(missing_ok=True)
    with Volume.open(str(root / "b"), disk) as volume, all_held(volume):
        assert Gc(volume, JobRun("gc")).run().messages == []


def leave(root: Path, disk: Disk) -> None:
    crash.disable_volume(root / "a", disk)


def move_back(root: Path, disk: Disk) -> None:
    with MovingVolume.open(str(root / "a"), disk) as volume:
        Move(volume, JobRun("move"), None).run()


class Work(NamedTuple):
    """Volumes to begin with, what is done to them, how their files are looked at after a kill, and
    what brings all to its end."""

    begin: Callable[[Path, int], None]
    act: Callable[[Path, Disk], None]
    look: Callable[[Path], Contents]
    end: Callable[[Path], None]


WORK = {
    "share": Work(two_directories, share, look, shared_to_the_end),
    "collect": Work(two_volumes, collect, look, shared_to_the_end),
    "leave": Work(two_volumes_one_plain, leave, look, disabled_to_the_end),
    "move": Work(own_and_shared_volume, move, look_at_moved, moved_to_the_end),
    "move back": Work(two_volumes, move_back, look_at_moved, moved_to_the_end),
}


def killed_at(fast: Path, name: str, first: int, stride: int) -> int:
    """Kill the work before each ``stride``-th step, and bring it to its end; returns how often."""
    work, root, original = WORK[name], fast / "root", fast / "original"
    for path in (root, original):
        crash.remove(path)
    work.begin(original, 1)
    count, step, was_killed = 0, first, True
    while was_killed:
        crash.remove(root)
        subprocess.run(["cp", "-a", "--sparse=always", original, root], check=True)
        place(root)
        before = look(root)
        was_killed = crash.kill_at_step(partial(work.act, root), step)
        after = work.look(root)
        assert name == "collect" or after.keys() == before.keys(), f"step {step}"
        expected = {path: before[path] for path in after}
        assert after == expected, f"step {step}"
        work.end(root)
        assert look(root) == expected, f"step {step}"
        count, step = count + was_killed, step + stride
    crash.remove(original)
    crash.remove(root)
    return count


@pytest.mark.parametrize(("name", "stride"), [("collect", 19), ("move", 29)])
def test_some_kills_lose_nothing(fast: Path, name: str, stride: int) -> None:
    assert killed_at(fast, name, 3, stride) >= 2


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", WORK)
def test_no_kill_loses_anything(fast: Path, name: str) -> None:
    print(name, killed_at(fast, name, 0, 1))
