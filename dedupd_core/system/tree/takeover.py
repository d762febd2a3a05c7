"""Rules of a root program for restoring files that users can change (docs/design/privileges.md).

A user's file determines the owner, mode and attributes to restore, and a user can change the
directories in which a root program restores it. So rules limit what is restored, and where.
"""

import enum
import os
import stat
from contextlib import suppress

from dedupd_core.errors import UsageError
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import opened
from dedupd_core.system.paths import show_path

PERMISSIONS = 0o777
SET_ID = 0o6000
CAPABILITIES = b"security.capability"

_OWNED = (b"user.", b"system.posix_acl_")
"""Attributes that the owner of a file can set."""

_OF_DIRECTORIES = stat.S_ISGID | stat.S_ISVTX

ACCESS_ACL = b"system.posix_acl_access"
DEFAULT_ACL = b"system.posix_acl_default"

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Rights(enum.Enum):
    """The rights with which a file is restored."""

    USER = "user"
    """The rights of its owner: owner and group stay those of the new file."""
    ROOT = "root"
    """The rights of root: with owner and group, and nothing that the owner could not set."""
    PRIVILEGED = "privileged"
    """As root requests: with set-user-ID and set-group-ID bits, file capabilities and labels."""


def rights_of(uid: int, *, privileges: bool) -> Rights:
    """Return the rights with which a user restores a file. Raises UsageError."""
    if uid != 0 and privileges:
        raise UsageError("only root restores set-user-ID bits and capabilities (--privileges)")
    if uid != 0:
        return Rights.USER
    return Rights.PRIVILEGED if privileges else Rights.ROOT


def keep_group(disk: Disk, fd: int, gid: int) -> None:
    """Assign a new file of a user other than root to a group, if the kernel finds the user in it.
    Otherwise the file stays in the group that its directory gives to new files."""
    if os.geteuid() != 0:
        with suppress(OSError):
            disk.set_owner(fd, -1, gid)


def permissions(mode: int, rights: Rights, *, same_group: bool) -> int:
    """Return the mode of a restored file or directory.

    If it gets another group, members of that group get the permissions of others. A directory keeps
    the bits that limit deletion and pass on its group: they give no program any rights, and without
    the first one users could delete each other's files.
    """
    if rights is Rights.PRIVILEGED:
        return stat.S_IMODE(mode)
    kept = PERMISSIONS | _OF_DIRECTORIES if stat.S_ISDIR(mode) else PERMISSIONS
    mode &= kept
    return mode if same_group else mode & ~0o070 | mode & (mode & 0o007) << 3


def loses_rights(mode: int, rights: Rights) -> bool:
    """Return whether a file or directory is restored without a bit that gives rights."""
    lost = SET_ID & ~_OF_DIRECTORIES if stat.S_ISDIR(mode) else SET_ID
    return rights is not Rights.PRIVILEGED and bool(mode & lost)


def takes_device(mode: int, device: int, rights: Rights) -> bool:
    """Return whether a special file is restored. A device gives its owner access to hardware, and
    only root can make one, except for the device 0 of an overlay."""
    is_device = stat.S_ISBLK(mode) or stat.S_ISCHR(mode)
    return rights is Rights.PRIVILEGED or not is_device or (stat.S_ISCHR(mode) and device == 0)


def takes_attribute(name: bytes, rights: Rights, *, same_group: bool) -> bool:
    """Return whether an attribute is restored. An ACL names rights of the group of its file."""
    if rights is Rights.PRIVILEGED:
        return True
    return name.startswith(_OWNED) and (same_group or name != ACCESS_ACL)


def drop_inherited_acls(disk: Disk, fd: int) -> None:
    """Remove the ACLs that a new file or directory has inherited from its directory. The owner of
    the directory has chosen the users in them. Call this before the mode is set. Raises OSError."""
    for name in map(os.fsencode, os.listxattr(b"/proc/self/fd/%d" % fd)):
        if name in (ACCESS_ACL, DEFAULT_ACL):
            disk.remove_attribute_of(fd, name)


def is_privileged(mode: int, names: list[bytes]) -> bool:
    """Return whether a file gives users who run it additional rights."""
    return bool(mode & SET_ID) or CAPABILITIES in names


def refuse_others_directory(dir_fd: int, path: bytes, uid: int) -> None:
    """Raise UsageError unless a directory belongs to root or to ``uid``. A new file in it will
    belong to ``uid``, and programs of the directory's owner may execute the file."""
    owner = os.fstat(dir_fd).st_uid
    if owner not in (0, uid):
        raise UsageError(
            f"{show_path(path or b'.')}: the directory belongs to user {owner}, the file to user"
            f" {uid}; choose a directory of root or of that user, or use --force"
        )


def make_directory_of(
    disk: Disk, parent_fd: int, name: bytes, private: bytes, uid: int, gid: int
) -> int:
    """Make a directory that a user owns, and open it.

    A user who can change the parent could exchange a new directory before it gets its owner. So it
    is made in a directory ``private`` that only this program's user can change, and moved after it
    has its owner. Raises FileExistsError, UsageError, OSError.
    """
    disk.make_dir(parent_fd, private)
    try:
        with opened(open_own_directory(parent_fd, private)) as place:
            disk.make_dir(place, name)
            made = os.open(name, _DIRECTORY, dir_fd=place)
            try:
                disk.set_owner(made, uid, gid)
                disk.rename_new(place, name, parent_fd, name)
            except BaseException:
                os.close(made)
                raise
        return made
    finally:
        remove_private(disk, parent_fd, private)


def remove_private(disk: Disk, parent_fd: int, private: bytes) -> None:
    """Remove the private directory of :func:`make_directory_of`, even after a crash.

    A directory that other users can change is not removed.
    """
    with suppress(OSError, UsageError):
        with opened(open_own_directory(parent_fd, private)) as place:
            for name in os.listdir(place):
                disk.remove_dir(place, os.fsencode(name))
        disk.remove_dir(parent_fd, private)


def open_own_directory(parent_fd: int, name: bytes) -> int:
    """Open a directory that only this program's user can change. Raises OSError, and UsageError for
    any other directory."""
    fd = os.open(name, _DIRECTORY, dir_fd=parent_fd)
    status = os.fstat(fd)
    if status.st_uid == os.geteuid() and not status.st_mode & 0o077:
        return fd
    os.close(fd)
    raise UsageError(
        f"{show_path(name)}: another user has replaced this directory; run the command again"
    )
