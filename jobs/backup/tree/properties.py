"""Owner, mode, attributes and times of new nodes, as far as the rights of a restore go."""

import errno
import os
from collections import Counter

from dedupd_core.system.disk import Disk
from dedupd_core.system.files import free_space
from dedupd_core.system.paths import explain, show_path
from dedupd_core.system.tree.takeover import (
    CAPABILITIES,
    Rights,
    drop_inherited_acls,
    keep_group,
    loses_rights,
    permissions,
    takes_attribute,
    takes_device,
)
from dedupd_core.system.tree.unfinished import is_mark
from dedupd_core.units import MIB, counted
from jobs.backup.tree.nodes import Node
from jobs.frame.run import Findings

_NOT_HERE = (errno.EOPNOTSUPP, errno.EPERM, errno.EACCES)
"""An attribute that the file system, or this user, cannot have: worth a word, and no failure."""

_LABEL = b"security.selinux"
"""The target has its own labels, by its own policy: one that is left out is no finding."""

_SET_ID, _CAPABILITY, _DEVICE, _ATTRIBUTE = (
    "set-user-ID or set-group-ID bit",
    "capability",
    "device",
    "other attribute",
)
_PLURALS = {_CAPABILITY: "capabilities", "directory": "directories"}


class Properties:
    """Gives new nodes what belongs to them, and counts what they could not get."""

    def __init__(self, disk: Disk, findings: Findings, rights: Rights, reserved: bytes) -> None:
        """``findings`` are told of attributes that could not be set. ``reserved`` is an attribute
        that no node gets."""
        self._disk = disk
        self._findings = findings
        self._rights = rights
        self._reserved = reserved
        self._is_root = os.geteuid() == 0
        self._others_files = 0
        """How many nodes belong to this user because they could not be given to their own."""
        self._kept_directories = 0
        self._left_out: Counter[str] = Counter()
        self.without_privileges = 0
        """How many nodes have come without anything that gives rights, or not at all."""

    def report(self) -> None:
        """Once all is made: have the findings say what nodes could not get, and what is left out
        unless root asks for it."""
        if self._others_files:
            self._findings.add(
                f"{counted(self._others_files, 'name')} of other owners: created with this user as"
                " the owner; only root can set owners"
            )
        if self._kept_directories:
            self._findings.add(
                f"{_counted(self._kept_directories, 'directory')} existed with a different owner"
                " or mode, and kept it; compare them, and correct them with `chown` and `chmod`"
            )
        if self._left_out:
            kinds = ", ".join(_counted(count, kind) for kind, count in self._left_out.items())
            self._findings.add(
                f"{counted(self.without_privileges, 'name')} without privileges: {kinds} skipped;"
                " if you trust the owners, use --privileges, as root and into an empty directory"
            )

    def takes(self, node: Node) -> bool:
        """Whether a special file is made; counts a device that is left out."""
        if takes_device(node.mode, node.device, self._rights):
            return True
        self._left_out[_DEVICE] += 1
        self.without_privileges += 1
        return False

    def give(self, fd: int, path: bytes, node: Node) -> None:
        """To an open file or directory: the owner first, which takes privileges away; the times
        last, which all else changes."""
        if self._gives_away(node):
            self._disk.set_owner(fd, node.uid, node.gid)
        else:
            keep_group(self._disk, fd, node.gid)
        drop_inherited_acls(self._disk, fd)
        self._disk.set_mode(fd, self._permissions(fd, node))
        self._set_attributes(fd, path, node)
        self._disk.set_times(fd, node.atime_ns, node.mtime_ns)

    def give_special(self, directory: int, name: bytes, fd: int, path: bytes, node: Node) -> None:
        """To anything else, which ``fd`` (``O_PATH``) is open on, and which has a name in a
        directory that no user reaches."""
        disk = self._disk
        if self._gives_away(node):
            disk.set_owner_of(directory, name, node.uid, node.gid)
        if not node.is_symlink:
            drop_inherited_acls(disk, fd)
            disk.set_mode_of(fd, self._permissions(fd, node))
        self._set_attributes(fd, path, node)
        disk.set_times_of(directory, name, node.atime_ns, node.mtime_ns)

    def keep(self, fd: int, node: Node) -> None:
        """Leave a directory that existed as it is, except for its times; counts one whose owner or
        mode is another one than that of the node."""
        there = os.fstat(fd)
        same_group = there.st_gid == node.gid
        is_same = there.st_mode & 0o7777 == permissions(
            node.mode, self._rights, same_group=same_group
        )
        if self._is_root:
            is_same &= same_group and there.st_uid == node.uid
        self._kept_directories += not is_same
        if there.st_uid == node.uid or not self._is_root:
            self._disk.set_times(fd, node.atime_ns, node.mtime_ns)

    def _gives_away(self, node: Node) -> bool:
        """Whether a node can be given to its owner; counts those that cannot, and should."""
        is_others = (node.uid, node.gid) != (os.geteuid(), os.getegid())
        self._others_files += is_others and not self._is_root
        return self._is_root

    def _permissions(self, fd: int, node: Node) -> int:
        if loses_rights(node.mode, self._rights):
            self._left_out[_SET_ID] += 1
        return permissions(node.mode, self._rights, same_group=_group(fd) == node.gid)

    def _set_attributes(self, fd: int, path: bytes, node: Node) -> None:
        """Counts the node, too, if anything was left out that gives rights."""
        same_group = _group(fd) == node.gid
        lacks = loses_rights(node.mode, self._rights)
        for name, value in node.attributes:
            if is_mark(name):
                continue
            if name == self._reserved:
                self._findings.add(f"{show_path(path)}: {_without(name)}: only stubs can have it")
                continue
            if not takes_attribute(name, self._rights, same_group=same_group):
                if name != _LABEL:
                    self._left_out[_CAPABILITY if name == CAPABILITIES else _ATTRIBUTE] += 1
                    lacks = True
                continue
            try:
                self._disk.set_attribute_of(fd, name, value)
            except OSError as error:
                if error.errno not in _NOT_HERE and not _is_full_of_attributes(fd, error):
                    raise
                self._findings.add(f"{show_path(path)}: {_without(name)}: {explain(error)}")
        self.without_privileges += lacks


def _counted(count: int, kind: str) -> str:
    return f"{count} {_PLURALS[kind]}" if count > 1 and kind in _PLURALS else counted(count, kind)


def _without(name: bytes) -> str:
    return f"restored without its attribute {show_path(name)}"


def _group(fd: int) -> int:
    return os.stat(fd).st_gid


def _is_full_of_attributes(fd: int, error: OSError) -> bool:
    """Whether the file alone has no room for one more attribute: the stub's may be one more than it
    had where it comes from. A full disk is another matter."""
    if error.errno == errno.E2BIG:
        return True
    return error.errno == errno.ENOSPC and free_space(fd).free_bytes > MIB
