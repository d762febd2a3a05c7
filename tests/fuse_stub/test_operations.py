"""Operations of a mount without a kernel: what is hard to bring about through one."""

import errno
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pyfuse3
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from dedupd_core import native
from dedupd_core.errors import NoSpace
from dedupd_core.format.recipe import RecipeRef
from dedupd_core.format.stub import Flag
from dedupd_core.stub import commit_steps
from dedupd_core.stub.commit_steps import Outcome
from dedupd_core.stub.filling import StubFill
from dedupd_core.stub.transition import FileIdentity
from dedupd_core.system.disk import Disk
from dedupd_core.units import MIB
from dedupd_core.volume.commit_requests import CommitRequest
from dedupd_core.volume.transition_log import Transitions
from fuse_stub import commit_lane
from fuse_stub.files import open_files
from fuse_stub.files.content_attribute import CONTENT_ATTRIBUTE, content_of
from fuse_stub.mounted_volume import MountedVolume
from fuse_stub.operations import StubOperations
from tests.support.lab import Lab, lab_in, noise

ROOT = cast(pyfuse3.RequestContext, SimpleNamespace(uid=0, gid=0, pid=os.getpid(), umask=0o022))


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with lab_in(tmp_path) as lab:
        yield lab


class Operations(StubOperations):
    """Those of a volume that is served to nobody."""

    def __init__(self, lab: Lab, stack: ExitStack) -> None:
        volume = stack.enter_context(lab.opened())
        note = os.open(lab.root.parent / "note", os.O_RDWR | os.O_CREAT)
        stack.callback(os.close, note)
        self.own = MountedVolume(volume, Transitions(note), "nowhere", 64 * MIB, threads=2)
        stack.callback(self.own.close)
        super().__init__(self.own)

    async def known(self, name: bytes) -> int:
        found = await self.lookup(pyfuse3.ROOT_INODE, pyfuse3.FileNameT(name), ROOT)
        return int(found.st_ino)

    async def read(self, ino: int, start: int, length: int) -> bytes:
        return bytes(await self.read_at(ino, ROOT.uid, start, length, ()))

    async def write(self, ino: int, start: int, data: bytes) -> int:
        return await self.write_at(ino, ROOT, start, data, clears=False)

    async def sync(self, ino: int) -> None:
        await self.sync_file(ino, ROOT.uid, False)


@pytest.fixture
def operations(lab: Lab) -> Iterator[Operations]:
    with ExitStack() as stack:
        yield Operations(lab, stack)


async def code(coroutine: "object") -> int:
    """The error number that an operation fails with."""
    with pytest.raises(pyfuse3.FUSEError) as caught:
        await coroutine  # type: ignore[misc]
    return int(caught.value.errno)


def test_a_read_of_any_length_is_answered_in_full(lab: Lab, operations: Operations) -> None:
    """With pages of 64 KiB, or a larger limit, the kernel asks for more than 256 small pages; what
    it does not get it takes for the end of the file."""
    content = noise(3 * MIB + 5)
    lab.put("f", content)

    async def scenario() -> None:
        ino = await operations.known(b"f")
        for size in (1 * MIB, 1 * MIB + 1, 2 * MIB, 8 * MIB):
            assert await operations.read(ino, 5, size) == content[5 : 5 + size]

    trio.run(scenario)


