"""All durable effects: no other code makes bytes durable. Tests use a simulated disk instead.

Each method is one effect on a file or directory that is already open. Names are bytes and relative
to a directory descriptor, so that no step depends on an unchanged path. Native code that has
durable effects gets ``Disk.door``.
"""

import errno
import mmap
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dedupd_core import native
from dedupd_core.errors import NoSpace, OverQuota
from dedupd_core.failpoint import is_armed, reach
from dedupd_core.system.files import free_inodes, why_full
from dedupd_core.system.page_cache import DONT_CACHE, kernel_writes_uncached
from dedupd_core.system.paths import shown_place

_RENAME_NOREPLACE = 1
_RENAME_EXCHANGE = 2
_RENAME_WHITEOUT = 4


@contextmanager
def _no_space(fd: int) -> Iterator[None]:
    """Report which resource of the file system of an open file or directory is used up."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EDQUOT, errno.ENOSPC):
            raise
        where = shown_place(f"/proc/self/fd/{fd}")
        if error.errno == errno.EDQUOT:
            raise OverQuota(f"{where}: a quota is used up; raise it, or delete files") from error
        raise NoSpace(f"{where}: {why_full(fd)}") from error


@contextmanager
def _one_more_file(dir_fd: int) -> Iterator[None]:
    """Make an OSError name missing inodes as its cause, if the file system has free space."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC and free_inodes(dir_fd) == 0:
            raise OSError(error.errno, why_full(dir_fd), error.filename) from error
        raise


def _write_all(fd: int, views: list[memoryview], offset: int, flags: int = 0) -> int:
    """Write all data; return the bytes written. Raises OSError."""
    views, total = [view for view in views if len(view)], 0
    while views:
        count = os.pwritev(fd, views, offset + total, flags)
        total += count
        while views and count >= len(views[0]):
            count -= len(views[0])
            views.pop(0)
        if views:
            views[0] = views[0][count:]
    return total


