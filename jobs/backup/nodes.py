"""What a tree consists of, file or not: each node with all that belongs to it but its content."""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from dedupd.errors import UsageError
from dedupd.format.stub import StubAttribute
from dedupd.system.files import attributes_of, opened
from dedupd.system.paths import open_beneath, show_path

PATH_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Node:
    """A file, directory, link, device, pipe or socket. ``attributes`` are its extended ones, in the
    order of their names: ACLs among them, and not that of a stub."""

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

    def refreshed(self, status: os.stat_result) -> "Node":
        """The node with length and times of now."""
        return replace(
            self,
            size=status.st_size,
            atime_ns=status.st_atime_ns,
            mtime_ns=status.st_mtime_ns,
            ctime_ns=status.st_ctime_ns,
        )

    def settled(self, stub: StubAttribute | None) -> "Node":
        """The node with the time that a change under way is to give back."""
        if stub is not None and stub.flags.transient:
            return replace(self, mtime_ns=stub.mtime_ns)
        return self


class Met(NamedTuple):
    """A node that a walk came upon. ``is_left``: a directory whose entries have all come."""

    path: bytes
    node: Node
    is_left: bool = False


def node_of(fd: int, hidden: bytes) -> Node:
    """The node that ``fd`` (``O_PATH``, too) is open on. ``hidden`` is the stubs' attribute.

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
        attributes = ()  # a file system that has none
    return Node(
        *(status.st_mode, status.st_uid, status.st_gid, status.st_rdev),
        *(status.st_ino, status.st_nlink, status.st_size),
        *(status.st_atime_ns, status.st_mtime_ns, status.st_ctime_ns),
        target,
        attributes,
    )


def walk_nodes(
    data_fd: int, below: bytes, hidden: bytes, on_error: Callable[[bytes, OSError], None]
) -> Iterator[Met]:
    """Every node from ``below`` on, each directory before its entries, and once more after them.

    Entries come in the order of their names. Follows no link, enters no other file system.
    ``on_error`` is told of what cannot be looked at; a name that vanishes is passed over. Raises
    UsageError where ``below`` is not there.
    """
    device = os.fstat(data_fd).st_dev
    try:
        with opened(open_beneath(data_fd, below, PATH_FLAGS)) as fd:
            first = node_of(fd, hidden)
    except OSError as error:
        raise UsageError(f"{show_path(below)}: {os.strerror(error.errno or 0).lower()}") from None
    yield Met(below, first)
    if not first.is_directory:
        return
    stack = [(Met(below, first, True), _names(data_fd, below, device, on_error))]
    while stack:
        directory, names = stack[-1]
        if not names:
            stack.pop()
            yield directory
            continue
        path = b"/".join(part for part in (directory.path, names.pop()) if part)
        try:
            with opened(open_beneath(data_fd, path, PATH_FLAGS)) as fd:
                node = node_of(fd, hidden)
        except FileNotFoundError:
            continue
        except OSError as error:
            on_error(path, error)
            continue
        yield Met(path, node)
        if node.is_directory:
            stack.append((Met(path, node, True), _names(data_fd, path, device, on_error)))


def _names(
    data_fd: int, path: bytes, device: int, on_error: Callable[[bytes, OSError], None]
) -> list[bytes]:
    """The names in a directory, the last one first."""
    try:
        with opened(open_beneath(data_fd, path, os.O_RDONLY | os.O_DIRECTORY)) as fd:
            if os.fstat(fd).st_dev != device:
                raise OSError(
                    errno.EXDEV, "another file system or subvolume, which is no part of the volume"
                )
            return sorted(map(os.fsencode, os.listdir(fd)), reverse=True)
    except OSError as error:
        on_error(path, error)
        return []
