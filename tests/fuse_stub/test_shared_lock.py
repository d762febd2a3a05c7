"""The lock of an open file: in the order in which tasks came, and never lost."""

import random

import pytest
import trio
import trio.testing

from fuse_stub.files.shared_lock import SharedLock


async def _use(lock: SharedLock, wants_alone: bool, said: list[str], name: str) -> None:
    async with lock.alone() if wants_alone else lock.shared():
        said.append(name)
        await trio.testing.wait_all_tasks_blocked()


@pytest.mark.parametrize("wants_alone", [True, False])
def test_piece_after_piece_keeps_nobody_out(wants_alone: bool) -> None:
    """A task that takes it alone again at once waits behind those that came meanwhile."""

    async def run() -> list[str]:
        lock, said = SharedLock(), list[str]()
        async with trio.open_nursery() as nursery:
            for piece in range(3):
                async with lock.alone():
                    said.append(f"piece {piece}")
                    if piece == 0:
                        nursery.start_soon(_use, lock, wants_alone, said, "user")
                        await trio.testing.wait_all_tasks_blocked()
        return said

    assert trio.run(run) == ["piece 0", "user", "piece 1", "piece 2"]


def test_sharers_in_turns_keep_no_change_waiting() -> None:
    async def run() -> list[str]:
        lock, said = SharedLock(), list[str]()
        assert lock.try_share()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_use, lock, True, said, "change")
            await trio.testing.wait_all_tasks_blocked()
            assert not lock.try_share()
            nursery.start_soon(_use, lock, False, said, "read")
            await trio.testing.wait_all_tasks_blocked()
            assert said == []
            lock.unshare()
        return said

    assert trio.run(run) == ["change", "read"]


def test_tasks_that_give_up_leave_it_to_the_others() -> None:
    """Whatever is cancelled, before or after it was granted: sharers with sharers or one alone,
    and at the end it is free."""

    async def run(seed: int) -> None:
        rng = random.Random(seed)
        lock, alone, shared = SharedLock(), 0, 0

        async def user() -> None:
            nonlocal alone, shared
            for _ in range(30):
                with trio.move_on_after(rng.choice([0, 0.001, 1])):
                    if rng.random() < 0.5:
                        async with lock.alone():
                            alone += 1
                            assert (alone, shared) == (1, 0)
                            try:
                                await trio.sleep(rng.choice([0, 0.001]))
                            finally:
                                alone -= 1
                    else:
                        async with lock.shared():
                            shared += 1
                            assert alone == 0
                            try:
                                await trio.sleep(rng.choice([0, 0.001]))
                            finally:
                                shared -= 1

        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(user)
        assert lock.try_alone()

    for seed in range(5):
        trio.run(run, seed)
