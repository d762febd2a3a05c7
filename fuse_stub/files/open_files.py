"""Open files: one object for each inode that is open, whatever the number of handles."""

import errno
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

import trio

from dedupd.errors import DamagedStub
from dedupd.format.stub import StubAttribute
from dedupd.stub.content import StoreContent, open_content
from dedupd.stub.local_blocks import checked_stub
from dedupd.stub.stub_file import SparseStub
from dedupd.stub.transition import needs_settling, settle
from dedupd.system.files import opened
from dedupd.system.paths import path_in_tree, show_path
from dedupd.volume.transition_log import Transitions
from dedupd.volume.volume import Volume
from fuse_stub.files.chunk_cache import ChunkCache
from fuse_stub.files.held_files import HeldFiles
from fuse_stub.files.inodes import Inodes
from fuse_stub.files.shared_lock import SharedLock
from fuse_stub.files.slow_closes import SlowCloses, is_slow_to_free
from fuse_stub.files.unsealed_stubs import UnsealedStubs

log = logging.getLogger("dedupd.mount")


class OpenFile:
    """A regular file that is open, by one handle or more, or by a commit.

    Used by the thread of the event loop. A field marked "lock" changes only while a task has
    ``lock`` alone; the others change between two awaits (docs/mount-locks.md).
    """

    __slots__ = (
        "changes",
        "fd",
        "ino",
        "is_filled",
        "keeps_times",
        "lock",
        "losses",
        "privileged",
        "protected",
        "settled",
        "stub",
        "unsettled",
        "users",
        "writable",
        "write_users",
        "writers",
    )

    def __init__(self, ino: int, fd: int, writable: bool, privileged: bool) -> None:
        self.ino = ino
        self.fd = fd  # lock
        self.writable = writable  # lock: whether ``fd`` is open for writing too
        self.stub: SparseStub | None = None  # lock: None of a plain file
        self.settled: trio.Event | None = None  # while the file is settled, before its first use
        self.unsettled = False  # read as a crash left it, since nothing can be changed
        self.lock = SharedLock()  # shared: use of ``fd``; alone: what the bytes lie in changes
        self.users = 0  # handles and commits that keep the file open
        self.write_users = 0  # those that keep it open for writing
        self.writers = 0  # handles of users among these: a commit keeps out of their way
        self.changes = 0  # counts attempts to change the file: a commit compares it
        self.losses = 0  # counts syncs that failed
        self.is_filled = False  # whether it is being made plain: a commit keeps out of its way
        self.keeps_times = False  # lock: whether its times are put back when the lock is given back
        self.protected = False  # whether it became immutable, or append-only, while it was open
        self.privileged = privileged  # whether a write has set-user-id or set-group-id to clear

    @contextmanager
    def noting_losses(self) -> Iterator[None]:
        """For a block that syncs ``fd``: the file system below reports lost writes once, and the
        report concerns all handles."""
        try:
            yield
        except OSError:
            self.losses += 1
            raise

    @property
    def where(self) -> str:
        """The file's name as it is now, for messages."""
        return where(self.fd)


class Handle:
    """One opening of a file by a user. Used by the thread of the event loop, between awaits."""

    __slots__ = (
        "ahead",
        "file",
        "keeps_privileges",
        "losses",
        "next",
        "run",
        "touched",
        "uid",
        "waits",
        "writes",
    )

    def __init__(self, file: OpenFile, writes: bool, keeps_privileges: bool, uid: int) -> None:
        self.file = file
        self.uid = uid  # of the user who opened it, whose share of threads its calls take
        self.writes = writes
        self.keeps_privileges = keeps_privileges
        self.losses = file.losses  # of the file, those that were reported to this user
        self.next = 0  # where a sequential reader goes on
        self.run = 0  # bytes that were read in sequence
        self.ahead = 0  # how far chunks were loaded ahead
        self.waits = 0  # reads in sequence that had to wait for the disk
        self.touched = False  # whether the access time was moved

    def follow(self, start: int, length: int) -> None:
        """Note a read of [start, start + length)."""
        end = start + length
        if self.next - length <= start <= self.next + length:
            self.run += length
            self.next = max(end, self.next)
        else:
            self.run = 0
            self.next = self.ahead = end


def path_of(fd: int) -> bytes:
    """The path that a descriptor has now, within the volume's tree."""
    return path_in_tree(fd)


def where(fd: int) -> str:
    """The path that a descriptor has now, for messages."""
    return show_path(path_of(fd))


