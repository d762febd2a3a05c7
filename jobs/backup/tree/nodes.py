"""The nodes of a tree, files or not, with all their properties except content."""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import NamedTuple

from dedupd_core.errors import UsageError
from dedupd_core.format.stub import StubAttribute
from dedupd_core.system.files import attributes_of, opened
from dedupd_core.system.paths import open_beneath, show_path

PATH_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_STEP = PATH_FLAGS | os.O_DIRECTORY
_READ = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_UP = b".."

_EXCHANGED = "another directory now has its name"


@dataclass(frozen=True, slots=True)
class Node:
    """A file, directory, link, device, pipe or socket. ``attributes`` are the extended attributes
    in the order of their names, including ACLs, but not the attribute of a stub."""

    mode: int
    uid: int
    gid: int
    device: int
    inode: int
    links: int
    size: int
    atime_ns: int
    mtime_ns: int
    ctime_ns: int
    target: bytes = b""
    attributes: tuple[tuple[bytes, bytes], ...] = ()

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_symlink(self) -> bool:
        return stat.S_ISLNK(self.mode)

    def settled(self, stub: StubAttribute | None) -> "Node":
        """Return the node with the time that an unfinished transition will restore."""
        if stub is not None and stub.flags.transient:
            return replace(self, mtime_ns=stub.mtime_ns)
        return self


class VisitedNode(NamedTuple):
    """A node that a walk found. ``is_end``: a directory after all its entries. ``directory``: the
    descriptor of its parent, which is open until the walk continues."""

    path: bytes
    node: Node
    is_end: bool = False
    directory: int = -1

    def open(self, flags: int) -> int:
        """Open the file that has the name now, in the directory that the walk has read. It may be a
        new file: only :func:`node_of` the descriptor returns its properties. Raises OSError."""
        name = self.path.rpartition(b"/")[2] or b"."
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.directory)


def node_of(fd: int, hidden: bytes) -> Node:
    """Return the node of ``fd``, which may be ``O_PATH``. ``hidden`` is the stubs' attribute.

    Raises OSError.
    """
    status = os.stat(fd)
    path = b"/proc/self/fd/%d" % fd
    target = os.readlink(b"", dir_fd=fd) if stat.S_ISLNK(status.st_mode) else b""
    try:
        attributes = tuple(attributes_of(path, hidden))
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        attributes = ()  # a file system without attributes
    return Node(
        mode=status.st_mode,
        uid=status.st_uid,
        gid=status.st_gid,
        device=status.st_rdev,
        inode=status.st_ino,
        links=status.st_nlink,
        size=status.st_size,
        atime_ns=status.st_atime_ns,
        mtime_ns=status.st_mtime_ns,
        ctime_ns=status.st_ctime_ns,
        target=target,
        attributes=attributes,
    )


OnError = Callable[[bytes, OSError], None]


def walk_nodes(
    data_fd: int, below: bytes, hidden: bytes, on_error: OnError
) -> Iterator[VisitedNode]:
    """Yield every node from ``below`` on, each directory before its entries and after them.

    Entries come in the order of their names. Follows no link, enters no other file system, and no
    directory that replaced another: perhaps only the mode of the old one protects its entries.
    Unreadable nodes are passed to ``on_error``; a name that vanishes is skipped. Raises UsageError
    if ``below`` does not exist.
    """
    above, _, name = below.rpartition(b"/")
    try:
        here = open_beneath(data_fd, above, _STEP)
        try:
            with opened(os.open(name or b".", PATH_FLAGS, dir_fd=here)) as fd:
                first = node_of(fd, hidden)
        except OSError:
            os.close(here)
            raise
    except OSError as error:
        raise UsageError(f"{show_path(below)}: {os.strerror(error.errno or 0).lower()}") from None
    with closing(_Walk(data_fd, here, hidden, on_error)) as walk:
        yield from walk.through(below, first)


class _Level(NamedTuple):
    """A directory that is being read, and its remaining names, the last one first."""

    visited: VisitedNode
    names: list[bytes]


class _Walk:
    """A walk with one open directory, that of the next entry. It compares each opened directory
    with the node that it has read."""

    def __init__(self, data_fd: int, here: int, hidden: bytes, on_error: OnError) -> None:
        """Takes ownership of ``here``."""
        self._data_fd = data_fd
        self._here = here
        self._hidden = hidden
        self._on_error = on_error
        self._device = os.fstat(data_fd).st_dev

    def close(self) -> None:
        os.close(self._here)

    def through(self, below: bytes, first: Node) -> Iterator[VisitedNode]:
        stack: list[_Level] = []
        yield from self._visit(below, first, stack)
        while stack:
            visited, names = stack[-1]
            if not names:
                stack.pop()
                yield visited
                if stack:
                    self._climb(stack[-1])
                continue
            name = names.pop()
            path = b"/".join(part for part in (visited.path, name) if part)
            try:
                with opened(os.open(name, PATH_FLAGS, dir_fd=self._here)) as fd:
                    node = node_of(fd, self._hidden)
            except FileNotFoundError:
                continue
            except OSError as error:
                self._on_error(path, error)
                continue
            yield from self._visit(path, node, stack)

    def _visit(self, path: bytes, node: Node, stack: list[_Level]) -> Iterator[VisitedNode]:
        yield VisitedNode(path, node, directory=self._here)
        if not node.is_directory:
            return
        end = VisitedNode(path, node, True)
        try:
            name = path.rpartition(b"/")[2] or b"."
            fd = os.open(name, _READ, dir_fd=self._here)
        except OSError as error:
            self._on_error(path, error)
            yield end
            return
        try:
            if os.fstat(fd).st_dev != self._device:
                raise OSError(
                    errno.EXDEV, "another file system or subvolume, which is not part of the volume"
                )
            if os.fstat(fd).st_ino != node.inode:
                raise OSError(errno.ESTALE, _EXCHANGED)
            names = sorted(map(os.fsencode, os.listdir(fd)), reverse=True)
        except OSError as error:
            os.close(fd)
            self._on_error(path, error)
            yield end
            return
        os.close(self._here)
        self._here = fd
        stack.append(_Level(end, names))

    def _climb(self, to: _Level) -> None:
        """Return to the parent directory. Reject a directory that the walk has not read."""
        path, node = to.visited.path, to.visited.node
        for start, way in ((self._here, b""), (self._data_fd, path)):
            try:
                fd = open_beneath(start, way, _STEP) if way else os.open(_UP, _STEP, dir_fd=start)
            except OSError:
                continue
            status = os.fstat(fd)
            if (status.st_dev, status.st_ino) == (self._device, node.inode):
                os.close(self._here)
                self._here = fd
                return
            os.close(fd)
        if to.names:
            self._on_error(path, OSError(errno.ESTALE, _EXCHANGED))
            to.names.clear()
