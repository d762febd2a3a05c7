"""The inodes that the kernel knows, and descriptors to reach them by.

Inodes have the numbers of the file system below. Paths are not kept: a name is used only while an
operation on its directory runs. A process that may open inodes by handle (root) needs a few hundred
bytes for each, and keeps ``O_PATH`` descriptors in an LRU cache; without that right, every known
inode holds a descriptor.

Used by the thread of the event loop, between awaits.
"""

import errno
import os
import resource
from collections import OrderedDict
from collections.abc import Sequence

import pyfuse3

from dedupd import native
from fuse_stub.files.file_handles import Generations, open_number
from fuse_stub.files.slow_closes import SlowCloses

DESCRIPTORS_MAX = 4096
"""Cached ``O_PATH`` descriptors: a few times what a busy directory listing touches at once."""

DESCRIPTORS_SHARE = 4
"""At most one in so many descriptors of the process: open files of users need the others."""

PATH_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class _Node:
    """One inode. ``fd`` is -1 where it has to be opened by its handle first."""

    __slots__ = ("fd", "handle", "lookups", "pinned")

    def __init__(self, fd: int, handle: bytes | None) -> None:
        self.fd = fd
        self.handle = handle
        self.lookups = 0
        self.pinned = handle is None


class Inodes:
    """The inodes that the kernel may ask for by number. ``root_fd`` stays the caller's.

    ``by_handle``: inodes can be opened by their handles, so that none has to stay open.
    """

    def __init__(self, root_fd: int, generations: Generations, closes: SlowCloses) -> None:
        self.root_fd = root_fd
        self._generations = generations
        self._closes = closes
        status = os.fstat(root_fd)
        self.device = status.st_dev
        self._root_ino = status.st_ino
        self._nodes: dict[int, _Node] = {}
        self._recent: OrderedDict[int, _Node] = OrderedDict()
        self.by_handle = _can_open_by_handle(root_fd)
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._descriptors_max = descriptors_cached_max(limit)

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def descriptors(self) -> int:
        """How many descriptors are held."""
        return sum(node.fd >= 0 for node in self._nodes.values())

    def close(self) -> None:
        for node in self._nodes.values():
            if node.fd >= 0:
                os.close(node.fd)
        self._nodes.clear()
        self._recent.clear()

    def number(self, status: os.stat_result) -> int:
        """The number by which the kernel knows an inode."""
        return pyfuse3.ROOT_INODE if status.st_ino == self._root_ino else status.st_ino

    def fd(self, ino: int) -> int:
        """An ``O_PATH`` descriptor of a known inode, valid until a few other inodes are used.

        Raises OSError (ESTALE) where it is not known or gone.
        """
        if ino == pyfuse3.ROOT_INODE:
            return self.root_fd
        node = self._nodes.get(ino)
        if node is None:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        if node.fd < 0:
            assert node.handle is not None
            node.fd = native.system.open_by_handle(self.root_fd, node.handle, PATH_FLAGS)
            self._cache(ino, node)
        elif not node.pinned:
            self._recent.move_to_end(ino)
        return node.fd

    def find(self, ino: int) -> int:
        """An ``O_PATH`` descriptor, the caller's, of an inode that may not be known any more."""
        if ino == pyfuse3.ROOT_INODE or ino in self._nodes:
            return os.dup(self.fd(ino))
        if not self.by_handle:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return open_number(self.root_fd, ino, PATH_FLAGS)

    def path(self, ino: int) -> bytes:
        """A path to the inode itself, for calls that take no descriptor."""
        return b"/proc/self/fd/%d" % self.fd(ino)

    def remember(self, fd: int, status: os.stat_result) -> int:
        """Count one more lookup of the inode that ``fd`` (``O_PATH``, taken over) is open on.

        Returns the generation to tell the kernel, which tells it from an earlier inode of the same
        number.
        """
        ino = status.st_ino
        handle = native.system.name_to_handle(fd) if self.by_handle else None
        node = self._nodes.get(ino)
        if node is None:
            node = self._nodes[ino] = _Node(fd, handle)
            if not node.pinned:
                self._cache(ino, node)
        elif node.handle != handle:
            # The number was given to a new file before the kernel forgot the old one.
            self._drop_fd(ino, node)
            node.fd, node.handle, node.pinned = fd, handle, False
            self._cache(ino, node)
        elif node.fd < 0:
            node.fd = fd
            self._cache(ino, node)
        else:
            os.close(fd)
            if not node.pinned:
                self._recent.move_to_end(ino)
        node.lookups += 1
        return self._generations.of(handle)

    def remember_handle(self, ino: int, handle: bytes) -> int:
        """As :meth:`remember`, of an inode that opens again by ``handle``; see ``by_handle``."""
        node = self._nodes.get(ino)
        if node is None:
            node = self._nodes[ino] = _Node(-1, handle)
        elif node.handle != handle:
            self._drop_fd(ino, node)
            node.handle, node.pinned = handle, False
        node.lookups += 1
        return self._generations.of(handle)

    def keep_open(self, ino: int, fd: int) -> None:
        """The last name of an inode goes: hold ``fd`` (taken over) until it is forgotten."""
        node = self._nodes.get(ino)
        if node is None or node.pinned:
            os.close(fd)
            return
        self._drop_fd(ino, node)
        node.fd, node.pinned = fd, True

    def pinned(self) -> list[int]:
        """Inodes that are held by a descriptor: among them all known ones without a name."""
        return [ino for ino, node in self._nodes.items() if node.pinned]

    def knows(self, ino: int) -> bool:
        """Whether the kernel may still refer to the inode."""
        return ino in self._nodes

    def forget(self, counts: Sequence[tuple[int, int]]) -> None:
        """The kernel takes back lookups: (inode, how many)."""
        for ino, count in counts:
            node = self._nodes.get(ino)
            if node is None:
                continue
            node.lookups -= count
            if node.lookups <= 0:
                self._drop_fd(ino, node)
                del self._nodes[ino]

    def _cache(self, ino: int, node: _Node) -> None:
        self._recent[ino] = node
        if len(self._recent) > self._descriptors_max:
            _, oldest = self._recent.popitem(last=False)
            os.close(oldest.fd)
            oldest.fd = -1

    def _drop_fd(self, ino: int, node: _Node) -> None:
        if node.fd >= 0:
            # The kernel may have had no name for a pinned one, and this be its end.
            (self._closes.close if node.pinned else os.close)(node.fd)
            node.fd = -1
            self._recent.pop(ino, None)


def descriptors_cached_max(limit: int) -> int:
    """The most that are cached, of ``limit`` that the process may have."""
    return min(DESCRIPTORS_MAX, max(1, limit // DESCRIPTORS_SHARE))


def _can_open_by_handle(root_fd: int) -> bool:
    try:
        os.close(
            native.system.open_by_handle(root_fd, native.system.name_to_handle(root_fd), PATH_FLAGS)
        )
    except OSError:
        return False
    return True
