"""Owner, mode, attributes and times of new nodes, as far as the rights of a restore allow."""

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
"""Errors if the file system, or this user, cannot set an attribute: reported, but no failure."""

_LABEL = b"security.selinux"
"""The target has its own labels, by its own policy: a skipped label is not reported."""

_SET_ID, _CAPABILITY, _DEVICE, _ATTRIBUTE = (
    "set-user-ID or set-group-ID bit",
    "capability",
    "device",
    "other attribute",
)
_PLURALS = {_CAPABILITY: "capabilities", "directory": "directories"}


class Properties:
    """Sets the properties of new nodes, and counts those that could not be set."""

    def __init__(self, disk: Disk, findings: Findings, rights: Rights, reserved: bytes) -> None:
        """``findings`` gets attributes that could not be set. No node gets the attribute
        ``reserved``."""
        self._disk = disk
        self._findings = findings
        self._rights = rights
        self._reserved = reserved
        self._is_root = os.geteuid() == 0
        self._others_files = 0
        """Number of nodes that belong to this user because their owner could not be set."""
        self._kept_directories = 0
        self._left_out: Counter[str] = Counter()
        self.without_privileges = 0
        """Number of nodes that were skipped, or made without anything that gives rights."""

    def report(self) -> None:
        """Report, at the end, the properties that could not be set or need a request of root."""
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
        """Return whether a special file is made; count skipped devices."""
        if takes_device(node.mode, node.device, self._rights):
            return True
        self._left_out[_DEVICE] += 1
        self.without_privileges += 1
        return False

    def give(self, fd: int, path: bytes, node: Node) -> None:
        """Set the properties of an open file or directory. The owner is first, because setting it
        removes privileges. The times are last, because all other steps change them."""
        if self._gives_away(node):
            self._disk.set_owner(fd, node.uid, node.gid)
        else:
            keep_group(self._disk, fd, node.gid)
        drop_inherited_acls(self._disk, fd)
        self._disk.set_mode(fd, self._permissions(fd, node))
        self._set_attributes(fd, path, node)
        self._disk.set_times(fd, node.atime_ns, node.mtime_ns)

    def give_special(self, directory: int, name: bytes, fd: int, path: bytes, node: Node) -> None:
        """Set the properties of another node, with ``fd`` (``O_PATH``) open on it. No user may
        reach its ``directory``."""
        disk = self._disk
        if self._gives_away(node):
            disk.set_owner_of(directory, name, node.uid, node.gid)
        if not node.is_symlink:
            drop_inherited_acls(disk, fd)
            disk.set_mode_of(fd, self._permissions(fd, node))
        self._set_attributes(fd, path, node)
        disk.set_times_of(directory, name, node.atime_ns, node.mtime_ns)

    def keep(self, fd: int, node: Node) -> None:
        """Keep an existing directory unchanged, except for its times. Count it if its owner or mode
        differs from the node's."""
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
        """Return whether this user can set owners; if not, count a node of another owner."""
        is_others = (node.uid, node.gid) != (os.geteuid(), os.getegid())
        self._others_files += is_others and not self._is_root
        return self._is_root

    def _permissions(self, fd: int, node: Node) -> int:
        if loses_rights(node.mode, self._rights):
            self._left_out[_SET_ID] += 1
        return permissions(node.mode, self._rights, same_group=_group(fd) == node.gid)

    def _set_attributes(self, fd: int, path: bytes, node: Node) -> None:
        """Set the attributes. Count the node if anything that gives rights was skipped."""
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
    """Return whether only the file lacks room for another attribute, not the disk: a stub may have
    one attribute more than its original."""
    if error.errno == errno.E2BIG:
        return True
    return error.errno == errno.ENOSPC and free_space(fd).free_bytes > MIB
