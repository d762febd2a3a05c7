"""Whether a directory can become a volume as it lies: everything that is looked at before the first
name moves."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from dedupd.errors import Busy, UsageError
from dedupd.system import mount_table
from dedupd.system.file_system import is_protected
from dedupd.system.files import opened
from dedupd.system.path_users import occupants
from dedupd.system.paths import show_path, show_text
from dedupd.volume.volume import BASE_NAME

LEFT_IN_PLACE = frozenset((BASE_NAME.encode(), b"lost+found"))
"""``lost+found`` belongs to the file system's own checker."""

ONE_FILE_SYSTEM = (
    "programs that stay on one file system (rsync -x, --one-file-system, onefs, find -xdev) pass"
    " over a volume, which is a mount point: name it in them by itself; see docs/mount.md"
)
"""Told where a volume is made, and whenever it is looked at."""

SHOWN_MAX = 10
"""Names in one message."""

_SYSTEM = ("/boot", "/dev", "/etc", "/proc", "/run", "/sys", "/usr")
"""Nothing in them can be out of reach for a moment without harm to the machine."""
_PROGRAMS = "/var/lib"
"""Has a directory of each program, whose state is as delicate. Below those may lie what users
would call files, like images of virtual machines."""


class Inside(NamedTuple):
    """Something below a directory that cannot be in a volume: another file system, or a volume."""

    path: str
    kind: str
    remedy: str


def refuse_inside_volume(root: str, path: str) -> None:
    """Raises UsageError where ``root`` (absolute, no links) lies in a volume, mounted or not."""
    mount = mount_table.find(root)
    if mount is not None:
        raise UsageError(f"{path}: lies in the mounted volume {mount.point}")
    parent = root
    while parent != "/":
        if os.path.basename(parent) == BASE_NAME:
            raise UsageError(f"{path}: lies inside the store of another volume")
        parent = os.path.dirname(parent)
        if os.path.exists(os.path.join(parent, BASE_NAME, "volume.json")):
            raise UsageError(f"{path}: lies in the volume {parent}; volumes cannot be nested")


def refuse_mounted(is_mounted: bool, path: str) -> None:
    """Raises Busy where a mount covers the volume that was found at ``path``."""
    if is_mounted:
        raise Busy(f"{path}: it is mounted; unmount it first: `dedupd umount {path}`")


def refuse_place(root: str, path: str) -> None:
    """Raises UsageError where no volume may be at ``root`` (absolute, no links), forced or not."""
    if root == "/":
        raise UsageError(
            "/: the root directory cannot be a volume; choose the directory of a share"
        )
    for place in map(os.path.realpath, (*_SYSTEM, _PROGRAMS)):
        lies_in = root == place or root.startswith(place + "/")
        if place == os.path.realpath(_PROGRAMS):
            lies_in = place in (root, os.path.dirname(root))
        if lies_in or place.startswith(root + "/"):
            raise UsageError(
                f"{path}: {'lies in' if lies_in else 'has in it'} {place}, which programs of this"
                " machine need at all times; choose the directory of a share"
            )


def refuse_content(root: str, root_fd: int, path: str) -> None:
    """Raises UsageError where anything below ``root`` could not be moved, or not be part of the
    volume; the message names each, and what to do."""
    found = list(things_inside(root))
    if found:
        raise UsageError(f"{path}: nothing was changed: {described(found)}")
    protected = [show_path(name) for name in sorted(protected_entries(root_fd))]
    if protected:
        raise UsageError(
            f"{path}: nothing was changed: immutable or append-only, and so cannot be moved:"
            f" {shortened(protected)}; take that away (`chattr -i -a`), and run the command again"
        )
    refuse_occupants(root)


def things_inside(root: str, way: str | None = None) -> Iterator[Inside]:
    """Volumes, mounts and subvolumes of btrfs below a directory (absolute, no links). ``way``: by
    which it is reached where a mount hides it."""
    way = way or root
    device = os.stat(way).st_dev
    mounts = set(mount_table.inside(root))
    for point in sorted(mounts):
        yield Inside(point, "a mount", f"`umount {point}`")
    for reached, names, _ in os.walk(way):
        directory = root + reached.removeprefix(way)
        if BASE_NAME in names:
            if os.path.exists(os.path.join(reached, BASE_NAME, "volume.json")):
                yield Inside(directory, "a volume", f"`dedupd disable {directory}`")
            names.remove(BASE_NAME)
        for name in tuple(names):
            path = os.path.join(directory, name)
            with suppress(OSError):  # gone meanwhile
                if path in mounts:
                    names.remove(name)
                elif not stat.S_ISLNK(
                    (status := os.lstat(os.path.join(reached, name))).st_mode
                ) and (status.st_dev != device):
                    names.remove(name)
                    yield Inside(path, "a subvolume", "make it a directory, or a volume of its own")


def described(found: list[Inside]) -> str:
    """What there is below a directory, with the remedy of each."""
    parts = [show_text(f"{one.path} is {one.kind} ({one.remedy})") for one in found]
    return f"a volume has one file system and no other volume in it, but {shortened(parts)}"


def shortened(names: list[str]) -> str:
    """Names in a row, as many as a message has room for, and how many more there are."""
    more = f", and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
    return ", ".join(names[:SHOWN_MAX]) + more


def protected_entries(root_fd: int) -> Iterator[bytes]:
    """Entries of a directory that are immutable or append-only."""
    for name in map(os.fsencode, os.listdir(root_fd)):
        if name in LEFT_IN_PLACE:
            continue
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            mode = os.stat(name, dir_fd=root_fd, follow_symlinks=False).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                continue
            with opened(os.open(name, flags, dir_fd=root_fd)) as fd:
                if is_protected(fd):
                    yield name
        except OSError as error:
            # Gone, leased, or not this user's to read: moving it will tell.
            if error.errno not in (errno.ENOENT, errno.EAGAIN, errno.EACCES, errno.EPERM):
                raise


def refuse_occupants(root: str) -> None:
    """Processes that have a part of the directory open would see the stubs in it as zeros."""
    for found in occupants(root):
        raise UsageError(
            f"{root}: {found}, and would see files without their content once they are stubs; end"
            " that, and run the command again"
        )
