"""Nodes put into a directory, with all that belongs to them, and never over anything that is there.

A file shows under its name once it is whole: until then it has a name of its own in the same
directory. A run that was killed leaves at most one such file in each directory, which the next one
removes.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress

from dedupd.errors import DedupdError, FileChanged
from dedupd.system.disk import Disk
from dedupd.system.files import free_space, opened
from dedupd.system.paths import DirectoryOpener, explain, open_beneath, show_path
from dedupd.units import MIB, counted
from jobs.backup.nodes import PATH_FLAGS, Node, node_of
from jobs.frame.run import Findings

UNFINISHED = b".dedupd-unfinished"
"""The name of a file that is being written."""

_NOT_HERE = (errno.EOPNOTSUPP, errno.EPERM, errno.EACCES)
"""An attribute that the file system, or this user, cannot have: worth a word, and no failure."""

Pieces = Iterable[tuple[int, bytes | memoryview]]


class TreeWriter:
    """Makes nodes below the directory ``target_fd``. Raises NoSpace, OSError."""

    def __init__(self, target_fd: int, disk: Disk, findings: Findings) -> None:
        """``findings`` are told of attributes that could not be set."""
        self._target_fd = target_fd
        self._disk = disk
        self._findings = findings
        self._opener = DirectoryOpener(target_fd)
        self._first_names: dict[int, bytes] = {}
        self._may_give_away = os.geteuid() == 0
        self._others_files = 0
        """How many nodes belong to this user because they could not be given to their own."""

    def close(self) -> None:
        self._opener.close()

    def tell_of_others(self) -> None:
        """Once all is made: have the findings say what could not be given to its owner."""
        if self._others_files:
            self._findings.add(
                f"{counted(self._others_files, 'name')} of other owners: made with this user as"
                " the owner; root alone can give files away"
            )

    def is_there(self, path: bytes, node: Node) -> bool:
        """Whether an earlier run has made the node. Raises FileChanged where its name is another's.

        Every file that has its name is whole, and has its time.
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
                f"{show_path(path)}: another file of that name is there already, and is left as it"
                " is; choose an empty directory"
            )
        self._note(path, node)
        return True

    def make_directory(self, path: bytes) -> None:
        """A directory that is closed to others until :meth:`finish_directory`."""
        directory, name = self._parent(path)
        try:
            self._disk.make_dir(directory, name)
        except FileExistsError:
            mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
            if not stat.S_ISDIR(mode):
                raise

    def finish_directory(self, path: bytes, node: Node) -> None:
        """Give a directory what belongs to it: the times last, once all its entries are made."""
        fd = os.dup(self._opener.open(path)) if path else os.dup(self._target_fd)
        with opened(fd), opened(os.open(b"/proc/self/fd/%d" % fd, os.O_RDONLY)) as readable:
            self._remove_unfinished(readable)
            self._dress(readable, path, node)

    def make_file(
        self,
        path: bytes,
        node: Node,
        pieces: Pieces = (),
        attach: Callable[[int], None] = lambda fd: None,
    ) -> int:
        """A regular file with the bytes of ``pieces``; returns how many these are.

        ``attach`` may add to the open file. Nothing is left of it where anything fails.
        """
        directory, name = self._parent(path)
        self._remove_unfinished(directory)
        fd = self._disk.create(directory, UNFINISHED)
        count = 0
        try:
            with opened(fd):
                for offset, data in pieces:
                    self._disk.write_at(fd, [data], offset)
                    count += len(data)
                self._disk.truncate(fd, node.size)
                attach(fd)
                self._dress(fd, path, node)
            directory, name = self._parent(path)
            self._disk.rename_new(directory, UNFINISHED, directory, name)
        except (DedupdError, OSError):
            self._remove_unfinished(self._parent(path)[0])
            raise
        self._note(path, node)
        return count

    def make_link(self, path: bytes, node: Node) -> bool:
        """One more name of a file that was made already; whether it was."""
        first = self._first_names.get(node.inode) if node.links > 1 else None
        if first is not None:
            self.link_from(self._target_fd, first, path, node)
        return first is not None

    def link_from(self, from_fd: int, old: bytes, path: bytes, node: Node) -> None:
        """A name of the file that has the path ``old`` below another directory."""
        old_directory, _, old_name = old.rpartition(b"/")
        with opened(open_beneath(from_fd, old_directory, os.O_PATH | os.O_DIRECTORY)) as old_fd:
            directory, name = self._parent(path)
            self._disk.make_link(old_fd, old_name, directory, name)
        self._note(path, node)

    def make_other(self, path: bytes, node: Node) -> None:
        """A link, device, pipe or socket."""
        directory, name = self._parent(path)
        if node.is_symlink:
            self._disk.make_symlink(node.target, directory, name)
        else:
            self._disk.make_node(directory, name, node.mode & ~0o7777 | 0o600, node.device)
        with opened(os.open(name, PATH_FLAGS, dir_fd=directory)) as fd:
            if self._gives_away(node):
                self._disk.set_owner_of(directory, name, node.uid, node.gid)
            if not node.is_symlink:
                self._disk.set_mode_of(fd, stat.S_IMODE(node.mode))
            self._set_attributes(fd, path, node)
        self._disk.set_times_of(directory, name, node.atime_ns, node.mtime_ns)
        self._note(path, node)

    def _parent(self, path: bytes) -> tuple[int, bytes]:
        directory, _, name = path.rpartition(b"/")
        return self._opener.open(directory), name

    def _note(self, path: bytes, node: Node) -> None:
        if node.links > 1 and not node.is_directory:
            self._first_names.setdefault(node.inode, path)

    def _remove_unfinished(self, directory: int) -> None:
        disk = self._disk
        with suppress(FileNotFoundError):
            disk.unlink(directory, UNFINISHED)

    def _gives_away(self, node: Node) -> bool:
        """Whether a node can be given to its owner; counts those that cannot, and should."""
        is_others = (node.uid, node.gid) != (os.geteuid(), os.getegid())
        self._others_files += is_others and not self._may_give_away
        return self._may_give_away

    def _dress(self, fd: int, path: bytes, node: Node) -> None:
        """Owner first, which takes privileges away; times last, which all else changes."""
        if self._gives_away(node):
            self._disk.set_owner(fd, node.uid, node.gid)
        self._disk.set_mode(fd, stat.S_IMODE(node.mode))
        self._set_attributes(fd, path, node)
        self._disk.set_times(fd, node.atime_ns, node.mtime_ns)

    def _set_attributes(self, fd: int, path: bytes, node: Node) -> None:
        for name, value in node.attributes:
            try:
                self._disk.set_attribute_of(fd, name, value)
            except OSError as error:
                if error.errno not in _NOT_HERE and not _is_full_of_attributes(fd, error):
                    raise
                self._findings.add(
                    f"{show_path(path)}: restored without its attribute {show_path(name)}:"
                    f" {explain(error)}"
                )


def _is_full_of_attributes(fd: int, error: OSError) -> bool:
    """Whether the file alone has no room for one more attribute: the stub's may be one more than it
    had where it comes from. A full disk is another matter."""
    if error.errno == errno.E2BIG:
        return True
    return error.errno == errno.ENOSPC and free_space(fd).free_bytes > MIB
