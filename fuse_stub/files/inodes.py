"""The inodes that the kernel knows, and descriptors to reach them by.

Inodes have the numbers of the file system below. Paths are not kept: a name is used only while an
operation on its directory runs. A process that may open inodes by handle (root) needs a few hundred
bytes for each, and keeps ``O_PATH`` descriptors in an LRU cache; without that right, every known
inode holds a descriptor.

Used by the thread of the event loop, between awaits. Threads of native code use the table beside
it: they count lookups, and take them back, at any time.
"""

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from dedupd_core import native
from dedupd_core.volume.enabling.base import RESERVED_NAME
from fuse_stub.files.file_handles import open_number

CACHED_MAX = 65_536
"""Cached descriptors of native code, which name inodes or have their content open. To open an inode
again takes as long as half of what is asked about it. Each keeps an inode below in the kernel's
memory: some 1.5 KB."""

CACHED_SHARE = 8 / 3
"""At most one in so many descriptors of the process: files without a name that users have open need
the others."""

FILES_MAX = 4096
"""Files that are kept open here (open_files.py), for the next request."""

FILES_SHARE = 8
"""At most one in so many descriptors of the process."""

KEPT_BACK = 4608
"""Descriptors for requests under way, for jobs and for the store's containers; a quarter of a low
limit. Files without a name that users have open share the others."""

PATH_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class Inodes(native.mount.Inodes):
    """The inodes that the kernel may ask for by number: the native table, which answers the
    kernel's questions for names and attributes by itself. ``root_fd`` stays the caller's."""

    root_fd: int

    def __new__(cls, root_fd: int, reserved: bytes, secret: bytes) -> Self:
        """``reserved``: the extended attribute that does not exist to users. ``secret``: makes the
        generations that the kernel is told (file_handles.py).

        Native code refuses requests that would make an entry ``.dedupd`` at the top of the tree,
        before any of them comes to Python."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        cached = max(1, min(CACHED_MAX, int(limit / CACHED_SHARE)))
        kept = min(KEPT_BACK, limit // 4) + cached + files_open_max(limit)
        inodes = super().__new__(
            cls, root_fd, reserved, RESERVED_NAME, secret, cached, max(1, limit - kept)
        )
        inodes.root_fd = root_fd
        return inodes

    def find(self, ino: int) -> int:
        """An ``O_PATH`` descriptor, the caller's, of an inode that may not be known any more."""
        try:
            return os.dup(self.fd(ino))
        except OSError as error:
            if error.errno != errno.ESTALE or not self.by_handle:
                raise
        return open_number(self.root_fd, ino, PATH_FLAGS)

    def path(self, ino: int) -> bytes:
        """A path to the inode itself, for calls that take no descriptor."""
        return b"/proc/self/fd/%d" % self.fd(ino)

    def require_room(self, uid: int) -> None:
        """For one more inode without a name, of a user: a user leaves as many to the others as the
        user has. Raises OSError (EMFILE)."""
        if not self.may_keep_open(uid):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    @contextmanager
    def watched(self, ino: int) -> Iterator[None]:
        """For a block that native code leaves an inode alone in, with nothing of it open."""
        self.watch(ino)
        try:
            yield
        finally:
            self.unwatch(ino)


def files_open_max(limit: int) -> int:
    """The most files that are kept open here, of ``limit`` descriptors of the process."""
    return min(FILES_MAX, max(1, limit // FILES_SHARE))
