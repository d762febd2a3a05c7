"""While a restore fills a volume, writers wait for the optimizer, and do not fail."""

import filecmp
import mmap
import shutil
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple, TypeVar

import pytest
import trio
from trio.testing import MockClock

from dedupd_core.config.policy import Policy, RestoreMode
from dedupd_core.config.reserve import Reserve
from dedupd_core.system.files import FreeSpace
from dedupd_core.units import KIB, MIB
from fuse_stub.mounted_volume import POLICY_LOOK_S
from fuse_stub.policy import brake as brake_module
from fuse_stub.policy.brake import PATIENCE_S, WAIT_S_MAX, Brake
from tests.conftest import MakeFileSystem
from tests.support import crash
from tests.support.lab import noise, repeated
from tests.support.mounts import MountedLab, mounted_lab
from tests.support.room import leave_room, room_bytes
from tests.support.tree_compare import differences

T = TypeVar("T")

WORKING, GUARD = 40, 30
"""What is kept for optimize, and what may be written without a look, in bytes of a scene."""


class Scene(NamedTuple):
    """A brake, the room that it sees, and how long a new file waits."""

    brake: Brake
    see: Callable[[int], None]

    def waited_s(self, size_bytes: int = 0) -> float:
        """Of a new file, or of a write of so many bytes."""

        async def wait() -> float:
            began = trio.current_time()
            if size_bytes:
                await self.brake.wait_to_write(size_bytes)
            else:
                await self.brake.wait()
            return trio.current_time() - began

        return timed(wait)

    def run(self, freed_bytes: int | None) -> None:
        """A run that takes no time."""

        async def run() -> None:
            self.brake.run_ends(self.brake.run_begins(), freed_bytes)

        timed(run)


def timed(work: Callable[[], Awaitable[T]]) -> T:
    """By a clock that does not wait."""
    return trio.run(work, clock=MockClock(autojump_threshold=0))


class FakePolicy:
    now = Policy(restore_mode=RestoreMode.ON, reserve=Reserve(size_bytes=100))


class FakeVolume:
    data_fd = -1


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    room = [1000]
    monkeypatch.setattr(brake_module, "free_space", lambda _: FreeSpace(room[0] + 100, 10_000))
    monkeypatch.setattr(brake_module, "working_bytes", lambda _: WORKING)
    monkeypatch.setattr(brake_module, "guard_bytes", lambda _: GUARD)
    brake = Brake(FakeVolume(), FakePolicy(), clock=trio.current_time)  # type: ignore[arg-type]
    yield Scene(brake, lambda now: room.__setitem__(0, now))


def test_files_wait_once_half_of_the_room_is_taken(scene: Scene) -> None:
    assert scene.waited_s() == 0
    scene.see(501)
    assert scene.waited_s() == 0
    scene.see(499)
    assert scene.waited_s() == pytest.approx(WAIT_S_MAX, abs=1)


def test_the_end_of_a_run_lets_them_go_on(scene: Scene) -> None:
    scene.waited_s()
    scene.see(400)
    scene.run(1)
    assert scene.waited_s() == 0
    scene.see(199)
    assert scene.waited_s() > 0


def test_where_nothing_is_freed_each_half_waits_once(scene: Scene) -> None:
    scene.waited_s()
    scene.see(400)
    assert scene.waited_s() > 0
    assert scene.waited_s() == 0
    scene.see(0)
    assert scene.waited_s() == pytest.approx(WAIT_S_MAX, abs=1)


def test_while_a_run_is_at_work_each_file_waits(scene: Scene) -> None:
    async def files() -> list[float]:
        await scene.brake.wait()
        scene.see(400)
        run = scene.brake.run_begins()
        ends = []
        for _ in range(3):
            await scene.brake.wait()
            ends.append(trio.current_time())
        scene.brake.run_ends(run, 1)
        await scene.brake.wait()
        return [*ends, trio.current_time()]

    one, two, three, last = trio.run(files, clock=MockClock(autojump_threshold=0))
    assert two - one == pytest.approx(WAIT_S_MAX, abs=1)
    assert three - two == pytest.approx(WAIT_S_MAX, abs=1)
    assert last == three