class OpenFiles:
    """All open files of a mount."""

    def __init__(
        self,
        volume: Volume,
        transitions: Transitions,
        inodes: Inodes,
        cache: ChunkCache,
        closes: SlowCloses,
    ) -> None:
        self._volume = volume
        self._closes = closes
        self._transitions = transitions
        self._inodes = inodes
        self._cache = cache
        self._files: dict[int, OpenFile] = {}
        self.unsealed = UnsealedStubs()
        self.held = HeldFiles()

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
        try:
            ino = os.fstat(fd).st_ino
            return await self._acquire(ino, lambda: b"/proc/self/fd/%d" % fd, True, False)
        finally:
            os.close(fd)

    async def _acquire(
        self, ino: int, path: Callable[[], bytes], write: bool, trunc: bool
    ) -> OpenFile:
        while True:
            file = self._files.get(ino)
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
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        if write and file.protected:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        # Counted before the first await: another task must not close the file meanwhile.
        file.users += 1
        file.write_users += write
        try:
            if write and not file.writable:
                await self._upgrade(file)
        except BaseException:
            self.release(file, write=write)
            raise
        return file

    def adopt(self, ino: int, fd: int, *, write: bool) -> OpenFile:
        """The open file of a new file, open as ``fd`` (taken over), with one user."""
        file = OpenFile(ino, fd, True, bool(os.fstat(fd).st_mode & 0o6000))
        file.users, file.write_users = 1, int(write)
        self._files[ino] = file
        return file

    def release(self, file: OpenFile, *, write: bool) -> None:
        """One user less; ``write`` as in :meth:`acquire`. The last one closes the file."""
        file.users -= 1
        file.write_users -= write
        if file.users == 0:
            del self._files[file.ino]
            self._note_unsealed(file)
            self._closes.close(file.fd)
        elif file.writable and not file.write_users and file.lock.try_alone():
            # Jobs leave files alone that any process, this one too, has open for writing. Where
            # the file cannot be opened again (no descriptors), it stays so until it is closed.
            try:
                with suppress(OSError):
                    self._reopen(file, False)
            finally:
                file.lock.leave_alone()

    @contextmanager
    def using(self, file: OpenFile) -> Iterator[OpenFile]:
        """Release a file, which was acquired for writing, at the end of the block."""
        try:
            yield file
        finally:
            self.release(file, write=True)

    def close(self) -> None:
        for file in self._files.values():
            self._note_unsealed(file)
            os.close(file.fd)
        self._files.clear()

    def _note_unsealed(self, file: OpenFile) -> None:
        if file.stub is not None and not file.stub.is_sealed:
            self.unsealed.note(file.ino, path_of(file.fd))

    def _open(self, ino: int, path: bytes, write: bool, trunc: bool) -> OpenFile:
        fd = _open_for(path, write)
        try:
            status = os.fstat(fd)
            stub = self._read_attribute(fd, trunc)
            file = OpenFile(ino, fd, write, bool(status.st_mode & 0o6000))
            if stub is not None:
                file.stub = self.sparse(file, stub)
                if needs_settling(fd, stub):
                    file.settled = trio.Event()
        except BaseException:
            os.close(fd)
            raise
        self._files[ino] = file
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
                with self._transitions.under_way([path_of(file.fd)]):
                    settled = await trio.to_thread.run_sync(self._settle, file.fd, stub.attribute)
                file.stub = self.sparse(file, settled)
            except OSError as error:
                if error.errno != errno.EROFS:
                    raise
                stub.has_unwritten = file.unsettled = True
            file.settled = None
        finally:
            file.users = 0
            del self._files[file.ino]
            if file.settled is not None:
                os.close(file.fd)
            else:
                self._files[file.ino] = file
            event.set()

    def _read_attribute(self, fd: int, trunc: bool) -> StubAttribute | None:
        try:
            return checked_stub(fd, self._volume.stub_files, "")
        except DamagedStub as error:
            if trunc:
                self._volume.disk.truncate(fd, 0)
                self._volume.disk.remove_attribute(fd, self._volume.space.name)
                return None
            raise type(error)(f"{where(fd)}{error}") from error

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

    def _load(self, fd: int, stub: StubAttribute) -> StoreContent:
        return open_content(stub, self._volume.recipes, self._cache.read, where(fd))

    async def _upgrade(self, file: OpenFile) -> None:
        """Open a file again, for writing too."""
        async with file.lock.alone():
            if not file.writable:
                self._reopen(file, True)

    def _reopen(self, file: OpenFile, write: bool) -> None:
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

    def truncation(self, file: OpenFile, size: int) -> "Truncation":
        """What sets the length of a file that is open for writing, and whose lock the caller has
        alone; no commit of it may be under way.

        See :meth:`fuse_stub.commit_lane.CommitLane.truncate`.
        """
        status = os.fstat(file.fd)
        freed_bytes = min(status.st_size - size, status.st_blocks * 512)
        # A stub that grows may need a chunk, from the disk.
        is_slow = is_slow_to_free(freed_bytes) or (file.stub is not None and size > status.st_size)
        return Truncation(file, size, is_slow)


class Truncation:
    """A change of a file's length. ``is_slow``: it may keep the calling thread waiting."""

    def __init__(self, file: OpenFile, size: int, is_slow: bool) -> None:
        self._file = file
        self._size = size
        self.is_slow = is_slow

    def make(self) -> bool:
        """Make it, in whatever thread; whether the file is plain from now on. Raises OSError."""
        if self._file.stub is None:
            os.ftruncate(self._file.fd, self._size)
            return True
        return self._file.stub.truncate(self._size)

    def note(self, is_plain: bool) -> None:
        """In the thread of the event loop: keep what :meth:`make` has answered."""
        if is_plain:
            self._file.stub = None


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
