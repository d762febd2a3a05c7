"""Open files: one object for each inode that is open, whatever the number of handles."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

import trio

from dedupd.errors import DamagedStub
from dedupd.format.stub import StubAttribute
from dedupd.stub.content import StoreContent, open_content
from dedupd.stub.stub_file import SparseStub
from dedupd.stub.transition import needs_settling, settle
from dedupd.system.files import opened
from dedupd.system.paths import show_path
from dedupd.units import MIB
from dedupd.volume.transition_log import Transitions
from dedupd.volume.volume import Volume
from fuse_stub.files.chunk_cache import ChunkCache
from fuse_stub.files.inodes import Inodes
from fuse_stub.files.shared_lock import SharedLock

log = logging.getLogger("dedupd.mount")

READ_AHEAD_BYTES = 2 * MIB
"""Read ahead of a sequential reader whom the disk keeps waiting: some 25 chunks."""


class OpenFile:
    """A regular file that is open, by one handle or more, or by a commit.

    ``lock`` is shared by whoever reads or writes the descriptor, and held alone by whoever moves
    the boundary between the file's own blocks and the store. ``users`` keep it open,
    ``write_users`` keep it open for writing too; ``writers`` are those who are handles of users.
    ``losses`` counts how often a sync has failed.
    """

    __slots__ = (
        "changes",
        "fd",
        "ino",
        "lock",
        "losses",
        "privileged",
        "settled",
        "stub",
        "users",
        "writable",
        "write_users",
        "writers",
    )

    def __init__(self, ino: int, fd: int, writable: bool, privileged: bool) -> None:
        self.ino = ino
        self.fd = fd
        self.writable = writable
        self.stub: SparseStub | None = None
        self.settled: trio.Event | None = None
        self.lock = SharedLock()
        self.users = 0
        self.write_users = 0
        self.writers = 0
        self.changes = 0
        self.losses = 0
        self.privileged = privileged

    @contextmanager
    def noting_losses(self) -> Iterator[None]:
        """Around what syncs ``fd``: the file system below tells once that writes were lost, and
        means all who have the file open."""
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
    """What an ``open`` of a user got: the file, how far it was read in sequence, and of which of
    the file's losses its user was told."""

    __slots__ = (
        "ahead",
        "file",
        "keeps_privileges",
        "losses",
        "next",
        "run",
        "touched",
        "waits",
        "writes",
    )

    def __init__(self, file: OpenFile, writes: bool, keeps_privileges: bool) -> None:
        self.file = file
        self.writes = writes
        self.keeps_privileges = keeps_privileges
        self.losses = file.losses
        self.next = 0
        self.run = 0
        self.ahead = 0
        self.waits = 0
        self.touched = False

    def follow(self, start: int, length: int) -> None:
        """Note that [start, start + length) is read: ``run`` bytes have been in sequence then."""
        end = start + length
        if self.next - length <= start <= self.next + length:
            self.run += length
            self.next = max(end, self.next)
        else:
            self.run = 0
            self.next = self.ahead = end


def path_of(fd: int) -> bytes:
    """The path that a descriptor has now, within the volume's tree."""
    return os.readlink(b"/proc/self/fd/%d" % fd).rpartition(b"/.dedupd/data/")[2]


def where(fd: int) -> str:
    """The same for messages."""
    return show_path(path_of(fd))


