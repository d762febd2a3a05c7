"""Writes nodes with all their properties into a directory, and never replaces an existing node.

A node gets its name when it is complete: until then it is in a private directory. The uppermost
directory that a run makes stays private until everything below it is complete. So users cannot
reach a node before its owner and mode are set (docs/design/privileges.md).
"""

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from dedupd_core.errors import FileChanged
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import opened
from dedupd_core.system.paths import DirectoryOpener, open_beneath, show_path
from dedupd_core.system.tree.takeover import Rights, drop_inherited_acls, refuse_others_directory
from dedupd_core.system.tree.unfinished import Mark, mark, unmark
from jobs.backup.tree.nodes import PATH_FLAGS, Node, node_of
from jobs.backup.tree.properties import Properties
from jobs.backup.tree.workshop import Workshop, open_unfinished
from jobs.frame.run import Findings

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Pieces = Iterable[tuple[int, bytes | memoryview]]


class _PrivateTree(NamedTuple):
    """The uppermost directory that this program has made, closed to others until it is complete.
    Everything below it was made by this program."""

    path: bytes
    fd: int
    opener: DirectoryOpener


class _Place(NamedTuple):
    """The place of a node: the directory, its name there, and the workshop in which it is made."""

    directory: int
    name: bytes
    workshop: Workshop


class _FirstName(NamedTuple):
    """The first name of a file with several names, and the file that had it."""

    path: bytes
    device: int
    inode: int


