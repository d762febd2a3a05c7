"""Operations of a mount that overtake one another, in the orders that decide."""

import os
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyfuse3
import pytest
import trio
import trio.testing

from dedupd_core.format.recipe import RecipeRef
from dedupd_core.format.stub import Flag
from dedupd_core.stub.transition import FileIdentity
from dedupd_core.volume.commit_requests import CommitRequest
from fuse_stub.mounted_volume import MountedVolume
from fuse_stub.operations import StubOperations
from tests.support.lab import Lab, new_lab, noise

pytestmark = pytest.mark.root

BLOCK = 4096
SIZE = 40 * BLOCK
CUT = 3 * BLOCK


@contextmanager
def served(lab: Lab) -> Iterator[MountedVolume]:
    """What a mount consists of, but for the kernel."""
    with lab.opened() as volume, volume.mount_lock() as transitions:
        one = MountedVolume(volume, transitions, "/nowhere", 1 << 20, 1)
        try:
            yield one
        finally:
            one.close()


def written_stub(lab: Lab) -> tuple[bytes, CommitRequest]:
    """A stub ``f`` that was written to, its content, and what a job has that optimizes it anew."""
    content = bytearray(noise(SIZE, 1))
    lab.put("f", bytes(content))
    content[20 * BLOCK : 21 * BLOCK] = noise(BLOCK, 2)
    lab.put("same", bytes(content))
    lab.optimize()
    with open(lab.let_write("f"), "r+b") as file:
        file.seek(20 * BLOCK)
        file.write(content[20 * BLOCK : 21 * BLOCK])
    stub = lab.stub("same")
    assert stub is not None
    ref = RecipeRef(stub.recipe, stub.digest, bool(stub.flags & Flag.DIRECT))
    identity = FileIdentity.of(os.stat(lab.data / "f"))
    previous = os.getxattr(lab.data / "f", "trusted.dedupd")
    return bytes(content), CommitRequest(b"f", identity, ref, previous)


def cut(operations: StubOperations, ino: int, ctx: object, size: int) -> Awaitable[object]:
    attributes = pyfuse3.EntryAttributes()
    attributes.st_size = size
    return operations.setattr(ino, attributes, Size, None, ctx)  # type: ignore[arg-type]


class Size:
    """Of a request to change attributes: the length alone."""

    update_size = True
    update_uid = update_gid = update_mode = update_atime = update_mtime = False


class Root:
    """Who asks."""

    uid = gid = pid = 0
    umask = 0


@pytest.mark.parametrize("left", [CUT, 0])
@pytest.mark.parametrize("order", range(8))
def test_a_cut_that_waits_while_a_commit_begins_is_a_cut(
    tmp_path: Path,
    left: int,
    order: int,
) -> None:
    """Both wait for a reader; trio wakes them in an order of its own."""
    lab = new_lab(tmp_path / "volume", "4k")
    content, request = written_stub(lab)

    async def run(one: MountedVolume) -> None:
        operations = StubOperations(one)
        ino = request.identity.inode
        operations._known(os.open(lab.data / "f", os.O_PATH))
        file = await one.files.acquire(ino, write=False)
        assert file.lock.try_share()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.commit_lane.begin, [request])
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(cut, operations, ino, Root, left)
            await trio.testing.wait_all_tasks_blocked()
            file.lock.unshare()
        await one.commit_lane.finish([ino])
        again = await one.files.acquire(ino, write=True)
        await one.commit_lane.truncate(again, SIZE, Root.uid, again.cut)

    with served(lab) as one:
        trio.run(run, one)
    assert lab.read("f") == content[:left].ljust(SIZE, b"\0")


def plain_file(lab: Lab) -> tuple[bytes, CommitRequest]:
    """A plain file ``p`` and what a job has that optimizes it."""
    content = noise(SIZE, 3)
    lab.put("same", content)
    lab.optimize()
    lab.put("p", content)
    stub = lab.stub("same")
    assert stub is not None
    ref = RecipeRef(stub.recipe, stub.digest, bool(stub.flags & Flag.DIRECT))
    return content, CommitRequest(b"p", FileIdentity.of(os.stat(lab.data / "p")), ref)


@pytest.mark.parametrize("writes_first", [False, True])
@pytest.mark.parametrize("order", range(8))
def test_a_write_that_waits_while_a_commit_begins_is_in_the_file(
    tmp_path: Path, writes_first: bool, order: int
) -> None:
    """No opening tells of writers: a commit that begins between a writer's look and its write would
    punch what was written. Both wait for a reader; trio wakes them in an order of its own."""
    lab = new_lab(tmp_path / "volume", "4k")
    content, request = plain_file(lab)
    new = noise(BLOCK, 4)

    async def run(one: MountedVolume) -> None:
        operations = StubOperations(one)
        ino = request.identity.inode
        operations._known(os.open(lab.data / "p", os.O_PATH))
        # As a writer: so that nobody opens the file again.
        file = await one.files.acquire(ino, write=True)
        assert file.lock.try_share()

        async def write() -> None:
            assert await operations.write_at(ino, Root, BLOCK, new, clears=False) == BLOCK

        async def begin() -> None:
            await one.commit_lane.begin([request])

        async with trio.open_nursery() as nursery:
            for task in (write, begin) if writes_first else (begin, write):
                nursery.start_soon(task)
                await trio.testing.wait_all_tasks_blocked()
            file.lock.unshare()
        await one.commit_lane.finish([ino])
        one.files.release(file)

    with served(lab) as one:
        trio.run(run, one)
    assert lab.read("p") == content[:BLOCK] + new + content[2 * BLOCK :]