def test_a_sync_tells_of_lost_writes_once(
    lab: Lab, operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.put("f", b"content")
    results = [errno.EIO, 0]

    def sync(_fd: int) -> None:
        if result := results.pop(0):
            raise OSError(result, os.strerror(result))

    async def scenario() -> None:
        ino = await operations.known(b"f")
        monkeypatch.setattr(os, "fsync", sync)
        assert await code(operations.sync(ino)) == errno.EIO
        await operations.sync(ino)
        assert results == []

    trio.run(scenario)


def test_a_file_whose_lost_writes_nobody_was_told_of_stays_open(
    lab: Lab, operations: Operations
) -> None:
    """The file system below has told a job, and tells no other descriptor."""
    lab.put("f", b"content")

    async def scenario() -> None:
        ino = await operations.known(b"f")
        file = await operations.own.files.acquire(ino, write=True)
        with (
            operations.own.files.using(file),
            pytest.raises(OSError, match="lost"),
            file.noting_losses(),
        ):
            raise OSError(errno.EIO, "lost")
        operations.own.files.let_go()
        assert operations.own.files.get(ino) is file
        assert await code(operations.sync(ino)) == errno.EIO
        operations.own.files.let_go()
        assert len(operations.own.files) == 0
        await operations.sync(ino)

    trio.run(scenario)


def test_a_plain_file_is_closed_at_once_for_native_code_to_go_on_with_it(
    lab: Lab, operations: Operations
) -> None:
    lab.put("f", b"content")

    async def scenario() -> None:
        ino = await operations.known(b"f")
        assert await operations.read(ino, 0, 10) == b"content"
        assert await operations.write(ino, 0, b"CON") == 3
        assert len(operations.own.files) == 0

    trio.run(scenario)


def test_an_idle_stub_is_closed_and_soon_if_it_is_open_for_writing(
    lab: Lab, operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = noise(300_000)
    lab.put("read", content)
    lab.put("written", content)
    lab.optimize()
    files = operations.own.files

    async def scenario() -> None:
        read, written = await operations.known(b"read"), await operations.known(b"written")
        await operations.read(read, 0, 10)
        await operations.write(written, 0, b"CON")
        assert len(files) == 2
        async with trio.open_nursery() as nursery:
            nursery.start_soon(files.sweep)
            await trio.sleep(open_files.WRITABLE_IDLE_S + 2 * open_files.SWEEP_S)
            assert files.get(written) is None
            assert files.get(read) is not None
            await trio.sleep(open_files.IDLE_S)
            assert len(files) == 0
            nursery.cancel_scope.cancel()
        assert await operations.read(written, 0, MIB) == b"CON" + content[3:]

    monkeypatch.setattr(open_files, "IDLE_S", 2.0)
    trio.run(scenario)
    assert lab.stub("read") is not None and lab.stub("written") is not None


def test_only_names_that_went_leave_a_descriptor(lab: Lab, operations: Operations) -> None:
    """It lives until the kernel forgets the inode, which can be never."""
    (lab.data / "full" / "below").mkdir(parents=True)
    (lab.data / "empty").mkdir()
    lab.put("f", b"content")

    async def scenario() -> None:
        inodes = {}
        for name in (b"full", b"empty", b"f"):
            found = await operations.lookup(pyfuse3.ROOT_INODE, pyfuse3.FileNameT(name), ROOT)
            inodes[name] = found.st_ino
        here = pyfuse3.ROOT_INODE
        full, empty, file = (pyfuse3.FileNameT(name) for name in inodes)
        flags = pyfuse3.FlagT(0)
        assert (
            await code(operations.rename(here, empty, here, full, flags, ROOT)) == errno.ENOTEMPTY
        )
        assert await code(operations.rename(here, file, here, full, flags, ROOT)) == errno.EISDIR
        assert await code(operations.unlink(here, empty, ROOT)) == errno.EISDIR
        assert operations.own.inodes.pinned() == []
        await operations.rename(here, full, here, empty, flags, ROOT)
        await operations.unlink(here, file, ROOT)
        assert sorted(operations.own.inodes.pinned()) == sorted([inodes[b"empty"], inodes[b"f"]])

    trio.run(scenario)


def test_a_collection_takes_no_inode_for_damaged_that_is_forgotten(
    lab: Lab, operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [pyfuse3.FileNameT(str(n).encode()) for n in range(3)]
    for name in names:
        lab.put(name, b"x")

    async def scenario() -> None:
        here = pyfuse3.ROOT_INODE
        inodes = [(await operations.lookup(here, name, ROOT)).st_ino for name in names]
        for name in names:
            await operations.unlink(here, name, ROOT)

        async def forget_all() -> None:
            for inode in inodes:
                operations.own.inodes.forget(inode, 1)

        monkeypatch.setattr(trio.lowlevel, "checkpoint", forget_all)
        assert (await operations.own.marking_sessions.begin()).take().damaged == []
        assert operations.own.inodes.pinned() == []

    trio.run(scenario)


def test_few_descriptors_are_kept_where_few_are_allowed(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _what: (64, 64))
    for n in range(60):
        lab.put(str(n), b"x")

    async def scenario(operations: Operations) -> None:
        for n in range(60):
            name = pyfuse3.FileNameT(str(n).encode())
            found = await operations.lookup(pyfuse3.ROOT_INODE, name, ROOT)
            assert os.fstat(operations.own.inodes.fd(found.st_ino)).st_ino == found.st_ino
        assert len(operations.own.inodes) == 60
        if operations.own.inodes.by_handle:
            assert operations.own.inodes.descriptors == 24

    with ExitStack() as stack:
        trio.run(scenario, Operations(lab, stack))


def test_a_mount_that_has_ended_has_nothing_open_below(lab: Lab) -> None:
    """So that the file system below can be unmounted at once."""
    lab.put("gone", b"x")

    def opened_below() -> int:
        links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
        return sum(os.path.realpath(link).startswith(str(lab.root)) for link in links)

    async def scenario(operations: Operations) -> None:
        name = pyfuse3.FileNameT(b"gone")
        await operations.lookup(pyfuse3.ROOT_INODE, name, ROOT)
        await operations.unlink(pyfuse3.ROOT_INODE, name, ROOT)
        assert len(operations.own.inodes.pinned()) == 1

    with ExitStack() as stack:
        operations = Operations(lab, stack)
        before = opened_below()
        trio.run(scenario, operations)
        assert opened_below() > before
        operations.own.close()
        assert opened_below() < before  # the root is closed, too


def test_the_digest_is_that_of_the_file_whatever_is_looked_up_meanwhile(
    lab: Lab, operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.put("f", noise(300_000))
    lab.optimize()
    stub = lab.stub("f")
    assert stub is not None

    async def scenario() -> None:
        name = pyfuse3.FileNameT(b"f")
        inode = (await operations.lookup(pyfuse3.ROOT_INODE, name, ROOT)).st_ino
        in_thread = operations.own.in_thread

        async def after_others(*arguments: object) -> object:
            fd = operations.own.inodes.fd(inode)
            os.dup2(operations.own.inodes.root_fd, fd)  # its place is another inode's by now
            return await in_thread(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(operations.own, "in_thread", after_others)
        found = await operations.getxattr(inode, CONTENT_ATTRIBUTE, ROOT)
        assert found == content_of(operations.own.volume, os.fsencode(lab.data / "f"))
        assert found is not None

    trio.run(scenario)


# --- commits ----------------------------------------------------------------------------------

CONTENT = noise(300_000)


@pytest.fixture
def request_of_f(lab: Lab) -> CommitRequest:
    """To commit the plain file ``f``."""
    lab.put("stub", CONTENT)
    lab.optimize()
    stub = lab.stub("stub")
    assert stub is not None
    identity = FileIdentity.of(os.stat(lab.put("f", CONTENT)))
    return CommitRequest(b"f", identity, RecipeRef(stub.recipe, stub.digest, False))


def refuse_to_revert(*_arguments: object) -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def test_a_mount_may_end_while_a_commit_is_being_finished(
    lab: Lab, operations: Operations, request_of_f: CommitRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish, go_on = commit_steps.finish_commit, threading.Event()

    def wait_and_finish(*arguments: object) -> None:
        go_on.wait(timeout=60)
        finish(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(commit_lane, "finish_commit", wait_and_finish)

    async def scenario() -> None:
        own = operations.own.commit_lane
        (begun,) = await own.begin([request_of_f])
        assert begun.outcome is Outcome.DONE

        async def finish_it() -> None:
            (finished,) = await own.finish([request_of_f.identity.inode])
            assert finished.outcome is Outcome.DONE

        async with trio.open_nursery() as nursery:
            nursery.start_soon(finish_it)
            await wait_all_tasks_blocked()
            nursery.start_soon(own.abandon_all)
            await wait_all_tasks_blocked()
            go_on.set()
        operations.own.files.let_go()
        assert len(operations.own.files) == 0

    trio.run(scenario)
    assert lab.read("f") == CONTENT
    assert os.stat(lab.data / "f").st_blocks == 0


def test_a_mount_goes_on_where_a_commit_can_not_be_taken_back(
    lab: Lab, operations: Operations, request_of_f: CommitRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_lane, "revert_commit", refuse_to_revert)

    async def scenario() -> None:
        await operations.own.commit_lane.begin([request_of_f])
        await operations.own.commit_lane.abandon([request_of_f.identity.inode])
        operations.own.files.let_go()
        assert len(operations.own.files) == 0
        ino = await operations.known(b"f")
        assert await operations.read(ino, 0, MIB) == CONTENT

    trio.run(scenario)


@pytest.mark.parametrize("by_finish", [False, True])
def test_a_file_with_a_stuck_commit_is_cut_and_grows_with_zeros(
    lab: Lab,
    operations: Operations,
    request_of_f: CommitRequest,
    monkeypatch: pytest.MonkeyPatch,
    by_finish: bool,
) -> None:
    async def cut(size: int) -> None:
        attributes = pyfuse3.EntryAttributes()
        attributes.st_size = size
        fields = dict.fromkeys(("uid", "gid", "mode", "atime", "mtime"), False) | {"size": True}
        named = SimpleNamespace(**{f"update_{name}": value for name, value in fields.items()})
        inode = pyfuse3.InodeT(request_of_f.identity.inode)
        await operations.setattr(inode, attributes, cast(pyfuse3.SetattrFields, named), None, ROOT)

    async def scenario() -> None:
        own = operations.own.commit_lane
        await operations.known(b"f")
        await own.begin([request_of_f])
        with monkeypatch.context() as patch:
            patch.setattr(commit_lane, "revert_commit", refuse_to_revert)
            if by_finish:
                own._pending[request_of_f.identity.inode].changes -= 1  # somebody has written
                await own.finish([request_of_f.identity.inode])
            else:
                assert await code(cut(1000)) == errno.EROFS
        await cut(1000)
        await cut(200_000)
        await own.finish([request_of_f.identity.inode])
        operations.own.files.let_go()
        assert len(operations.own.files) == 0
        ino = await operations.known(b"f")
        assert await operations.read(ino, 0, MIB) == CONTENT[:1000].ljust(200_000, b"\0")

    trio.run(scenario)


@pytest.mark.parametrize("by_restore", [False, True])
def test_a_sync_reports_writes_that_were_lost_at_another_sync(
    operations: Operations,
    request_of_f: CommitRequest,
    monkeypatch: pytest.MonkeyPatch,
    by_restore: bool,
) -> None:
    """The file system below told a commit that was taken back, or a restore, which sync the
    descriptor that all handles share."""

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    async def fill() -> None:
        await make_plain(operations, b"stub")

    async def scenario() -> None:
        own = operations.own.commit_lane
        name = b"stub" if by_restore else b"f"
        ino = await operations.known(name)
        await own.begin([request_of_f])
        with monkeypatch.context() as patch:
            patch.setattr(operations.own.volume.disk, "sync_file", fail)
            with pytest.raises(OSError):
                await (fill() if by_restore else own.touch(request_of_f.identity.inode))
        assert await code(operations.sync(ino)) == errno.EIO
        await operations.sync(ino)
        await own.abandon_all()

    trio.run(scenario)


async def make_plain(operations: Operations, name: bytes) -> None:
    """As a job has it done, by the control socket."""
    fill = await operations.own.fill_lane.begin(name)
    assert fill is not None
    try:
        while not await fill.go_on():
            pass
    finally:
        await fill.take_back()


def test_times_that_are_set_while_a_file_is_made_plain_stay(
    lab: Lab, operations: Operations, request_of_f: CommitRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_there, go_on = threading.Event(), threading.Event()

    class SlowDisk(Disk):
        def set_times(self, fd: int, atime_ns: int, mtime_ns: int) -> None:
            is_there.set()
            go_on.wait(timeout=60)
            super().set_times(fd, atime_ns, mtime_ns)

    monkeypatch.setattr(operations.own.volume, "disk", SlowDisk())

    async def set_times() -> None:
        inode = pyfuse3.InodeT(os.stat(lab.data / "stub").st_ino)
        attributes = pyfuse3.EntryAttributes()
        attributes.st_mtime_ns = 5
        fields = dict.fromkeys(("uid", "gid", "mode", "atime", "size"), False) | {"mtime": True}
        named = SimpleNamespace(**{f"update_{name}": value for name, value in fields.items()})
        await operations.setattr(inode, attributes, cast(pyfuse3.SetattrFields, named), None, ROOT)

    async def scenario() -> None:
        await operations.lookup(pyfuse3.ROOT_INODE, pyfuse3.FileNameT(b"stub"), ROOT)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(make_plain, operations, b"stub")
            await trio.to_thread.run_sync(is_there.wait)
            nursery.start_soon(set_times)
            await wait_all_tasks_blocked()
            go_on.set()

    trio.run(scenario)
    assert os.stat(lab.data / "stub").st_mtime_ns == 5
    assert lab.read("stub") == CONTENT and lab.stub("stub") is None


def test_a_restore_that_is_not_undone_leaves_readers_no_zeros(
    lab: Lab, operations: Operations, request_of_f: CommitRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk may keep blocks that were allocated and not yet written."""

    def allocate_and_fail(filling: StubFill) -> None:
        stub = filling._stub
        native.system.fallocate_keep_size(stub.fd, 0, len(CONTENT))
        stub.has_unwritten = True
        raise NoSpace("full")

    monkeypatch.setattr(StubFill, "fill", allocate_and_fail)

    async def scenario() -> None:
        ino = await operations.known(b"stub")
        await operations.write(ino, 0, b"new")
        with pytest.raises(NoSpace):
            await make_plain(operations, b"stub")
        (lab.data / "stub").read_bytes()  # as the kernel reads ahead
        assert await operations.read(ino, 0, MIB) == b"new" + CONTENT[3:]

    trio.run(scenario)


def test_a_commit_that_stops_half_way_knows_of_unwritten_blocks(
    lab: Lab, operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were left by a restore, on a disk that is too full to take them back now either."""
    changed = b"new" + CONTENT[3:]
    lab.put("stub", CONTENT)
    lab.put("changed", changed)
    lab.optimize()
    target = lab.stub("changed")
    assert target is not None

    def allocate_and_fail(filling: StubFill) -> None:
        stub = filling._stub
        native.system.fallocate_keep_size(stub.fd, 0, len(CONTENT))
        stub.has_unwritten = True
        raise NoSpace("full")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(StubFill, "fill", allocate_and_fail)
    monkeypatch.setattr(commit_lane, "finish_commit", fail)

    async def scenario() -> None:
        own = operations.own.commit_lane
        ino = await operations.known(b"stub")
        await operations.write(ino, 0, b"new")
        with pytest.raises(NoSpace):
            await make_plain(operations, b"stub")
        with lab.opened() as volume, open(lab.data / "stub", "rb") as file:
            identity = FileIdentity.of(os.fstat(file.fileno()))
            previous = native.system.fgetxattr(file.fileno(), volume.space.name)
            file.read()  # as the kernel reads ahead
        recipe = RecipeRef(target.recipe, target.digest, bool(target.flags & Flag.DIRECT))
        (begun,) = await own.begin([CommitRequest(b"stub", identity, recipe, previous)])
        assert begun.outcome is Outcome.DONE
        (finished,) = await own.finish([identity.inode])
        assert finished.outcome is Outcome.FAILED
        assert await operations.read(ino, 0, MIB) == changed

    trio.run(scenario)
