"""The inodes that the kernel knows, and descriptors to reach them by.

Inodes have the numbers of the file system below. Paths are not kept: a name is used only while an
operation on its directory runs. A process that may open inodes by handle (root) needs a few hundred
bytes for each, and keeps ``O_PATH`` descriptors in an LRU cache; without that right, every known
inode holds a descriptor.

Used by the thread of the event loop, between awaits. Threads of native code use the native table
beside it: they count lookups, and take them back, at any time.
"""

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

from dedupd import native
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

UNBOUNDED_BYTES = (1 << 63) - 1

PATH_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class Inodes:
    """The inodes that the kernel may ask for by number: a face of the native table, which answers
    the kernel's questions for names and attributes by itself.

    ``root_fd`` stays the caller's. ``by_handle``: inodes can be opened by their handles, so that
    none has to stay open.
    """

    def __init__(self, root_fd: int, reserved: bytes, secret: bytes) -> None:
        """``reserved``: the extended attribute that does not exist to users. ``secret``: makes the
        generations that the kernel is told (file_handles.py)."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        cached = max(1, min(CACHED_MAX, int(limit / CACHED_SHARE)))
        kept = min(KEPT_BACK, limit // 4) + cached + files_open_max(limit)
        self.native = native.mount.Inodes(root_fd, reserved, secret, cached, max(1, limit - kept))
        self.are_stubs_read = False  # by native code
        self.root_fd = root_fd
        self.device = self.native.device
        self.by_handle = self.native.by_handle

    def __len__(self) -> int:
        return len(self.native)

    @property
    def descriptors(self) -> int:
        """How many descriptors are held."""
        return self.native.descriptors

    def number(self, status: os.stat_result) -> int:
        """The number by which the kernel knows an inode."""
        return self.native.number(status.st_ino)

    def fd(self, ino: int) -> int:
        """An ``O_PATH`` descriptor of a known inode, valid until the next await, or until a few
        others were asked for.

        Raises OSError (ESTALE) where it is not known or gone.
        """
        return self.native.fd(ino)

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

    def remember(self, fd: int, status: os.stat_result) -> int:
        """Count one more lookup of the inode that ``fd`` (``O_PATH``, taken over) is open on.

        Returns the generation to tell the kernel, which tells it from an earlier inode of the same
        number.
        """
        return self.native.remember(status.st_ino, fd)

    def require_room(self, uid: int) -> None:
        """For one more inode without a name, of a user: a user leaves as many to the others as the
        user has. Raises OSError (EMFILE)."""
        if not self.native.may_keep_open(uid):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def keep_open(self, ino: int, fd: int, uid: int) -> None:
        """A user removes the last name of an inode: hold ``fd`` (taken over) until it is
        forgotten."""
        self.native.keep_open(ino, fd, uid)

    def pinned(self) -> list[int]:
        """Inodes that are held by a descriptor: among them all known ones without a name."""
        return self.native.pinned()

    def knows(self, ino: int) -> bool:
        """Whether the kernel may still refer to the inode."""
        return self.native.knows(ino)

    def forget(self, ino: int, lookups: int) -> None:
        """The kernel takes so many lookups back."""
        self.native.forget(ino, lookups)

    def read_stubs(
        self,
        chunks: native.store.Bases,
        streams: native.store.Bases,
        cache: native.store.ChunkCache,
        seeds: tuple[int, int],
        block_bytes: int,
        threads: int,
    ) -> None:
        """Have native code read stubs, of the containers of chunks and of recipes. ``seeds``: of
        their attributes. ``block_bytes``: of their blocks. Up to ``threads`` threads decode the
        chunks of one read."""
        self.native.read_stubs(chunks, streams, cache, seeds, block_bytes, threads)
        self.are_stubs_read = True

    def read_stubs_of_cluster(
        self,
        content: native.rados.ClusterContent,
        cache: native.store.ChunkCache,
        seeds: tuple[int, int],
        block_bytes: int,
    ) -> None:
        """As :meth:`read_stubs`, where the chunks are in a cluster."""
        self.native.read_stubs_of_cluster(content, cache, seeds, block_bytes)
        self.are_stubs_read = True

    def lend(self, ino: int, *, takes_writes: bool) -> None:
        """Have native code use a stub that is open here, whatever blocks it has of its own, until
        it is taken back: it is settled. ``takes_writes``: for writes of whole blocks, too."""
        self.native.lend(ino, takes_writes)

    def take_back(self, ino: int) -> bool:
        """End :meth:`lend`, and watch the inode. False where a write has failed so that blocks may
        be there that are allocated and were never written."""
        return self.native.take_back(ino)

    def was_used(self, ino: int) -> bool:
        """Whether native code has used a stub that is lent since the last call."""
        return self.native.was_used(ino)

    def watch(self, ino: int) -> None:
        """From now on Python sees all requests for the content and the attributes of an inode, and
        for its last name; native code has nothing of it open. As often as :meth:`unwatch` is to
        come."""
        self.native.watch(ino)

    def unwatch(self, ino: int) -> None:
        self.native.unwatch(ino)

    @contextmanager
    def watched(self, ino: int) -> Iterator[None]:
        """For a block that native code leaves an inode alone in, with nothing of it open."""
        self.watch(ino)
        try:
            yield
        finally:
            self.unwatch(ino)

    def close_idle(self) -> None:
        """Close what native code has open for writing and was not written to since the last
        call."""
        self.native.close_idle()

    def let_go(self) -> None:
        """Close all that native code has open for writing."""
        self.native.let_go()

    def delay_files(self, are_delayed: bool) -> None:
        """Whether Python sees all requests that make regular files."""
        self.native.delay_files(are_delayed)

    def allow_writes(self, size_bytes: int | None) -> None:
        """Python sees all writes after so many bytes; None: there is no bound."""
        self.native.allow_writes(UNBOUNDED_BYTES if size_bytes is None else size_bytes)

    def note_names(self, are_noted: bool) -> None:
        """Whether Python sees all requests that add or remove names of files."""
        self.native.note_names(are_noted)

    def close(self) -> None:
        """Close all descriptors, once the mount has ended: so that the file system below can be
        unmounted before this process has ended."""
        self.native.close()


def files_open_max(limit: int) -> int:
    """The most files that are kept open here, of ``limit`` descriptors of the process."""
    return min(FILES_MAX, max(1, limit // FILES_SHARE))
