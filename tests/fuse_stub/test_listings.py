"""Listings of deletions take turns, and decode each log once."""

import errno
import itertools
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
import trio
import trio.testing

from dedupd_core import native
from dedupd_core.deleted import log_cache
from dedupd_core.deleted.log import DeletionLogs, name_of
from dedupd_core.deleted.writer import DeletionWriter
from dedupd_core.format.deletion import LOG_HEADER_BYTES, Deletion, LogHeader
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import opened
from dedupd_core.volume.volume import Volume
from fuse_stub.deleted import attributes
from fuse_stub.deleted.attributes import Listings
from fuse_stub.policy.turns import RequestPace, Turns
from tests.support.deletions import deletion_of, log_of
from tests.support.lab import new_lab

ALICE, BOB = 40001, 40002
T = TypeVar("T")


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Volume]:
    lab = new_lab(tmp_path / "volume")
    lab.set_policy('keep_deleted = "7d"')
    with Volume.open(str(lab.root)) as one:
        yield one


@pytest.fixture
def writer(volume: Volume) -> Iterator[DeletionWriter]:
    one = DeletionWriter(volume)
    yield one
    one.close()


async def in_thread(uid: int, function: Callable[..., T], *arguments: object) -> T:
    return await trio.to_thread.run_sync(function, *arguments)


def note(writer: DeletionWriter, uid: int, count: int) -> None:
    for at in range(count):
        writer.append(deletion_of(uid, b"%d/%d" % (uid, at)))


async def listed(listings: Listings, volume: Volume, uid: int, older: str = "") -> list[str]:
    """The paths of a listing."""
    name = b"user.dedupd.deleted" + (f".{older}".encode() if older else b"")
    with opened(os.dup(volume.data_fd)) as fd:
        value = await listings.value(fd, name, uid)
    return [json.loads(line)["path"] for line in value.splitlines()]


def test_many_listings_decode_each_log_once_and_run_one_at_a_time(
    volume: Volume, writer: DeletionWriter
) -> None:
    note(writer, ALICE, 100)
    note(writer, BOB, 3)
    listings = Listings(volume, in_thread)

    async def of_alice() -> None:
        assert await listed(listings, volume, ALICE) == [
            f"{ALICE}/{at}" for at in range(99, -1, -1)
        ]

    async def all_of_them() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(attributes.WAITING_MAX):
                nursery.start_soon(of_alice)
        assert await listed(listings, volume, BOB) == [f"{BOB}/{at}" for at in (2, 1, 0)]
        with pytest.raises(OSError, match=os.strerror(errno.ENODATA)):
            await listed(listings, volume, 7)

    trio.run(all_of_them)
    assert listings.cache.decoded == 2, "a log of each of the two, and none for the third"
    assert listings.turns.most_at_once == 1


def test_a_listing_of_another_user_comes_in_between(
    volume: Volume, writer: DeletionWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attributes, "TURN_S", 0.0)
    note(writer, ALICE, 200)
    note(writer, BOB, 1)
    listings, ended = Listings(volume, in_thread), list[int]()

    async def one(uid: int) -> None:
        await listed(listings, volume, uid)
        ended.append(uid)

    async def all_of_them() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(one, ALICE)
            await trio.sleep(0)
            nursery.start_soon(one, BOB)

    trio.run(all_of_them)
    assert ended == [BOB, ALICE, ALICE, ALICE]


def test_a_user_who_waits_with_too_many_is_refused_and_no_other(volume: Volume) -> None:
    release, refused = trio.Event(), list[int]()

    async def hold(uid: int, function: Callable[..., T], *arguments: object) -> T:
        await release.wait()
        return function(*arguments)

    async def one(listings: Listings, uid: int) -> None:
        try:
            await listed(listings, volume, uid)
        except OSError as error:
            if error.errno == errno.EAGAIN:
                refused.append(uid)

    async def all_of_them() -> None:
        listings = Listings(volume, hold)
        async with trio.open_nursery() as nursery:
            for _ in range(attributes.WAITING_MAX + 4):
                nursery.start_soon(one, listings, ALICE)
            nursery.start_soon(one, listings, BOB)
            await trio.testing.wait_all_tasks_blocked()
            release.set()

    trio.run(all_of_them)
    assert refused == [ALICE] * 4


def test_requests_run_as_many_at_once_as_there_are_turns() -> None:
    async def all_of_them() -> Turns:
        turns = Turns(in_thread, at_once=2, user_max=9)
        barrier = threading.Barrier(2)

        async def one(uid: int) -> None:
            async with turns.of(uid):
                await turns.run(uid, barrier.wait)

        async with trio.open_nursery() as nursery:
            for uid in range(6):
                nursery.start_soon(one, uid)
        return turns

    assert trio.run(all_of_them).most_at_once == 2


