"""Operations on names and on inodes that are not open."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import pyfuse3
from pyfuse3 import (
    EntryAttributes,
    FileNameT,
    FlagT,
    FUSEError,
    InodeT,
    RequestContext,
    XAttrNameT,
)

from dedupd_core import native
from dedupd_core.deleted.undelete import UNDELETE
from dedupd_core.format.deletion import Cause
from dedupd_core.stub.transition import CAPABILITY
from dedupd_core.system.files import opened
from fuse_stub.deleted import attributes as deleted
from fuse_stub.errors import answers
from fuse_stub.files.attributes import entry, forget_attributes
from fuse_stub.files.content_attribute import CONTENT_ATTRIBUTE, content_of
from fuse_stub.files.inodes import PATH_FLAGS
from fuse_stub.mounted_volume import MountedVolume

RENAME_WHITEOUT = 4
"""pyfuse3 has no name for it."""


class NamespaceOperations(pyfuse3.Operations):
    """Each operation makes one system call below, and returns its result to the kernel."""

    supports_dot_lookup = True
    enable_acl = True
    # The writeback cache stays off. On a full disk the write must fail, not the later close, and
    # times must be those of the write (docs/design/mount.md, "What the kernel caches").
    enable_writeback_cache = False

    def __init__(self, mount: MountedVolume) -> None:
        super().__init__()
        self._mount = mount
        self._inodes = mount.inodes
        self._files = mount.files
        self._commit_lane = mount.commit_lane
        self._marking_sessions = mount.marking_sessions
        self._reserved = mount.volume.space.name

    # --- looking ------------------------------------------------------------------------------

    @answers
    async def lookup(
        self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext
    ) -> EntryAttributes:
        """Look up ``.`` and ``..``, which the kernel uses for NFS to find forgotten inodes.

        Native code answers for all other names.
        """
        if name == b"." or (name == b".." and parent_inode == pyfuse3.ROOT_INODE):
            return self._known(self._inodes.find(parent_inode))
        return self._known(os.open(name, PATH_FLAGS, dir_fd=self._inodes.fd(parent_inode)))

    def _known(self, fd: int) -> EntryAttributes:
        """Count a lookup of the inode of ``fd`` (``O_PATH``); takes ownership of ``fd``."""
        try:
            status = os.fstat(fd)
            if status.st_dev != self._inodes.device:
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        except OSError:
            os.close(fd)
            raise
        ino = self._inodes.number(status.st_ino)
        if ino == pyfuse3.ROOT_INODE:
            os.close(fd)
            return entry(status, ino)
        return entry(status, ino, self._inodes.remember(status.st_ino, fd))

    def _attributes(self, inode: InodeT) -> EntryAttributes:
        file = self._files.get(inode)
        status = os.fstat(self._inodes.fd(inode) if file is None else file.fd)
        return entry(status, status.st_ino)

    # --- names that come and go ---------------------------------------------------------------
    # Native code makes files and directories, and removes directories. It also does the other
    # operations, except while notes are taken, or if the mount has an inode open that loses its
    # last name.

    @answers
    async def unlink(self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext) -> None:
        parent_fd = self._inodes.fd(parent_inode)
        with self._kept_open(parent_fd, name, ctx.uid, Cause.REMOVED):
            self._mount.change(ctx, partial(os.unlink, name, dir_fd=parent_fd))

    @contextmanager
    def _kept_open(self, parent_fd: int, name: FileNameT, uid: int, cause: Cause) -> Iterator[None]:
        """Keep an inode open while the block removes its name: it exists as long as the kernel
        knows it."""
        fd = self._open_last(parent_fd, name, uid, cause)
        try:
            yield
        except BaseException:
            if fd is not None:
                os.close(fd)
            raise
        if fd is not None:
            ino = os.fstat(fd).st_ino
            self._inodes.keep_open(ino, fd, uid)
            # Its blocks are freed when the kernel forgets it: now, if it is not open.
            self._files.close_idle(ino)

    def _open_last(self, parent_fd: int, name: FileNameT, uid: int, cause: Cause) -> int | None:
        """Open an inode by its last name, if the kernel knows the inode; else None. Raises OSError
        (EMFILE) if a user has too many inodes without a name."""
        try:
            status = os.stat(name, dir_fd=parent_fd, follow_symlinks=False)
        except FileNotFoundError:
            return None
        is_last = status.st_nlink == 1 or stat.S_ISDIR(status.st_mode)
        if is_last and stat.S_ISREG(status.st_mode):
            self._mount.deletions.removing(parent_fd, name, cause)
        if not is_last or not self._inodes.knows(status.st_ino):
            return None
        self._inodes.require_room(uid)
        fd = os.open(name, PATH_FLAGS, dir_fd=parent_fd)
        if self._marking_sessions.is_open and stat.S_ISREG(status.st_mode):
            self._marking_sessions.changed(fd)
        return fd

    @answers
    async def rename(
        self,
        parent_inode_old: InodeT,
        name_old: FileNameT,
        parent_inode_new: InodeT,
        name_new: FileNameT,
        flags: FlagT,
        ctx: RequestContext,
    ) -> None:
        disk = self._mount.volume.disk
        effects = {
            0: disk.rename,
            pyfuse3.RENAME_NOREPLACE: disk.rename_new,
            pyfuse3.RENAME_EXCHANGE: disk.exchange,
            RENAME_WHITEOUT: disk.rename_leaving,
        }
        if flags not in effects:
            raise FUSEError(errno.EINVAL)
        if self._marking_sessions.are_moves_held:
            await self._wait_with_directory(parent_inode_old, name_old)
            if flags & pyfuse3.RENAME_EXCHANGE:
                await self._wait_with_directory(parent_inode_new, name_new)
        # From here on there is no await: the note is taken in the same step as the move.
        old_fd, new_fd = self._inodes.fd(parent_inode_old), self._inodes.fd(parent_inode_new)
        kept: AbstractContextManager[None] = nullcontext()
        if flags in (0, RENAME_WHITEOUT):
            kept = self._kept_open(new_fd, name_new, ctx.uid, Cause.REPLACED)
        with kept:
            self._mount.change(ctx, effects[flags], old_fd, name_old, new_fd, name_new)
        if self._marking_sessions.is_open:
            self._marking_sessions.moved(new_fd, name_new)
            if flags & pyfuse3.RENAME_EXCHANGE:
                self._marking_sessions.moved(old_fd, name_old)

    async def _wait_with_directory(self, parent_inode: InodeT, name: FileNameT) -> None:
        """Delay the move of a directory while such moves are held."""
        parent_fd = self._inodes.fd(parent_inode)
        if stat.S_ISDIR(os.stat(name, dir_fd=parent_fd, follow_symlinks=False).st_mode):
            await self._marking_sessions.wait_for_release()

    @answers
    async def link(
        self, inode: InodeT, new_parent_inode: InodeT, new_name: FileNameT, ctx: RequestContext
    ) -> EntryAttributes:
        parent_fd = self._inodes.fd(new_parent_inode)
        link = partial(os.link, dst_dir_fd=parent_fd, follow_symlinks=True)
        self._mount.change(ctx, link, self._inodes.path(inode), new_name)
        fd = os.open(new_name, PATH_FLAGS, dir_fd=parent_fd)
        if self._marking_sessions.is_open:
            self._marking_sessions.changed(fd)
        return self._known(fd)

    # --- directories --------------------------------------------------------------------------

    @answers
    async def sync_directory(self, inode: int, uid: int) -> None:
        """Sync a directory, for a user."""
        with opened(os.open(self._inodes.path(inode), os.O_RDONLY | os.O_CLOEXEC)) as fd:
            await self._mount.in_thread(uid, os.fsync, fd)

    # --- extended attributes ------------------------------------------------------------------

    @answers
    async def getxattr(self, inode: InodeT, name: XAttrNameT, ctx: RequestContext) -> bytes:
        """Return the content's digest or the deletions; native code returns all others."""
        if name == CONTENT_ATTRIBUTE:
            return await self._content(inode, ctx)
        if deleted.is_listing(name):
            with opened(os.dup(self._inodes.fd(inode))) as fd:
                return await self._mount.listings.value(fd, name, ctx.uid)
        return os.getxattr(self._inodes.path(inode), name)

    async def _content(self, inode: InodeT, ctx: RequestContext) -> bytes:
        found = None
        # A separate descriptor: the table may close its own and reuse the number.
        with opened(os.dup(self._inodes.fd(inode))) as fd:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                path, turns = b"/proc/self/fd/%d" % fd, self._mount.digest_turns
                async with turns.of(ctx.uid):
                    found = await turns.run(ctx.uid, content_of, self._mount.volume, path)
        if found is None:
            raise FUSEError(pyfuse3.ENOATTR)
        return found

    @answers
    async def set_attribute(self, request: native.mount.Request) -> None:
        inode, name = request.node, request.name
        if name in (self._reserved, CONTENT_ATTRIBUTE) or deleted.is_listing(name):
            raise FUSEError(errno.EPERM)
        if name == UNDELETE:
            await self._undelete(inode, request)
            return
        await self._commit_lane.touch(inode)
        if name == CAPABILITY:
            await self._files.wait_for_times(inode)
        path = self._inodes.path(inode)
        self._mount.change(request, os.setxattr, path, name, request.data, request.flags)
        takes_set_group = bool(request.size)
        if takes_set_group and (mode := os.stat(path).st_mode) & stat.S_ISGID:
            os.chmod(path, stat.S_IMODE(mode) & ~stat.S_ISGID)

    async def _undelete(self, inode: int, request: native.mount.Request) -> None:
        mount, alone = self._mount, self._commit_lane.reshaping
        value, uid = request.data, request.uid
        change = partial(mount.change, request)
        try:
            await deleted.undelete(
                mount.volume, self._files, alone, mount.in_thread, inode, value, uid, change
            )
        finally:
            forget_attributes(inode)

    @answers
    async def removexattr(self, inode: InodeT, name: XAttrNameT, ctx: RequestContext) -> None:
        if name in (self._reserved, CONTENT_ATTRIBUTE):
            raise FUSEError(errno.EPERM)
        await self._commit_lane.touch(inode)
        if name == CAPABILITY:
            await self._files.wait_for_times(inode)
        self._mount.change(ctx, os.removexattr, self._inodes.path(inode), name)
