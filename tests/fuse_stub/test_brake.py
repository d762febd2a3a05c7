"""While a restore fills a volume, writers wait for the optimizer, and do not fail."""

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import trio
from trio.testing import MockClock

from dedupd.config.policy import Policy, RestoreMode
from dedupd.config.reserve import Reserve
from dedupd.system.files import FreeSpace
from dedupd.units import KIB, MIB
from fuse_stub.policy import brake as brake_module
from fuse_stub.policy.brake import WAIT_S_MAX, Brake
from tests.support import crash
from tests.support.lab import noise
from tests.support.mounts import mounted_lab


class Scene(NamedTuple):
    """A brake, the room that it sees, and how long a new file waits."""

    brake: Brake
    see: Callable[[int], None]

    def waited_s(self) -> float:
        async def wait() -> float:
            began = trio.current_time()
            await self.brake.wait()
            return trio.current_time() - began

        return trio.run(wait, clock=MockClock(autojump_threshold=0))


class FakePolicy:
    now = Policy(restore_mode=RestoreMode.ON, reserve=Reserve(size_bytes=100))


class FakeVolume:
    data_fd = -1


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    room = [1000]
    monkeypatch.setattr(brake_module, "free_space", lambda _: FreeSpace(room[0] + 100, 10_000))
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
    scene.brake.run_begins()
    scene.brake.run_ends()
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
        scene.brake.run_begins()
        ends = []
        for _ in range(3):
            await scene.brake.wait()
            ends.append(trio.current_time())
        scene.brake.run_ends()
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


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_restore_writes_more_than_the_disk_holds(tmp_path: Path) -> None:
    """450 MB of which 150 are distinct, onto 250, by a program that copies through the mount."""
    size, distinct, copies = 2 * MIB - 5 * KIB, 75, 3
    with crash.tmpfs(tmp_path, 300) as memory, crash.ext4(memory, 250) as disk:
        directory = disk / "lab"
        directory.mkdir()
        with mounted_lab(directory, {"restore_mode": "on"}) as lab:
            over, rooms = threading.Event(), list[int]()

            def optimize() -> None:
                while not over.is_set():
                    lab.optimize()

            thread = threading.Thread(target=optimize)
            thread.start()
            try:
                for copy in range(copies):
                    for number in range(distinct):
                        (lab.view / f"{copy}-{number}").write_bytes(noise(size, number))
                        space = os.statvfs(disk)
                        rooms.append((space.f_bavail - space.f_blocks // 10) * space.f_frsize)
            finally:
                over.set()
                thread.join()
            lab.optimize()
            assert min(rooms) > 0, "the reserve was touched"
            for copy in range(copies):
                for number in range(0, distinct, 7):
                    assert (lab.view / f"{copy}-{number}").read_bytes() == noise(size, number)
            lab.unmount()
            lab.verify_clean()
        shutil.rmtree(directory)