class OpenFiles:
    """All open files of a mount."""

    def __init__(
        self, volume: Volume, transitions: Transitions, inodes: Inodes, cache: ChunkCache
    ) -> None:
        self._volume = volume
        self._transitions = transitions
        self._inodes = inodes
        self._cache = cache
        self._files: dict[int, OpenFile] = {}

    def __len__(self) -> int:
        return len(self._files)

    def get(self, ino: int) -> OpenFile | None:
        return self._files.get(ino)

    def stubs(self) -> list[StubAttribute]:
        """What the open stubs name."""
        return [file.stub.attribute for file in self._files.values() if file.stub is not None]

    async def acquire(self, ino: int, *, write: bool, trunc: bool = False) -> OpenFile:
        """The open file of an inode, with one user more. Raises OSError, Damaged.

        ``trunc``: the content is about to go, so damage to the attribute does not matter.
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
            if file is None:
                file = self._open(ino, path(), write, trunc)
            if file.settled is None:
                break
            await self._wait_until_settled(file)
        # Counted before anything is waited for: the file must not be closed meanwhile.
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
        """The open file of a file that was just made as ``fd`` (taken over), with one user."""
        file = OpenFile(ino, fd, True, bool(os.fstat(fd).st_mode & 0o6000))
        file.users, file.write_users = 1, int(write)
        self._files[ino] = file
        return file

    def release(self, file: OpenFile, *, write: bool) -> None:
        """One user less, who had it for writing too or not; the last one closes it."""
        file.users -= 1
        file.write_users -= write
        if file.users == 0:
            del self._files[file.ino]
            os.close(file.fd)
        elif file.writable and not file.write_users and file.lock.try_alone():
            # Jobs leave alone what anybody, so also this process, has open for writing. Where it
            # can't be opened anew, for want of descriptors say, they do so until it is closed.
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
            os.close(file.fd)
        self._files.clear()

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
        """Settle a stub, or wait until somebody else has; nobody uses the file before that."""
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
            with self._transitions.under_way([path_of(file.fd)]):
                settled = await trio.to_thread.run_sync(self._settle, file.fd, stub.attribute)
            file.stub = self.sparse(file, settled)
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
            return self._volume.space.read(fd, "")
        except DamagedStub as error:
            if trunc:
                os.ftruncate(fd, 0)
                self._volume.disk.remove_attribute(fd, self._volume.space.name)
                return None
            raise DamagedStub(f"{where(fd)}{error}") from error

    def _settle(self, fd: int, stub: StubAttribute) -> StubAttribute:
        """Settle a stub that ``fd`` is open on, if only for reading."""
        volume = self._volume
        load = partial(self._load, fd, stub)
        with opened(_open_for(b"/proc/self/fd/%d" % fd, True)) as own:
            return settle(own, stub, load, volume.space, volume.disk, volume.block_bytes)

    def sparse(self, file: OpenFile, stub: StubAttribute) -> SparseStub:
        """The reading and writing side of a settled stub."""
        volume = self._volume
        return SparseStub(
            file.fd,
            stub,
            volume.space,
            volume.disk,
            volume.block_bytes,
            lambda stub: self._load(file.fd, stub),
        )

    def _load(self, fd: int, stub: StubAttribute) -> StoreContent:
        return open_content(stub, self._volume.recipes, self._cache.read, where(fd))

    async def _upgrade(self, file: OpenFile) -> None:
        """Open a file for writing too that was open for reading only."""
        async with file.lock.alone():
            if not file.writable:
                self._reopen(file, True)

    def _reopen(self, file: OpenFile, write: bool) -> None:
        fd = _open_for(b"/proc/self/fd/%d" % file.fd, write)
        os.close(file.fd)
        file.fd, file.writable = fd, write
        if file.stub is not None:
            file.stub.fd = fd

    def truncate(self, file: OpenFile, size: int) -> None:
        """Set the length of a file that is open for writing, and whose lock the caller has alone.

        No commit of it may be under way: see :meth:`fuse_stub.commit_lane.Commits.truncate`.
        """
        if file.stub is None:
            os.ftruncate(file.fd, size)
        elif file.stub.truncate(size):
            file.stub = None


def _open_for(path: bytes, write: bool) -> int:
    """Open a regular file."""
    flags = os.O_CLOEXEC | os.O_NOCTTY
    if not write:
        return os.open(path, os.O_RDONLY | flags)
    try:
        return os.open(path, os.O_RDWR | flags)
    except PermissionError:
        # Without root: the owner may write it, and not read it.
        return os.open(path, os.O_WRONLY | flags)