def test_a_loop_of_requests_is_slowed_down_and_hinders_no_other_user() -> None:
    async def here(uid: int, function: Callable[..., T], *arguments: object) -> T:
        return function(*arguments)

    async def elapsed_s(turns: Turns, uid: int, count: int) -> float:
        start_s = trio.current_time()
        for _ in range(count):
            async with turns.of(uid):
                await turns.run(uid, int)
        return trio.current_time() - start_s

    async def all_of_them() -> None:
        turns = Turns(here, at_once=1, user_max=9, pace=RequestPace(burst=5, interval_s=1.0))
        assert await elapsed_s(turns, ALICE, 6) == 0
        assert await elapsed_s(turns, ALICE, 4) == pytest.approx(4)
        assert await elapsed_s(turns, BOB, 6) == 0
        assert await elapsed_s(turns, 0, 50) == 0
        await trio.sleep(100)
        assert await elapsed_s(turns, ALICE, 6) == 0, "and no more for having waited longer"
        assert await elapsed_s(turns, ALICE, 1) == pytest.approx(1)
        await trio.sleep(100)
        start_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(elapsed_s, turns, ALICE, 1)
        # They count 4, 3, 2 and 1 times, and 5 may come in a row.
        assert trio.current_time() - start_s == pytest.approx(4)

    trio.run(all_of_them, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_long_listing_is_continued_where_it_ended(
    volume: Volume, writer: DeletionWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attributes, "ANSWER_BYTES_MAX", 2000)
    for keep_s in (3600, 7200):  # two logs
        for at in range(40):
            one = deletion_of(ALICE, b"%d-%d" % (keep_s, at))
            writer.append(one._replace(keep_s=keep_s))
    listings, found, last = Listings(volume, in_thread), list[str](), ""

    async def page() -> list[dict[str, str]]:
        name = b"user.dedupd.deleted" + (f".{last}".encode() if last else b"")
        with opened(os.dup(volume.data_fd)) as fd:
            value = await listings.value(fd, name, ALICE)
        return [json.loads(line) for line in value.splitlines()]

    async def pages() -> None:
        nonlocal last
        with pytest.raises(OSError, match=os.strerror(errno.ENODATA)):
            for _ in itertools.count():
                rows = await page()
                found.extend(row["path"] for row in rows)
                last = rows[-1]["id"]

    trio.run(pages)
    assert found == [f"{keep}-{at}" for keep in (7200, 3600) for at in range(39, -1, -1)]
    assert listings.cache.decoded == 2


def test_the_cache_sees_what_is_appended_dropped_and_removed(
    volume: Volume, writer: DeletionWriter
) -> None:
    logs = DeletionLogs(volume)
    cache = log_cache.LogCache(logs)
    assert cache.numbers(ALICE) == []
    note(writer, ALICE, 2)
    assert cache.numbers(ALICE) == cache.numbers(0) == [1]
    assert len(cache.listed(1)) == len(cache.listed(1)) == 2
    assert cache.decoded == 1
    note(writer, ALICE, 1)
    assert len(cache.listed(1)) == 3
    logs.drop_before(1, logs.read(1)[1][0].offset, Disk())
    assert len(cache.listed(1)) == 2
    note(writer, BOB, 1)
    assert (cache.numbers(ALICE), cache.numbers(BOB), cache.numbers(0)) == ([1], [2], [2, 1])
    logs.remove(1, Disk())
    assert (cache.numbers(ALICE), cache.numbers(0)) == ([], [2])
    assert cache.numbers(7) == []


def test_the_memory_of_the_cache_is_bounded(
    volume: Volume, writer: DeletionWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    for uid in range(1, 6):
        note(writer, uid, 30)
    cache = log_cache.LogCache(DeletionLogs(volume))
    size = cache.listed(1).memory_bytes
    monkeypatch.setattr(log_cache, "MEMORY_BYTES_MAX", 3 * size)
    for number in (1, 2, 3, 4, 5, 4, 5):
        cache.listed(number)
    assert cache.decoded == 5
    cache.listed(1)
    assert cache.decoded == 6, "it was let go of"


def test_attributes_of_users_take_no_memory(volume: Volume, writer: DeletionWriter) -> None:
    for at in range(30):
        writer.append(deletion_of(ALICE, b"%d" % at, bytes(60_000)))
    assert DeletionLogs(volume).listed(1).memory_bytes < 30 * 300
    assert (Path(volume.base) / "deleted" / os.fsdecode(name_of(1))).stat().st_size > 1_800_000


def test_other_threads_run_while_a_log_is_decoded() -> None:
    """With the interpreter's lock held none could: it is given to others on request only after the
    switch interval."""
    header = LogHeader(1, bytes(16), 0, 5)
    found: list[Deletion] = [deletion_of(7, b"%d" % at) for at in range(5000)]
    data = bytes(LOG_HEADER_BYTES) + b"".join(log_of(header, found))
    has_run, may_run = threading.Event(), threading.Lock()
    may_run.acquire()

    def wait_and_run() -> None:
        with may_run:
            has_run.set()

    thread = threading.Thread(target=wait_and_run)
    thread.start()
    before = sys.getswitchinterval()
    sys.setswitchinterval(600)
    try:
        may_run.release()
        for _ in range(20_000):
            native.deletions.DeletionLog(
                data, seed=5, is_proven=True, uid=7, first=LOG_HEADER_BYTES
            )
            if has_run.is_set():
                break
        else:
            pytest.fail("no other thread has run")
    finally:
        sys.setswitchinterval(before)
        thread.join()
