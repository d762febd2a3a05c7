"""Operations on files that are open, and changes of attributes."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from pyfuse3 import (
    EntryAttributes,
    FileHandleT,
    FileInfo,
    FileNameT,
    FlagT,
    FUSEError,
    InodeT,
    ModeT,
    RequestContext,
    SetattrFields,
)

from dedupd import native
from dedupd.format.deletion import Cause
from dedupd.units import MIB
from fuse_stub.attributes import forget_attributes
from fuse_stub.errors import answers
from fuse_stub.files.inode_flags import PROTECTING, read_flags, set_flags
from fuse_stub.files.inodes import PATH_FLAGS
from fuse_stub.files.open_files import Handle, OpenFile
from fuse_stub.kernel.caller_rights import keeps_set_ids
from fuse_stub.mounted_volume import MountedVolume
from fuse_stub.namespace import NamespaceOperations
from fuse_stub.ranges import FileRanges

COPY_BYTES_MAX = 0x7FFF_F000
"""What the kernel takes for an answer of 32 bits."""

BUFFER_BYTES = 1 * MIB
"""The largest read that the kernel asks for (256 pages), with pages of 4 KiB and the default of
``fs.fuse.max_pages_limit``."""


class StubOperations(NamespaceOperations):
    """All operations of a mount."""

    def __init__(self, mount: MountedVolume) -> None:
        super().__init__(mount)
        self._stub_reader = mount.stub_reader
        self._ranges = FileRanges(mount, self._drop_privileges)
        self._handles: dict[int, Handle] = {}
        self._next_handle = 1
        # A reply is copied to the kernel before any other task runs, so one buffer serves all.
        self._buffer = memoryview(bytearray(BUFFER_BYTES))

    async def serve(self, line: native.mount.Line, request: native.mount.Request) -> None:
        """Answer a request that does not go through libfuse. Raises OSError."""
        unique, handle = request.unique, FileHandleT(request.handle)
        try:
            match request.opcode:
                case native.mount.READ:
                    data = await self.read(handle, request.offset, request.size)
                    line.answer(unique, data)
                case native.mount.WRITE:
                    size = await self.write(handle, request.offset, request.data)
                    line.answer_written(unique, size)
                case native.mount.OPEN:
                    caller = cast(RequestContext, request)
                    node, flags = InodeT(request.node), FlagT(request.flags)
                    info = await self.open(node, flags, caller)
                    assert info.fh is not None
                    line.answer_open(unique, info.fh)
                case native.mount.RELEASE:
                    await self.release(handle)
                    line.answer(unique, b"")
                case native.mount.FSYNC:
                    await self.fsync(handle, bool(request.flags))
                    line.answer(unique, b"")
                case native.mount.FSYNCDIR:
                    await self.sync_directory(request.node, request.uid)
                    line.answer(unique, b"")
                case native.mount.FALLOCATE:
                    await self.allocate(request)
                    line.answer(unique, b"")
                case native.mount.LSEEK:
                    line.answer_offset(unique, await self.seek(request))
                case native.mount.COPY_FILE_RANGE:
                    line.answer_written(unique, await self.copy_range(request))
                case native.mount.COPY_FILE_RANGE_64:
                    line.answer_offset(unique, await self.copy_range(request))
                case native.mount.TMPFILE:
                    await self.create_nameless(line, request)
                case native.mount.IOCTL:
                    line.answer_control(unique, await self.control(request))
        except FUSEError as error:
            line.refuse(unique, error.errno)

    # --- what carries no data -----------------------------------------------------------------

    @answers
    async def allocate(self, request: native.mount.Request) -> None:
        caller = cast(RequestContext, request)
        start, length, mode = request.offset, request.length, request.flags
        await self._ranges.allocate(request.node, start, length, mode, caller)

    @answers
    async def seek(self, request: native.mount.Request) -> int:
        return await self._ranges.seek(request.node, request.offset, request.flags, request.uid)

    @answers
    async def copy_range(self, request: native.mount.Request) -> int:
        caller = cast(RequestContext, request)
        length = request.length
        if request.opcode == native.mount.COPY_FILE_RANGE:
            length = min(length, COPY_BYTES_MAX)
        return await self._ranges.copy(
            request.node, request.offset, request.node_to, request.offset_to, length, caller
        )

    @answers
    async def control(self, request: native.mount.Request) -> bytes:
        """Read or set the flags of an inode."""
        path = self._inodes.path(request.node)
        if request.flags != native.mount.SET_FLAGS:
            return read_flags(path, request.flags, request.size)
        await self._commit_lane.touch(request.node)
        await self._files.wait_for_times(request.node)
        flags = set_flags(self._inodes.path(request.node), request.data)
        file = self._files.get(request.node)
        if file is not None:
            file.protected = bool(flags & PROTECTING)
        return b""

    # --- opening ------------------------------------------------------------------------------

    @answers
    async def open(self, inode: InodeT, flags: FlagT, ctx: RequestContext) -> FileInfo:
        with self._descriptor(ctx.uid):
            return await self._open(inode, flags, ctx)

    @contextmanager
    def _descriptor(self, uid: int) -> Iterator[None]:
        """Take one for a user, unless the block fails. Raises OSError."""
        self._descriptors.take(uid)
        try:
            yield
        except BaseException:
            self._descriptors.give_back(uid)
            raise

    async def _open(self, inode: InodeT, flags: FlagT, ctx: RequestContext) -> FileInfo:
        write = flags & os.O_ACCMODE != os.O_RDONLY
        trunc = bool(flags & os.O_TRUNC)
        if write or trunc:
            await self._commit_lane.touch(inode)
        if trunc:
            emptied = await self._files.acquire(inode, write=True, trunc=True)
            with self._files.using(emptied):
                await self._truncate(emptied, 0, ctx)
                return self._handle(await self._files.acquire(inode, write=write), write, ctx)
        return self._handle(await self._files.acquire(inode, write=write), write, ctx)

    def _handle(self, file: OpenFile, write: bool, ctx: RequestContext) -> FileInfo:
        if write:
            file.writers += 1
            file.changes += 1
        number = self._next_handle
        self._next_handle += 1
        # Looking up the caller's capabilities takes a while: only where they matter now.
        keeps = keeps_set_ids(ctx) if file.privileged and write else ctx.uid == 0
        self._handles[number] = Handle(file, write, keeps, ctx.uid)
        return FileInfo(fh=number, keep_cache=True)

    @answers
    async def create(
        self,
        parent_inode: InodeT,
        name: FileNameT,
        mode: ModeT,
        flags: FlagT,
        ctx: RequestContext,
    ) -> tuple[FileInfo, EntryAttributes]:
        await self._mount.brake.wait()
        with self._descriptor(ctx.uid):
            return self._create(parent_inode, name, mode, flags, ctx)

    @answers
    async def create_nameless(self, line: native.mount.Line, request: native.mount.Request) -> None:
        """Make a file in a directory that has no name there (``O_TMPFILE``)."""
        ctx, mode = cast(RequestContext, request), ModeT(request.mode)
        with self._descriptor(request.uid):
            parent_fd = self._inodes.fd(InodeT(request.node))
            fd = os.open(
                b"/proc/self/fd/%d" % parent_fd,
                os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC | (request.flags & os.O_EXCL),
                stat.S_IMODE(self._inherited_mode(parent_fd, mode, ctx)),
            )
            try:
                self._give(fd, parent_fd, mode, ctx)
                own_fd = os.dup(fd)
            except BaseException:
                os.close(fd)
                raise
            write = request.flags & os.O_ACCMODE != os.O_RDONLY
            info = self._handle(self._files.adopt(os.fstat(fd).st_ino, fd, write=write), write, ctx)
            assert info.fh is not None
            line.answer_nameless(request.unique, own_fd, info.fh)

    def _create(
        self,
        parent_inode: InodeT,
        name: FileNameT,
        mode: ModeT,
        flags: FlagT,
        ctx: RequestContext,
    ) -> tuple[FileInfo, EntryAttributes]:
        parent_fd = self._inodes.fd(parent_inode)
        try:
            fd = os.open(
                name,
                os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC,
                stat.S_IMODE(self._inherited_mode(parent_fd, mode, ctx)),
                dir_fd=parent_fd,
            )
        except FileExistsError:
            if flags & os.O_EXCL:
                raise
            # Created after the kernel's lookup, so its permission check did not cover it. ESTALE
            # makes the kernel look again.
            raise FUSEError(errno.ESTALE) from None
        try:
            self._give(fd, parent_fd, mode, ctx)
            attributes = self._known(os.open(name, PATH_FLAGS, dir_fd=parent_fd))
            write = flags & os.O_ACCMODE != os.O_RDONLY
            file = self._files.adopt(attributes.st_ino, fd, write=write)
        except BaseException:
            os.close(fd)
            raise
        return self._handle(file, write, ctx), attributes

    @answers
    async def release(self, fh: FileHandleT) -> None:
        handle = self._handles.pop(fh)
        if handle.writes:
            handle.file.writers -= 1
        self._descriptors.give_back(handle.uid)
        self._stub_reader.forget(handle)
        self._files.release(handle.file, write=handle.writes)

    @answers
    async def fsync(self, fh: FileHandleT, datasync: bool) -> None:
        handle = self._handles[fh]
        file = handle.file
        # With a descriptor of its own, a sync takes no lock, and no write waits for it.
        fd = os.dup(file.fd)
        try:
            with file.noting_losses():
                await self._mount.in_thread(handle.uid, os.fdatasync if datasync else os.fsync, fd)
        finally:
            os.close(fd)
            told, handle.losses = handle.losses, file.losses
        if told < file.losses:
            raise FUSEError(errno.EIO)

    # --- reading ------------------------------------------------------------------------------

    @answers
    async def read(self, fh: FileHandleT, off: int, size: int) -> "bytes | bytearray | memoryview":  # type: ignore[override]
        handle = self._handles[fh]
        file = handle.file
        while not file.lock.try_share():
            async with file.lock.shared():
                pass
        try:
            if file.stub is not None:
                return await self._stub_reader.read(handle, off, size)
            if size <= BUFFER_BYTES:
                try:
                    have = os.preadv(file.fd, [self._buffer[:size]], off, os.RWF_NOWAIT)
                    if have == size or (
                        os.preadv(file.fd, [self._buffer[have:size]], off + have, os.RWF_NOWAIT)
                        == 0
                    ):
                        return self._buffer[:have]
                except BlockingIOError:
                    pass
            return await self._mount.in_thread(handle.uid, os.pread, file.fd, size, off)
        finally:
            file.lock.unshare()

    # --- writing ------------------------------------------------------------------------------

    @answers
    async def write(self, fh: FileHandleT, off: int, buf: bytes) -> int:
        handle = self._handles[fh]
        file = handle.file
        if file.protected:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        file.changes += 1
        if file.privileged and not handle.keeps_privileges:
            self._drop_privileges(file)
        while file.stub is None:
            if not file.lock.try_share():
                async with file.lock.shared():
                    continue
            try:
                if file.stub is None:
                    return await self._mount.write(handle.uid, os.pwrite, file.fd, buf, off)
            finally:
                file.lock.unshare()
        async with file.lock.alone():
            return await self._write_stub(handle, off, buf)

    async def _write_stub(self, handle: Handle, off: int, buf: bytes) -> int:
        file = handle.file
        stub = file.stub
        if stub is None:
            # It was made plain, or emptied, while this write waited for the lock.
            return os.pwrite(file.fd, buf, off)
        self._mount.deletions.changing(file, Cause.OVERWRITTEN)
        if stub.needs_chunks(off, off + len(buf)):
            return await self._mount.in_thread(handle.uid, stub.write, off, buf)
        return await self._mount.write(handle.uid, stub.write, off, buf)

    def _drop_privileges(self, file: OpenFile) -> None:
        """A write clears set-user-id, and set-group-id where the group may execute."""
        mode = stat.S_IMODE(os.fstat(file.fd).st_mode)
        kept = mode & ~stat.S_ISUID
        if mode & stat.S_IXGRP:
            kept &= ~stat.S_ISGID
        if kept != mode:
            os.fchmod(file.fd, kept)
            # The kernel leaves this to the mount (``handshake.rs``), and has the old mode cached.
            forget_attributes(file.ino)
        file.privileged = False

    # --- attributes ---------------------------------------------------------------------------

    async def _truncate(self, file: OpenFile, size: int, ctx: RequestContext) -> None:
        if file.privileged and not keeps_set_ids(ctx):
            self._drop_privileges(file)
        await self._commit_lane.truncate(file, size, ctx.uid)

    @answers
    async def setattr(
        self,
        inode: InodeT,
        attr: EntryAttributes,
        fields: SetattrFields,
        fh: FileHandleT | None,
        ctx: RequestContext,
    ) -> EntryAttributes:
        await self._commit_lane.touch(inode)
        if fields.update_size:
            file = await self._files.acquire(inode, write=True, trunc=attr.st_size == 0)
            with self._files.using(file):
                await self._truncate(file, attr.st_size, ctx)
        changes_times = fields.update_atime or fields.update_mtime
        if changes_times or fields.update_uid or fields.update_gid:
            # A settled or filled file gets its times back, and capabilities that a new owner must
            # not get.
            await self._files.wait_for_times(inode)
        path = self._inodes.path(inode)
        if fields.update_uid or fields.update_gid:
            os.chown(
                path,
                attr.st_uid if fields.update_uid else -1,
                attr.st_gid if fields.update_gid else -1,
            )
        if fields.update_mode:
            os.chmod(path, stat.S_IMODE(attr.st_mode))
            file_open = self._files.get(inode)
            if file_open is not None:
                file_open.privileged = bool(attr.st_mode & 0o6000)
        if changes_times:
            now = os.stat(path)
            os.utime(
                path,
                ns=(
                    attr.st_atime_ns if fields.update_atime else now.st_atime_ns,
                    attr.st_mtime_ns if fields.update_mtime else now.st_mtime_ns,
                ),
            )
        return self._attributes(inode)