class Disk:
    """Durable effects on the real file system. Stateless; raises OSError and NoSpace."""

    @property
    def door(self) -> Callable[..., int] | None:
        """The function that native code calls for durable effects. None: it makes them itself.

        A test may need to see each effect, or a fail point may be armed. Then native code calls
        this function with the name of one of these methods and its arguments, or with "reach" and a
        fail point. It does so from one thread, one effect after the other, always in the same
        order. The answer is what the method returns if that is a number of bytes, and otherwise 0,
        or the negative number of an error. Any other exception ends the native call.
        """
        return None if type(self) is Disk and not is_armed() else self._native_step

    def _native_step(self, name: str, *arguments: Any) -> int:
        if name == "reach":
            reach(*arguments)
            return 0
        try:
            return getattr(self, name)(*arguments) or 0
        except OverQuota:
            return -errno.EDQUOT
        except NoSpace:
            return -errno.ENOSPC
        except OSError as error:
            return -(error.errno or errno.EIO)

    def create(self, dir_fd: int, name: bytes, mode: int = 0o600) -> int:
        """Create a new file, which must not exist yet, for reading and writing. Raises NoSpace."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        with _no_space(dir_fd):
            return os.open(name, flags, mode, dir_fd=dir_fd)

    def open_write(self, dir_fd: int, name: bytes) -> int:
        return os.open(name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=dir_fd)

    def write_at(self, fd: int, data: Sequence[memoryview | bytes | bytearray], offset: int) -> int:
        """Write all of ``data`` at ``offset``; returns the bytes written. Raises NoSpace."""
        with _no_space(fd):
            return _write_all(fd, [memoryview(part).cast("B") for part in data], offset)

    def write_out(self, fd: int, data: memoryview, offset: int) -> None:
        """Like :meth:`write_at`, for much data that is not read again soon.

        The transfer to the disk starts at once, so that the later sync takes less time. The data
        leaves the page cache to users' data.
        """
        # The last page is written again with the following data, so it stays.
        whole = len(data) - (offset + len(data)) % mmap.PAGESIZE
        if whole > 0 and kernel_writes_uncached():
            try:
                with _no_space(fd):
                    _write_all(fd, [data[:whole]], offset, DONT_CACHE)
                self.write_at(fd, [data[whole:]], offset + whole)
                return
            except OSError as error:
                if error.errno != errno.EOPNOTSUPP:  # the file system does not support this
                    raise
        self.write_at(fd, [data], offset)
        os.posix_fadvise(fd, offset, len(data), os.POSIX_FADV_DONTNEED)

    def write_some(
        self, fd: int, data: Sequence[memoryview | bytes | bytearray], offset: int
    ) -> int:
        """Write ``data`` at ``offset`` in one call; return the number of bytes written."""
        return os.pwritev(fd, data, offset)

    def allocate(self, fd: int, offset: int, length: int) -> None:
        """Allocate blocks for a range without writing them; it still reads as zeros."""
        native.system.fallocate_keep_size(fd, offset, length)

    def sync_data(self, fd: int) -> None:
        """Make the file's bytes and length durable."""
        os.fdatasync(fd)

    def sync_file(self, fd: int) -> None:
        """Make the file and all its metadata durable."""
        os.fsync(fd)

    def sync_dir(self, dir_fd: int) -> None:
        """Make a directory's entries durable."""
        os.fsync(dir_fd)

    def sync_file_system(self, fd: int) -> None:
        """Make everything on the file system of ``fd`` durable."""
        native.system.syncfs(fd)

    def truncate(self, fd: int, length: int) -> None:
        os.ftruncate(fd, length)

    def punch(self, fd: int, offset: int, length: int) -> None:
        """Free the blocks of a range; the file keeps its length, and the range reads as zeros."""
        native.system.punch_hole(fd, offset, length)

    def set_attribute(self, fd: int, name: bytes, value: bytes) -> None:
        os.setxattr(fd, name, value)

    def remove_attribute(self, fd: int, name: bytes) -> None:
        os.removexattr(fd, name)

    def set_times(self, fd: int, atime_ns: int, mtime_ns: int) -> None:
        os.utime(fd, ns=(atime_ns, mtime_ns))

    def rename(self, from_fd: int, old: bytes, to_fd: int, new: bytes) -> None:
        os.rename(old, new, src_dir_fd=from_fd, dst_dir_fd=to_fd)

    def rename_new(self, from_fd: int, old: bytes, to_fd: int, new: bytes) -> None:
        """Rename, but never replace an existing name (raises FileExistsError)."""
        native.system.renameat2(from_fd, old, to_fd, new, _RENAME_NOREPLACE)

    def exchange(self, one_fd: int, one: bytes, other_fd: int, other: bytes) -> None:
        """Exchange the names of two existing files or directories in one step."""
        native.system.renameat2(one_fd, one, other_fd, other, _RENAME_EXCHANGE)

    def rename_leaving(self, from_fd: int, old: bytes, to_fd: int, new: bytes) -> None:
        """Rename, and leave a whiteout, which an overlay treats as a removed name."""
        with _one_more_file(from_fd):
            native.system.renameat2(from_fd, old, to_fd, new, _RENAME_WHITEOUT)

    def unlink(self, dir_fd: int, name: bytes) -> None:
        os.unlink(name, dir_fd=dir_fd)

    def make_dir(self, dir_fd: int, name: bytes) -> None:
        with _one_more_file(dir_fd):
            os.mkdir(name, 0o700, dir_fd=dir_fd)

    def remove_dir(self, dir_fd: int, name: bytes) -> None:
        os.rmdir(name, dir_fd=dir_fd)

    def set_owner(self, fd: int, uid: int, gid: int) -> None:
        os.fchown(fd, uid, gid)

    def set_mode(self, fd: int, mode: int) -> None:
        os.fchmod(fd, mode)

    def make_link(self, fd: int, dir_fd: int, name: bytes) -> None:
        """Give another name, which must not exist yet, to the file of ``fd`` (even ``O_PATH``). For
        a symbolic link, the link itself gets the name."""
        os.link(b"/proc/self/fd/%d" % fd, name, dst_dir_fd=dir_fd, follow_symlinks=True)

    def make_symlink(self, target: bytes, dir_fd: int, name: bytes) -> None:
        with _one_more_file(dir_fd):
            os.symlink(target, name, dir_fd=dir_fd)

    def make_node(self, dir_fd: int, name: bytes, mode: int, device: int) -> None:
        """Make a device, a pipe or a socket, by the type in ``mode``."""
        with _one_more_file(dir_fd):
            os.mknod(name, mode, device, dir_fd=dir_fd)

    def set_owner_of(self, dir_fd: int, name: bytes, uid: int, gid: int) -> None:
        """Like :meth:`set_owner`, by name; changes a symbolic link itself."""
        os.chown(name, uid, gid, dir_fd=dir_fd, follow_symlinks=False)

    def set_times_of(self, dir_fd: int, name: bytes, atime_ns: int, mtime_ns: int) -> None:
        """Like :meth:`set_times`, by name; changes a symbolic link itself."""
        os.utime(name, ns=(atime_ns, mtime_ns), dir_fd=dir_fd, follow_symlinks=False)

    def set_mode_of(self, fd: int, mode: int) -> None:
        """Like :meth:`set_mode`; ``fd`` may be ``O_PATH``."""
        os.chmod(f"/proc/self/fd/{fd}", mode)

    def set_attribute_of(self, fd: int, name: bytes, value: bytes) -> None:
        """Like :meth:`set_attribute`; ``fd`` may be opened with ``O_PATH``, and may refer to a
        symbolic link."""
        os.setxattr(f"/proc/self/fd/{fd}", name, value)

    def remove_attribute_of(self, fd: int, name: bytes) -> None:
        """Like :meth:`remove_attribute`; ``fd`` may be ``O_PATH``."""
        os.removexattr(f"/proc/self/fd/{fd}", name)

    def remove_all(self, dir_fd: int, name: bytes) -> None:
        """Remove a file, or a directory with its contents."""
        if not stat.S_ISDIR(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode):
            self.unlink(dir_fd, name)
            return
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, dir_fd=dir_fd)
        try:
            for entry in os.listdir(fd):
                self.remove_all(fd, os.fsencode(entry))
        finally:
            os.close(fd)
        self.remove_dir(dir_fd, name)

    def replace_file(
        self,
        dir_fd: int,
        name: bytes,
        data: bytes,
        mode: int = 0o600,
        times_ns: tuple[int, int] | None = None,
    ) -> None:
        """Replace the content of the file ``name`` by ``data``, atomically and durably.

        ``times_ns``: its new access and modification times.
        """
        temporary = name + b".new"
        try:
            self.unlink(dir_fd, temporary)
        except FileNotFoundError:
            pass
        fd = self.create(dir_fd, temporary, mode)
        try:
            self.write_at(fd, [data], 0)
            if times_ns is not None:
                self.set_times(fd, *times_ns)
            self.sync_file(fd)
        finally:
            os.close(fd)
        self.rename(dir_fd, temporary, dir_fd, name)
        self.sync_dir(dir_fd)