def test_without_a_restore_none_waits(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.waited_s()
    monkeypatch.setattr(FakePolicy, "now", Policy(reserve=Reserve(size_bytes=100)))
    scene.see(1)
    assert scene.waited_s() == 0


def test_writes_wait_as_files_do(scene: Scene) -> None:
    assert scene.waited_s(100) == 0
    scene.see(599)
    assert scene.waited_s(99) == 0
    assert scene.waited_s(100) == pytest.approx(WAIT_S_MAX, abs=1)
    assert scene.waited_s(299) == 0, "half of what is left is for writes, since nothing frees space"


def test_what_may_be_written_without_a_look_leaves_room_for_chunks(scene: Scene) -> None:
    assert scene.brake.allowed_bytes == GUARD
    for room, allowed in ((530, GUARD), (510, 10), (500, 0), (1, 0), (-5, 0)):
        scene.see(room)
        assert scene.brake.allowed_bytes == allowed
    scene.run(1)
    scene.see(WORKING + 7)
    scene.run(1)
    assert scene.brake.allowed_bytes == 7


async def failed_s(scene: Scene, size_bytes: int) -> float:
    """After how long a write fails for want of space."""
    began = trio.current_time()
    with pytest.raises(OSError, match="No space left"):
        await scene.brake.wait_to_write(size_bytes)
    return trio.current_time() - began


def test_a_write_that_would_take_of_what_is_kept_fails_where_nothing_frees_space(
    scene: Scene,
) -> None:
    scene.waited_s()
    scene.see(WORKING + 50)
    assert scene.waited_s(50) > 0
    assert timed(partial(failed_s, scene, 51)) == pytest.approx(PATIENCE_S, abs=1)


async def runs(scene: Scene, length_s: float, freed: Sequence[int | None]) -> None:
    """One after the other, each of so many seconds."""
    for freed_bytes in freed:
        run = scene.brake.run_begins()
        await trio.sleep(length_s)
        scene.brake.run_ends(run, freed_bytes)
        await trio.sleep(1)


@pytest.mark.parametrize(
    ("length_s", "freed", "after_s"),
    [
        (30, [0, 0, 0], 3 * 30 + 2),  # the first was at work before the write
        (1, [0] * 20, WAIT_S_MAX),
        (30, [0, 1, 0, 1, 0, 0], 6 * 30 + 5),
        (30, [0, None, 0, None, 0], 5 * 30 + 4),  # those that were broken off say nothing
        (300, [0, 0, 0], 3 * 300 + 2),  # however long they take
        (30, [1, None, None, None, None], 5 * 30 + 4),  # never in the midst of one
    ],
)
def test_it_waits_for_whole_runs_that_free_nothing(
    scene: Scene, length_s: float, freed: list[int | None], after_s: float
) -> None:
    scene.waited_s()
    scene.see(50)

    async def write() -> float:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runs, scene, length_s, freed)
            await trio.sleep(0.001)
            return await failed_s(scene, 51)

    assert timed(write) == pytest.approx(after_s, abs=1)


def test_it_goes_on_as_soon_as_a_run_has_freed_room(scene: Scene) -> None:
    scene.waited_s()
    scene.see(50)

    async def write() -> float:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runs, scene, 100, [0, 1])
            nursery.start_soon(free)
            await scene.brake.wait_to_write(51)
            return trio.current_time()

    async def free() -> None:
        await trio.sleep(150)
        scene.see(200)

    assert timed(write) == pytest.approx(150, abs=1)


