"""Threads for slow calls: what one user can take of them, and who is next."""

import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from dedupd_core.units import MIB
from fuse_stub.files.slow_calls import SlowCalls
from fuse_stub.files.slow_closes import FREED_BYTES_MAX, SlowCloses

GREEDY, MODEST, THIRD = 1, 2, 0


class Calls:
    """Calls that are in a thread until they are let go."""

    def __init__(self, threads: int) -> None:
        self.slow = SlowCalls(threads)
        self.inside: list[int] = []
        self._gates: dict[int, list[threading.Event]] = {}

    async def call(self, uid: int) -> None:
        gate = threading.Event()

        def stay() -> None:
            self.inside.append(uid)
            gate.wait(timeout=60)

        self._gates.setdefault(uid, []).append(gate)
        await self.slow.run(uid, stay)
        self.inside.remove(uid)

    def counted(self) -> Counter[int]:
        return Counter(self.inside)

    def let_go(self) -> None:
        for gates in self._gates.values():
            for gate in gates:
                gate.set()


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(60):
        while not condition():
            await trio.sleep(0.001)


def run(threads: int, scenario: Callable[[Calls, trio.Nursery], object]) -> None:
    async def main() -> None:
        calls = Calls(threads)
        async with trio.open_nursery() as nursery:
            try:
                await scenario(calls, nursery)  # type: ignore[misc]
            finally:
                calls.let_go()
                while calls.inside:
                    calls.let_go()
                    await trio.sleep(0.001)
        assert calls.slow._free == threads and not calls.slow._taken and not calls.slow._waiting

    trio.run(main)


def test_one_user_leaves_threads_to_others() -> None:
    async def scenario(calls: Calls, nursery: trio.Nursery) -> None:
        for _ in range(50):
            nursery.start_soon(calls.call, GREEDY)
        await until(lambda: calls.counted()[GREEDY] == 8)
        for _ in range(50):
            nursery.start_soon(calls.call, MODEST)
        await until(lambda: calls.counted()[MODEST] == 4)
        nursery.start_soon(calls.call, THIRD)
        await until(lambda: calls.counted()[THIRD] == 1)
        assert calls.counted() == {GREEDY: 8, MODEST: 4, THIRD: 1}

    run(16, scenario)


def test_users_whose_calls_wait_take_turns() -> None:
    order: list[int] = []
    gate, both = threading.Event(), threading.Barrier(2, timeout=60)

    def note(uid: int) -> None:
        order.append(uid)
        if len(order) <= 2:
            both.wait()  # the threads of the first two begin in any order

    async def main() -> None:
        slow = SlowCalls(2)

        async def call(uid: int) -> None:
            await slow.run(uid, note, uid)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(slow.run, THIRD, gate.wait)
            await wait_all_tasks_blocked()
            nursery.start_soon(slow.run, 4, gate.wait)
            await wait_all_tasks_blocked()
            for uid in (GREEDY, GREEDY, GREEDY, MODEST):
                nursery.start_soon(call, uid)
                await wait_all_tasks_blocked()
            assert order == []
            gate.set()

    trio.run(main)
    assert sorted(order[:2]) == sorted([GREEDY, MODEST]) and len(order) == 4


def test_a_call_that_is_given_up_leaves_its_turn() -> None:
    async def scenario(calls: Calls, nursery: trio.Nursery) -> None:
        for _ in range(3):
            nursery.start_soon(calls.call, GREEDY)
        await until(lambda: calls.counted()[GREEDY] == 2)
        with trio.move_on_after(0.01) as scope:
            await calls.slow.run(GREEDY, pytest.fail)
        assert scope.cancelled_caught

    run(4, scenario)


@pytest.mark.parametrize("is_large", [False, True])
def test_the_end_of_a_large_file_is_another_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_large: bool
) -> None:
    closed_by: list[int] = []
    close = os.close

    def noting(fd: int) -> None:
        closed_by.append(threading.get_ident())
        close(fd)

    path = tmp_path / "file"
    path.write_bytes(os.urandom(FREED_BYTES_MAX + MIB if is_large else 10_000))
    closes = SlowCloses()
    named, nameless = os.open(path, os.O_PATH), os.open(path, os.O_PATH)
    monkeypatch.setattr(os, "close", noting)
    closes.close(named)
    assert closed_by == [threading.get_ident()]
    os.unlink(path)
    closes.close(nameless)
    closes.end()
    assert (closed_by[1] != threading.get_ident()) == is_large
    with pytest.raises(OSError):
        os.fstat(nameless)
