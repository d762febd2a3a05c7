"""Open files: one object for each inode that is open here.

The kernel does not tell when users open and close files. A file is opened for the first request
that needs it, and closed some time after the last one: soon where it is open for writing, since
jobs keep out of the way of such files.
"""

import errno
import logging
import os
import resource
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import trio

from dedupd_core.errors import DamagedStub
from dedupd_core.format.stub import StubAttribute
from dedupd_core.stub.content import Contents, StoreContent
from dedupd_core.stub.local_blocks import checked_stub
from dedupd_core.stub.stub_file import SparseStub
from dedupd_core.stub.transition import needs_settling, settle
from dedupd_core.system.files import opened
from dedupd_core.system.tree.tree_paths import name_in_tree, path_in_tree
from dedupd_core.volume.transition_log import Transitions
from dedupd_core.volume.volume import Volume
from fuse_stub.files.attributes import unseen_step
from fuse_stub.files.held_files import HeldFiles
from fuse_stub.files.inodes import Inodes, files_open_max
from fuse_stub.files.open_file import OpenFile
from fuse_stub.files.slow_closes import SlowCloses
from fuse_stub.files.unsealed_stubs import UnsealedStubs
from fuse_stub.mounts.tasks import failures

log = logging.getLogger("dedupd.mount")

IDLE_S = 5.0
"""A file stays open for so long after the last request: the next one finds its stub at hand."""

WRITABLE_IDLE_S = 0.5
"""One that is open for writing; jobs take it for one in use."""

SWEEP_S = 0.25