class TreeWriter:
    """Makes nodes below the directory ``target_fd``, each directory before its entries. Raises
    NoSpace, UsageError for a directory of another user, OSError."""

    def __init__(
        self,
        target_fd: int,
        disk: Disk,
        findings: Findings,
        rights: Rights,
        *,
        force: bool = False,
        reserved: bytes = b"",
        owns_target: bool = False,
    ) -> None:
        """``findings`` gets attributes that could not be set. ``force`` accepts directories of
        other users. No node gets the attribute ``reserved``. ``owns_target``: users cannot reach
        the target, and this program has made everything in it."""
        self._target_fd = target_fd
        self._disk = disk
        self.properties = Properties(disk, findings, rights, reserved)
        self._is_root = os.geteuid() == 0
        self._refuses = self._is_root and not force
        self._opener = DirectoryOpener(target_fd)
        self._private: _PrivateTree | None = None
        self._owns_target = owns_target
        self._workshop: tuple[bytes, Workshop] | None = None
        self._first_names: dict[int, _FirstName] = {}

    def close(self) -> None:
        self._close_workshop()
        self._close_private()
        self._opener.close()

    def is_there(self, path: bytes, node: Node) -> bool:
        """Return whether an earlier run made the node. Raises FileChanged if its name is in use.

        A file that has its name is complete, and has its time.
        """
        directory, name = self._parent(path)
        try:
            fd = os.open(name, PATH_FLAGS, dir_fd=directory)
        except FileNotFoundError:
            return False
        with opened(fd):
            there = node_of(fd, b"")
            is_same = stat.S_IFMT(there.mode) == stat.S_IFMT(node.mode)
            if node.is_file:
                is_same &= (there.size, there.mtime_ns) == (node.size, node.mtime_ns)
            if not is_same or there.target != node.target:
                raise FileChanged(
                    f"{show_path(path)}: another file with this name exists, and is kept; choose"
                    " an empty directory"
                )
            self._note(path, node, fd)
        return True

    # --- directories --------------------------------------------------------------------------

    def make_directory(self, path: bytes, node: Node | None = None) -> None:
        """Make a directory that is closed to others until it is finished or released. An existing
        one keeps its owner and mode. A directory without a ``node`` belongs to this user."""
        if self._is_own(path):
            directory, name = self._parent(path)
            try:
                self._disk.make_dir(directory, name)
            except FileExistsError:
                _require_directory(directory, name)
            return
        directory, name = self._parent(path)
        try:
            _require_directory(directory, name)
        except FileNotFoundError:
            self._make_private(path, node.uid if node is not None else os.geteuid())
            return
        fd = open_unfinished(directory, name)
        if fd is not None:
            self._enter(path, fd)

    def _make_private(self, path: bytes, uid: int) -> None:
        with self._place(path, uid) as (directory, name, workshop):
            self._disk.make_dir(workshop.fd, workshop.name)
            fd = os.open(workshop.name, _DIRECTORY, dir_fd=workshop.fd)
            try:
                drop_inherited_acls(self._disk, fd)
                mark(self._disk, fd, Mark.DIRECTORY)
                self._disk.rename_new(workshop.fd, workshop.name, directory, name)
            except BaseException:
                os.close(fd)
                raise
        self._enter(path, fd)

    def _enter(self, path: bytes, fd: int) -> None:
        self._close_private()
        self._private = _PrivateTree(path, fd, DirectoryOpener(fd))

    def is_unfinished(self, path: bytes) -> bool:
        """Return whether this run, or an interrupted run, made a directory."""
        return self._is_own(path) or (self._private is not None and path == self._private.path)

    def finish_directory(self, path: bytes, node: Node) -> None:
        """Set the properties of a directory that a run has made. The times are last, after all
        entries exist. An existing directory only gets its times."""
        if self._private is not None and path == self._private.path:
            self._close_workshop()
            with opened(os.dup(self._private.fd)) as fd:
                self._close_private()
                unmark(self._disk, fd)
                self.properties.give(fd, path, node)
            return
        if self._workshop is not None and self._workshop[0] == path:
            self._close_workshop()
        with opened(os.open(b".", _DIRECTORY, dir_fd=self._open(path))) as fd:
            if self._is_own(path):
                self.properties.give(fd, path, node)
            else:
                self.properties.keep(fd, node)

    def release_directory(self, path: bytes) -> None:
        """Finish a directory without a node in the tree: it keeps this user and mode 0700."""
        if self._private is not None and path == self._private.path:
            self._close_workshop()
            unmark(self._disk, self._private.fd)
            self._close_private()

    def finish_target(self, node: Node) -> None:
        """Set the properties of the target itself."""
        self._close_workshop()
        with opened(os.open(b".", _DIRECTORY, dir_fd=self._target_fd)) as fd:
            self.properties.give(fd, b"", node)

    # --- other nodes --------------------------------------------------------------------------

    def make_file(
        self,
        path: bytes,
        node: Node,
        pieces: Pieces = (),
        attach: Callable[[int], None] = lambda fd: None,
    ) -> int:
        """Make a regular file with the bytes of ``pieces``; return their number.

        ``attach`` may add to the open file. If a step fails, nothing of the file remains.
        """
        count = 0
        with (
            self._place(path, node.uid) as (directory, name, workshop),
            opened(self._disk.create(workshop.fd, workshop.name)) as fd,
        ):
            for offset, data in pieces:
                self._disk.write_at(fd, [data], offset)
                count += len(data)
            self._disk.truncate(fd, node.size)
            attach(fd)
            self.properties.give(fd, path, node)
            self._disk.rename_new(workshop.fd, workshop.name, directory, name)
            self._note(path, node, fd)
        return count

    def make_other(self, path: bytes, node: Node) -> bool:
        """Make a link, device, pipe or socket; return False for a skipped device."""
        if not self.properties.takes(node):
            return False
        disk = self._disk
        with self._place(path, node.uid) as (directory, name, workshop):
            if node.is_symlink:
                disk.make_symlink(node.target, workshop.fd, workshop.name)
            else:
                mode = stat.S_IFMT(node.mode) | 0o600
                disk.make_node(workshop.fd, workshop.name, mode, node.device)
            with opened(os.open(workshop.name, PATH_FLAGS, dir_fd=workshop.fd)) as fd:
                self.properties.give_special(workshop.fd, workshop.name, fd, path, node)
                disk.rename_new(workshop.fd, workshop.name, directory, name)
                self._note(path, node, fd)
        return True

    def make_link(self, path: bytes, node: Node) -> bool:
        """Add a name to a file that was made before; return whether that file exists."""
        first = self._first_names.get(node.inode) if node.links > 1 else None
        if first is None:
            return False
        try:
            fd = os.open(b".", PATH_FLAGS, dir_fd=self._open(first.path.rpartition(b"/")[0]))
            with opened(fd):
                fd = os.open(first.path.rpartition(b"/")[2], PATH_FLAGS, dir_fd=fd)
        except OSError:
            return False
        with opened(fd):
            status = os.fstat(fd)
            is_first = (status.st_dev, status.st_ino) == (first.device, first.inode)
            is_first &= stat.S_IFMT(status.st_mode) == stat.S_IFMT(node.mode)
            # A file of another user gets no second name, because that user's writes would appear
            # there. A new file of the same user may have the inode number of a deleted file.
            if not is_first or (self._is_root and status.st_uid != node.uid):
                return False
            self._link(fd, path, node)
        return True

    def link_from(self, from_fd: int, old: bytes, path: bytes, node: Node) -> None:
        """Add a name to the file that has the path ``old`` below another directory."""
        with opened(open_beneath(from_fd, old, os.O_PATH)) as fd:
            self._link(fd, path, node)
            self._note(path, node, fd)

    def _link(self, fd: int, path: bytes, node: Node) -> None:
        directory, name = self._parent(path)
        self._require_place(directory, path, node.uid)
        self._disk.make_link(fd, directory, name)

    # --- places -------------------------------------------------------------------------------

    def _is_own(self, path: bytes) -> bool:
        """Return whether a path is below a directory of this program, which users cannot reach."""
        above = self._private
        return self._owns_target or (above is not None and path.startswith(above.path + b"/"))

    def _open(self, path: bytes) -> int:
        """Return a descriptor of a directory, valid until the next call."""
        above = self._private
        if above is not None and path == above.path:
            return above.fd
        if above is not None and path.startswith(above.path + b"/"):
            return above.opener.open(path[len(above.path) + 1 :])
        return self._opener.open(path)

    def _parent(self, path: bytes) -> tuple[int, bytes]:
        directory, _, name = path.rpartition(b"/")
        return self._open(directory), name

    def _require_place(self, directory: int, path: bytes, uid: int) -> None:
        if self._refuses and not self._is_own(path):
            refuse_others_directory(directory, path.rpartition(b"/")[0], uid)

    @contextmanager
    def _place(self, path: bytes, uid: int) -> Iterator[_Place]:
        """Provide the place for a node. After a failure, nothing remains in the workshop."""
        directory, name = self._parent(path)
        with opened(os.open(b".", PATH_FLAGS | os.O_DIRECTORY, dir_fd=directory)) as fd:
            self._require_place(fd, path, uid)
            workshop = self._workshop_in(fd, path.rpartition(b"/")[0])
            try:
                yield _Place(fd, name, workshop)
            except BaseException:
                workshop.discard()
                raise

    def _workshop_in(self, directory: int, path: bytes) -> Workshop:
        """Return a workshop in the same project and file system: no quota stops a rename."""
        above = self._private
        if self._owns_target:
            path, directory = b"", self._target_fd
        elif above is not None and (path + b"/").startswith(above.path + b"/"):
            path, directory = above.path, above.fd
        if self._workshop is None or self._workshop[0] != path:
            self._close_workshop()
            self._workshop = path, Workshop(self._disk, directory)
        return self._workshop[1]

    def _close_workshop(self) -> None:
        if self._workshop is not None:
            workshop, self._workshop = self._workshop[1], None
            workshop.close()

    def _close_private(self) -> None:
        if self._private is not None:
            self._private.opener.close()
            os.close(self._private.fd)
            self._private = None

    def _note(self, path: bytes, node: Node, fd: int) -> None:
        if node.links > 1 and not node.is_directory:
            status = os.fstat(fd)
            first = _FirstName(path, status.st_dev, status.st_ino)
            self._first_names.setdefault(node.inode, first)


def _require_directory(directory: int, name: bytes) -> None:
    """Raise FileNotFoundError, or FileExistsError for anything but a directory."""
    mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
    if not stat.S_ISDIR(mode):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
