"""Operations on files' data, and changes of attributes.

The kernel reports neither opens nor closes: each operation names its file by number.
"""

import errno
import os
import stat
from collections.abc import Sequence
from functools import partial

from pyfuse3 import (
    EntryAttributes,
    FileHandleT,
    FUSEError,
    InodeT,
    RequestContext,
    SetattrFields,
)

from dedupd_core import native
from dedupd_core.format.deletion import Cause
from dedupd_core.stub.stub_file import SparseStub
from dedupd_core.system.files import opened
from dedupd_core.units import MIB
from fuse_stub.errors import answers
from fuse_stub.files.attributes import forget_attributes
from fuse_stub.files.inode_flags import read_flags, set_extended, set_flags
from fuse_stub.files.open_file import OpenFile
from fuse_stub.kernel.caller_rights import keeps_set_ids
from fuse_stub.kernel.reserved_blocks import Caller
from fuse_stub.mounted_volume import MountedVolume
from fuse_stub.namespace import NamespaceOperations
from fuse_stub.ranges import COPY_BYTES, PUNCH_HOLE, FileRanges

Unreadable = native.store.Unreadable

COPY_BYTES_MAX = 0x7FFF_F000
"""The largest result that fits into the 32 bits of an answer to the kernel."""

BUFFER_BYTES = 1 * MIB
"""The largest read of the kernel: 256 pages of 4 KiB, by default (``fs.fuse.max_pages_limit``)."""