class OpenFiles:
    """All open files of a mount."""

    def __init__(
        self,
        volume: Volume,
        transitions: Transitions,
        inodes: Inodes,
        contents: Contents,
        closes: SlowCloses,
    ) -> None:
        self._volume = volume
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._idle_max = files_open_max(limit)
        self._idle: OrderedDict[int, OpenFile] = OrderedDict()  # no users; the longest idle first
        self._closes = closes
        self._transitions = transitions
        self._inodes = inodes
        self._contents = contents
        self._files: dict[int, OpenFile] = {}
        self.unsealed = UnsealedStubs()
        self.held = HeldFiles(inodes)

    def __len__(self) -> int:
        return len(self._files)

    def get(self, ino: int) -> OpenFile | None:
        return self._files.get(ino)

    def stubs(self) -> list[StubAttribute]:
        """The attributes of all open stubs."""
        return [file.stub.attribute for file in self._files.values() if file.stub is not None]

    async def acquire(self, ino: int, *, write: bool, trunc: bool = False) -> OpenFile:
        """The open file of an inode, with one user more. Raises OSError, Damaged.

        ``trunc``: the caller empties the file, so damage to the attribute does not matter.
        """
        return await self._acquire(ino, lambda: self._inodes.path(ino), write, trunc)

    async def acquire_by_fd(self, fd: int) -> OpenFile:
        """The open file that ``fd`` (open for reading and writing, taken over) is open on."""
        with opened(fd):
            ino = os.fstat(fd).st_ino
            return await self._acquire(ino, lambda: b"/proc/self/fd/%d" % fd, True, False)

    async def _acquire(
        self, ino: int, path: Callable[[], bytes], write: bool, trunc: bool
    ) -> OpenFile:
        while True:
            file = self._files.get(ino)
            if file is not None and file.is_lent:
                self._take_back(file)
            if file is None and ino in self.held:
                await self.held.take_over(ino)
                continue
            if file is None:
                file = self._open(ino, path(), write, trunc)
            if file.settled is None:
                break
            await self._wait_until_settled(file)
        if write and file.unsettled:
            # Also where the file system takes changes again: it is settled once it was closed.
            if file.users == 0:
                self._rest(file)
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        if write and file.protected:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        # Counted before the first await: another task must not close the file meanwhile.
        self._idle.pop(file.ino, None)
        file.users += 1
        try:
            if write and not file.writable:
                await self._upgrade(file)
        except BaseException:
            self.release(file)
            raise
        return file

    def adopt(self, ino: int, fd: int) -> OpenFile:
        """The open file of one that is open as ``fd`` (taken over), with one user."""
        is_privileged = bool(os.fstat(fd).st_mode & 0o6000)
        file = OpenFile(ino, self._volume.data_fd, fd, True, is_privileged)
        file.users = 1
        self._enter(file)
        return file

    def _enter(self, file: OpenFile) -> None:
        """Have native code leave the file alone as long as it is open here."""
        self._inodes.watch(file.ino)
        self._files[file.ino] = file

    def _leave(self, file: OpenFile) -> None:
        if file.is_lent:
            self._take_back(file)
        del self._files[file.ino]
        self._inodes.unwatch(file.ino)

    def _lend(self, file: OpenFile) -> None:
        """Have native code use a stub that has no users here, until one comes."""
        file.is_lent = True
        self._inodes.lend(file.ino)
        self._inodes.unwatch(file.ino)

    def _take_back(self, file: OpenFile) -> None:
        is_sound = self._inodes.take_back(file.ino)
        file.is_lent = False
        # Native code has answered for it meanwhile.
        file.privileged = bool(os.fstat(file.fd).st_mode & 0o6000)
        if file.stub is not None:
            file.stub.note_local()
            file.stub.has_unwritten |= not is_sound

    def release(self, file: OpenFile) -> None:
        """One user less. Without any the file is closed some time later."""
        file.users -= 1
        if file.users == 0:
            self._rest(file)

    def _rest(self, file: OpenFile) -> None:
        file.idle_since_s = time.monotonic()
        self._idle[file.ino] = file
        self._idle.move_to_end(file.ino)
        if file.unsettled or file.is_native:
            self._close(file)
            return
        stub = file.stub
        if file.losses == file.losses_told and stub is not None and stub.is_at_rest:
            self._lend(file)
        if len(self._idle) > self._idle_max:
            self._close(next(iter(self._idle.values())))

    async def sweep(self) -> None:
        """Close idle files as long as the mount lasts."""
        while True:
            await trio.sleep(SWEEP_S)
            self._inodes.close_idle()
            now_s = time.monotonic()
            for file in [*self._idle.values()]:
                with failures.noted("closing an idle file"):
                    self._close_if_idle(file, now_s)

    def _close_if_idle(self, file: OpenFile, now_s: float) -> None:
        if file.is_lent and self._is_used(file, now_s):
            return
        idle_s = now_s - file.idle_since_s
        if idle_s > (WRITABLE_IDLE_S if file.writable else IDLE_S):
            self._close(file)

    def _is_used(self, file: OpenFile, now_s: float) -> bool:
        """Whether native code uses a file that is lent: then it stays, open for reading at most."""
        if not self._inodes.was_used(file.ino):
            return False
        if not file.writable:
            file.idle_since_s = now_s
        elif now_s - file.idle_since_s > WRITABLE_IDLE_S:
            try:
                self._reopen(file, write=False)
            except OSError:
                return False  # no descriptor is left: it is closed
        return True

    def close_idle(self, ino: int) -> None:
        """Close a file unless it is in use."""
        file = self._idle.get(ino)
        if file is not None:
            self._close(file)

    def let_go(self) -> None:
        """Close what is open for writing and idle: for jobs, which leave such files alone."""
        self._inodes.let_go()
        for file in [*self._idle.values()]:
            if file.writable:
                self._close(file)

    def _close(self, file: OpenFile) -> None:
        """Close an idle file, unless its users are still to be told of lost writes."""
        if file.losses > file.losses_told:
            self._idle.move_to_end(file.ino)
            return
        self._leave(file)
        del self._idle[file.ino]
        with failures.noted("noting an unsealed stub"):
            self._note_unsealed(file)
        self._closes.close(file.fd)

    @contextmanager
    def using(self, file: OpenFile) -> Iterator[OpenFile]:
        """Release a file, which was acquired, at the end of the block."""
        try:
            yield file
        finally:
            self.release(file)

    def close(self) -> None:
        for file in [*self._files.values()]:
            with failures.noted("closing a file at the end"):
                self._note_unsealed(file)
                self._leave(file)
                os.close(file.fd)
        self._idle.clear()

    def _note_unsealed(self, file: OpenFile) -> None:
        is_unsealed = file.stub is not None and not file.stub.is_sealed
        if is_unsealed and os.fstat(file.fd).st_nlink:
            self.unsealed.note(file.ino, path_in_tree(self._volume.data_fd, file.fd))

    def _open(self, ino: int, path: bytes, write: bool, trunc: bool) -> OpenFile:
        fd = _open_for(path, write)
        try:
            status = os.fstat(fd)
            stub = self._read_attribute(fd, trunc)
            is_privileged = bool(status.st_mode & 0o6000)
            file = OpenFile(ino, self._volume.data_fd, fd, write, is_privileged)
            if stub is not None:
                file.stub = self.sparse(file, stub)
                if needs_settling(fd, stub):
                    file.settled = trio.Event()
        except BaseException:
            os.close(fd)
            raise
        self._enter(file)
        return file

    async def _wait_until_settled(self, file: OpenFile) -> None:
        """Settle a stub, or wait until another task has; the file has no users before that.

        On a file system that is read-only it stays as it is. Its bytes are right all the same:
        a block that was written is current, and any other is what the recipe says.
        """
        event = file.settled
        if event is None:
            return
        if file.users:
            await event.wait()
            return
        file.users = 1
        stub = file.stub
        assert stub is not None
        try:
            try:
                path = path_in_tree(self._volume.data_fd, file.fd)
                with self._transitions.under_way([path]), unseen_step([file.ino]):
                    settled = await trio.to_thread.run_sync(self._settle, file.fd, stub.attribute)
                file.stub = self.sparse(file, settled)
            except OSError as error:
                if error.errno != errno.EROFS:
                    raise
                stub.has_unwritten = file.unsettled = True
            file.settled = None
        finally:
            file.users = 0
            if file.settled is not None:
                self._leave(file)
                os.close(file.fd)
            event.set()

    def _read_attribute(self, fd: int, trunc: bool) -> StubAttribute | None:
        try:
            return checked_stub(fd, self._volume.stub_files, "")
        except DamagedStub as error:
            if trunc:
                self._volume.disk.truncate(fd, 0)
                self._volume.disk.remove_attribute(fd, self._volume.space.name)
                return None
            raise type(error)(f"{self._where(fd)}{error}") from error

    def _settle(self, fd: int, stub: StubAttribute) -> StubAttribute:
        """Settle a stub; ``fd`` may be open for reading only."""
        volume = self._volume
        load = partial(self._load, fd, stub)
        with opened(_open_for(b"/proc/self/fd/%d" % fd, True)) as own:
            return settle(own, stub, load, volume.stub_files)

    def sparse(self, file: OpenFile, stub: StubAttribute) -> SparseStub:
        """The reading and writing side of a settled stub."""
        volume = self._volume
        return SparseStub(
            file.fd,
            stub,
            volume.stub_files,
            lambda stub: self._load(file.fd, stub),
        )

    def _where(self, fd: int) -> str:
        return name_in_tree(self._volume.data_fd, fd)

    def _load(self, fd: int, stub: StubAttribute) -> StoreContent:
        return self._contents.of(stub, self._where(fd))

    async def _upgrade(self, file: OpenFile) -> None:
        """Open a file again, for writing too."""
        async with file.lock.alone():
            if not file.writable:
                self._reopen(file, write=True)

    def _reopen(self, file: OpenFile, *, write: bool) -> None:
        """Nothing else may use the file meanwhile."""
        fd = _open_for(b"/proc/self/fd/%d" % file.fd, write)
        os.close(file.fd)
        file.fd, file.writable = fd, write
        if file.stub is not None:
            file.stub.fd = fd

    async def wait_for_times(self, ino: int) -> None:
        """Until the file is neither settled nor filled up by a piece. Both put back times and
        capabilities at their end, also those that a change made meanwhile must have taken away."""
        await self.held.take_over(ino)
        while (file := self._files.get(ino)) is not None:
            if file.settled is not None:
                await file.settled.wait()
            elif file.keeps_times:
                async with file.lock.alone():
                    pass
            else:
                return


def _open_for(path: bytes, write: bool) -> int:
    """Open a regular file."""
    flags = os.O_CLOEXEC | os.O_NOCTTY
    if not write:
        return os.open(path, os.O_RDONLY | flags)
    try:
        return os.open(path, os.O_RDWR | flags)
    except PermissionError:
        # Without root: the owner may write the file and not read it.
        return os.open(path, os.O_WRONLY | flags)