def test_small_writes_do_not_take_what_a_large_one_waits_for(scene: Scene) -> None:
    scene.waited_s()
    scene.see(WORKING + 20)
    ended: list[str] = []

    async def write(name: str, size_bytes: int) -> None:
        await scene.brake.wait_to_write(size_bytes)
        ended.append(name)

    async def both() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write, "large", 80)
            await trio.sleep(1)
            nursery.start_soon(write, "small", 10)
            await trio.sleep(50)
            assert ended == []
            assert scene.brake.allowed_bytes == 0
            scene.see(1000)

    timed(both)
    assert ended == ["large", "small"]
    assert scene.brake.allowed_bytes == GUARD


def test_a_write_goes_on_as_soon_as_the_mode_is_off(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.waited_s()
    scene.see(0)

    async def write() -> float:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scene.brake.wait_to_write, 51)
            await trio.sleep(5)
            off = Policy(reserve=Reserve(size_bytes=100))
            monkeypatch.setattr(FakePolicy, "now", off)
        return trio.current_time()

    assert timed(write) == pytest.approx(5, abs=1)
    assert scene.brake.allowed_bytes is None


@pytest.mark.root
def test_while_a_write_waits_others_go_on(loop_fs: MakeFileSystem) -> None:
    """Readers, pages that a mapping has changed, and the job that makes room."""
    disk = loop_fs("ext4", "100M", in_memory=True)
    with mounted_lab(disk, {"restore_mode": "on"}) as lab:
        for number, name in enumerate(("read", "mapped", "written")):
            (lab.view / name).write_bytes(noise(256 * KIB, number))
        with short_of_room(disk, 3 * MIB):
            writer = threading.Thread(target=append, args=(lab.view / "written", noise(MIB, 7)))
            writer.start()
            began = time.monotonic()
            for _ in range(50):
                assert (lab.view / "read").read_bytes() == noise(256 * KIB, 0)
            with open(lab.view / "mapped", "r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
                mapping[:] = noise(256 * KIB, 8)
                mapping.flush()
            assert lab.optimize().files_optimized == 3, "also the one whose writer waits"
            assert time.monotonic() - began < WAIT_S_MAX / 2
            assert writer.is_alive()
        writer.join()
        assert (lab.view / "mapped").read_bytes() == noise(256 * KIB, 8)
        assert (lab.view / "written").read_bytes() == noise(256 * KIB, 2) + noise(MIB, 7)


@contextmanager
def short_of_room(disk: Path, left_bytes: int) -> Iterator[None]:
    """While somebody has all space of a disk but the reserve and so much."""
    taken = leave_room(disk, left_bytes)
    time.sleep(2 * POLICY_LOOK_S)  # what was allowed before has been taken back
    try:
        yield
    finally:
        taken.unlink()


def append(path: Path, content: bytes) -> None:
    with open(path, "ab", buffering=0) as file:
        file.write(content)


@contextmanager
def restored_onto_250_mb(tmp_path: Path) -> Iterator[tuple[MountedLab, Path]]:
    """A volume in restore mode on a disk of that size; verified in the end."""
    with crash.tmpfs(tmp_path, 300) as memory, crash.ext4(memory, 250) as disk:
        directory = disk / "lab"
        directory.mkdir()
        with mounted_lab(directory, {"restore_mode": "on"}) as lab:
            yield lab, disk
            lab.unmount()
            lab.verify_clean()
        shutil.rmtree(directory)


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_restore_writes_more_than_the_disk_holds(tmp_path: Path) -> None:
    """450 MB of which 150 are distinct, onto 250, by a program that copies through the mount."""
    size, distinct, copies = 2 * MIB - 5 * KIB, 75, 3
    with restored_onto_250_mb(tmp_path) as (lab, disk):
        rooms = list[int]()
        with repeated(lab.optimize, 0.0):
            for copy in range(copies):
                for number in range(distinct):
                    (lab.view / f"{copy}-{number}").write_bytes(noise(size, number))
                    rooms.append(room_bytes(disk))
        lab.optimize()
        assert min(rooms) > 0, "the reserve was touched"
        for copy in range(copies):
            for number in range(0, distinct, 7):
                assert (lab.view / f"{copy}-{number}").read_bytes() == noise(size, number)


@contextmanager
def optimized(lab: MountedLab, disk: Path) -> Iterator[list[int]]:
    """Optimize runs again and again; yields the room at each moment."""
    rooms = list[int]()
    with repeated(lambda: rooms.append(room_bytes(disk)), 0.005), repeated(lab.optimize, 0.2):
        yield rooms


def written_by(program: str, source: Path, target: Path) -> "subprocess.CompletedProcess[str]":
    commands: dict[str, list[str | Path]] = {
        "dd": ["dd", f"if={source}", f"of={target}", "bs=1M", "conv=notrunc", "status=none"],
        "cp": ["cp", "--sparse=never", source, target],
        "rsync": ["rsync", source, target],
        "rsync --inplace": ["rsync", "--inplace", source, target],
    }
    return subprocess.run(commands[program], capture_output=True, text=True, check=False)


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("program", ["dd", "cp", "rsync", "rsync --inplace"])
def test_a_file_is_written_that_is_larger_than_the_disk(tmp_path: Path, program: str) -> None:
    """450 MB, of which 60 are distinct, onto 250; parts of it come several times before all of the
    distinct ones have come."""
    source = tmp_path / "source"
    parts = [noise(10 * MIB - 5 * KIB, number % 6) for number in range(45)]
    source.write_bytes(b"".join(parts))
    with restored_onto_250_mb(tmp_path) as (lab, disk):
        with optimized(lab, disk) as rooms:
            done = written_by(program, source, lab.view / "large")
        assert done.returncode == 0, done.stderr
        assert min(rooms) > 0, "the reserve was touched"
        lab.optimize()
        lab.unmount()  # the kernel has kept what was written
        lab.mount()
        assert filecmp.cmp(source, lab.view / "large", shallow=False)


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_large_files_and_small_ones_come_together(tmp_path: Path) -> None:
    """Two files of 150 MB that have 50 in common, and 200 MB of small ones in four copies, onto 250
    MB; the large ones by a program of their own, at the same time."""
    source = tmp_path / "source"
    for name, own in (("one", 100), ("two", 200)):
        (source / name).mkdir(parents=True)
        parts = [noise(10 * MIB, number) for number in [*range(5), own, *range(5), *range(4)]]
        (source / name / "large").write_bytes(b"".join(parts))
    for copy, number in product(range(4), range(300)):
        path = source / "two" / str(copy) / str(number)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(noise(170 * KIB, 1000 + number))
    with restored_onto_250_mb(tmp_path) as (lab, disk):
        with optimized(lab, disk) as rooms:
            commands = [
                ["dd", f"if={source}/one/large", f"of={lab.view}/one", "bs=1M"],
                ["rsync", "-a", f"{source}/two", f"{lab.view}/"],
            ]
            programs = [subprocess.Popen(one, stderr=subprocess.DEVNULL) for one in commands]
            assert [program.wait() for program in programs] == [0, 0]
        assert min(rooms) > 0, "the reserve was touched"
        lab.unmount()
        lab.mount()
        assert filecmp.cmp(source / "one" / "large", lab.view / "one", shallow=False)
        assert not list(differences(source / "two", lab.view / "two"))


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_file_that_does_not_fit_in_any_way_ends_at_the_reserve(tmp_path: Path) -> None:
    """400 MB that nothing shrinks, onto 250."""
    source = tmp_path / "source"
    source.write_bytes(b"".join(noise(80 * MIB, number) for number in range(5)))
    with restored_onto_250_mb(tmp_path) as (lab, disk):
        with optimized(lab, disk) as rooms:
            done = written_by("dd", source, lab.view / "large")
        assert "No space left" in done.stderr
        assert 0 <= min(rooms) < 20 * MIB
        there = (lab.view / "large").stat().st_size
        assert there > 150 * MIB
        with open(source, "rb") as one, open(lab.view / "large", "rb") as two:
            assert one.read(there) == two.read()