class StubOperations(NamespaceOperations):
    """All operations of a mount."""

    def __init__(self, mount: MountedVolume) -> None:
        super().__init__(mount)
        self._ranges = FileRanges(mount)
        # A reply is copied to the kernel before any other task runs, so one buffer is enough.
        self._buffer = memoryview(bytearray(BUFFER_BYTES))

    async def serve(self, line: native.mount.Line, request: native.mount.Request) -> None:
        """Answer a request that does not go through libfuse. Raises OSError."""
        unique, node, uid = request.unique, request.node, request.uid
        try:
            match request.opcode:
                case native.mount.READ:
                    data = await self.read_at(
                        node, uid, request.offset, request.size, request.reasons
                    )
                    line.answer(unique, data)
                case native.mount.WRITE:
                    # With an older kernel, the mount must know whether a write clears set-user-id.
                    clears = bool(request.flags) if line.says_what_writes_clear else uid != 0
                    await self._wait_to_write(request.length)
                    line.answer_written(unique, await self.write_request(request, clears=clears))
                case native.mount.CREATE | native.mount.TMPFILE:
                    await self._mount.brake.wait()
                    line.make_file(request.data)
                case native.mount.FSYNC:
                    await self.sync_file(node, uid, bool(request.flags))
                    line.answer(unique, b"")
                case native.mount.FSYNCDIR:
                    await self.sync_directory(node, uid)
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
                case native.mount.IOCTL:
                    line.answer_control(unique, await self.control(request))
                case native.mount.SETXATTR:
                    await self.set_attribute(request)
                    line.answer(unique, b"")
        except FUSEError as error:
            line.refuse(unique, error.errno)

    # --- what carries no data -----------------------------------------------------------------

    @answers
    async def allocate(self, request: native.mount.Request) -> None:
        start, length, mode = request.offset, request.length, request.flags
        if not mode & PUNCH_HOLE:
            await self._wait_to_write(length)
        try:
            await self._ranges.allocate(request.node, start, length, mode, request)
        except BaseException:
            # ext4 keeps the allocated blocks, and the new length. The kernel would keep the old
            # length.
            forget_attributes(request.node)
            raise

    @answers
    async def seek(self, request: native.mount.Request) -> int:
        return await self._ranges.seek(request.node, request.offset, request.flags, request.uid)

    @answers
    async def copy_range(self, request: native.mount.Request) -> int:
        length = request.length
        if request.opcode == native.mount.COPY_FILE_RANGE:
            length = min(length, COPY_BYTES_MAX)
        if self._mount.brake.is_on:
            left_bytes = os.stat(self._inodes.path(request.node)).st_size - request.offset
            await self._wait_to_write(max(0, min(length, left_bytes, COPY_BYTES)))
        return await self._ranges.copy(
            request.node, request.offset, request.node_to, request.offset_to, length, request
        )

    @answers
    async def control(self, request: native.mount.Request) -> bytes:
        """Read or set the flags of an inode, or its project."""
        ino = request.node
        match request.flags:
            case native.mount.SET_FLAGS:
                change = set_flags
            case native.mount.SET_EXTENDED:
                change = set_extended
            case _:
                return read_flags(self._inodes.path(ino), request.flags, request.size)
        await self._commit_lane.touch(ino)
        await self._files.wait_for_times(ino)
        with self._inodes.watched(ino):  # a file open for writing stays so despite the flags
            path = self._inodes.path(ino)
            is_protected = self._mount.change(request, change, path, request.data)
        # The kernel does not see an ioctl as a change: it would keep the old change time.
        forget_attributes(ino)
        file = self._files.get(ino)
        if file is not None:
            file.protected = is_protected
        return b""

    # --- reading ------------------------------------------------------------------------------

    @answers
    async def read_at(
        self, ino: int, uid: int, start: int, length: int, reasons: Sequence[Unreadable]
    ) -> bytes | memoryview:
        """Read up to ``length`` bytes at ``start`` of a file, for a user; fewer only at its end.
        ``reasons``: the parts that native code could not read."""
        file = await self._files.acquire(ino, write=False)
        try:
            while not file.lock.try_share():
                async with file.lock.shared():
                    pass
            try:
                if file.stub is not None:
                    return await self._read_stub(file.stub, uid, start, length, reasons)
                return await self._read_plain(file, uid, start, length)
            finally:
                file.lock.unshare()
        finally:
            self._files.release(file)

    async def _read_stub(
        self, stub: SparseStub, uid: int, start: int, length: int, reasons: Sequence[Unreadable]
    ) -> bytes:
        """Read with native code, under the shared lock of the file."""
        # Updates the access time by the rule of the mount below, and reads no data.
        os.pread(stub.fd, 1, os.fstat(stub.fd).st_size)
        data = None if reasons else stub.read_at_once(start, length)
        if data is None:
            data = await self._mount.in_thread(uid, stub.read, start, length, reasons)
        return data

    async def _read_plain(
        self, file: OpenFile, uid: int, start: int, length: int
    ) -> bytes | memoryview:
        if length <= BUFFER_BYTES:
            try:
                have = os.preadv(file.fd, [self._buffer[:length]], start, os.RWF_NOWAIT)
                rest = [self._buffer[have:length]]
                if have == length or os.preadv(file.fd, rest, start + have, os.RWF_NOWAIT) == 0:
                    return self._buffer[:have]
            except BlockingIOError:
                pass
        return await self._mount.in_thread(uid, os.pread, file.fd, length, start)

    # --- writing ------------------------------------------------------------------------------

    async def write_request(self, request: native.mount.Request, *, clears: bool) -> int:
        """Write to a file; return the number of bytes. The kernel treats data of a mapping as
        completely written unless this fails."""
        start, data, done = request.offset, request.data, 0
        while True:
            done += await self.write_at(
                request.node, request, start + done, data[done:], clears=clears
            )
            if not request.is_mapping or done == len(data):
                return done

    @answers
    async def write_at(
        self, ino: int, caller: Caller, start: int, data: bytes, *, clears: bool
    ) -> int:
        """Write to a file for a user; return the number of bytes. ``clears``: set-user-id, too.

        No commit of the file runs during the write: a started commit is rolled back, and the lock
        prevents a new one.
        """
        file = await self._files.acquire(ino, write=True)
        try:
            while file.stub is None:
                await self._commit_lane.touch(ino)
                if not file.lock.try_share():
                    async with file.lock.shared():
                        pass
                    continue
                try:
                    # A commit may have started or ended during the wait.
                    if file.stub is None and not self._commit_lane.is_under_way(ino):
                        self._about_to_write(file, start, len(data), clears)
                        return await self._mount.write(caller, os.pwrite, file.fd, data, start)
                finally:
                    file.lock.unshare()
            async with self._commit_lane.uncommitted(file):
                self._about_to_write(file, start, len(data), clears)
                return await self._write_stub(file, caller, start, data)
        finally:
            self._files.release(file)

    async def _wait_to_write(self, size_bytes: int) -> None:
        """Wait for space while a restore fills the volume. The file is not locked, so that a job
        can optimize its parts written so far. Raises FUSEError."""
        brake = self._mount.brake
        if not size_bytes or not brake.is_on:
            return
        try:
            await brake.wait_to_write(size_bytes)
        except OSError as error:
            raise FUSEError(error.errno or errno.EIO) from None
        self._inodes.allow_writes(brake.allowed_bytes)

    def _about_to_write(self, file: OpenFile, start: int, length: int, clears: bool) -> None:
        """Note a write before it is made, under the file's lock."""
        file.changes += 1
        self._mount.parts.times.note(file.ino, start, start + length)
        if file.on_write is not None:
            file.on_write(start, start + length)
        if file.privileged and clears:
            file.drop_set_ids()

    async def _write_stub(self, file: OpenFile, caller: Caller, start: int, data: bytes) -> int:
        stub = file.stub
        if stub is None:
            # It was expanded, or emptied, while this write waited for the lock.
            return self._mount.change(caller, os.pwrite, file.fd, data, start)
        self._mount.deletions.changing(file, Cause.OVERWRITTEN)
        written = await self._mount.write(caller, stub.write_at_once, start, data)
        if written is None:
            written = await self._mount.change_in_thread(caller, stub.write, start, data)
        return written

    @answers
    async def sync_file(self, ino: int, uid: int, data_only: bool) -> None:
        """Sync a file for a user. The first sync after lost writes reports them."""
        file = await self._files.acquire(ino, write=False)
        try:
            # With a separate descriptor, a sync needs no lock, and no write waits for it.
            with opened(os.dup(file.fd)) as fd, file.noting_losses():
                await self._mount.in_thread(uid, os.fdatasync if data_only else os.fsync, fd)
        finally:
            told, file.losses_told = file.losses_told, file.losses
            self._files.release(file)
        if told < file.losses:
            raise FUSEError(errno.EIO)

    # --- attributes ---------------------------------------------------------------------------

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
                if file.privileged and not keeps_set_ids(ctx):
                    file.drop_set_ids()
                cut = partial(self._mount.change, ctx, file.cut)
                await self._commit_lane.truncate(file, attr.st_size, ctx.uid, cut)
        changes_times = fields.update_atime or fields.update_mtime
        if changes_times or fields.update_uid or fields.update_gid:
            # A settled or expanded file gets its times back, and capabilities that a new owner must
            # not get.
            await self._files.wait_for_times(inode)
        path = self._inodes.path(inode)
        if fields.update_uid or fields.update_gid:
            uid = attr.st_uid if fields.update_uid else -1
            gid = attr.st_gid if fields.update_gid else -1
            self._mount.change(ctx, os.chown, path, uid, gid)
        if fields.update_mode:
            self._mount.change(ctx, os.chmod, path, stat.S_IMODE(attr.st_mode))
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
