"""Whether a directory can become a volume as it lies: everything that is looked at before the first
name moves."""

import errno
import logging
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, count
from typing import NamedTuple

from dedupd_core.errors import Busy, UsageError
from dedupd_core.stores.ownership import is_own
from dedupd_core.system import mount_table
from dedupd_core.system.file_system import is_protected
from dedupd_core.system.files import names_in, opened
from dedupd_core.system.path_users import occupants
from dedupd_core.system.paths import show_path, show_text
from dedupd_core.volume.base_directory import BASE_NAME, is_volume, looks_like_volume, open_base
from dedupd_core.volume.enabling.base import (
    is_no_directory,
    left_in_place,
)

_log = logging.getLogger("dedupd")

ONE_FILE_SYSTEM = (
    "programs that stay on one file system (rsync -x, onefs, find -xdev) skip a volume, because"
    " it is a mount point; add it to their list of sources; see docs/guide/backup.md"
)
"""Told where a volume is made, and whenever it is looked at."""

SHOWN_MAX = 10
"""Names in one message."""

_SYSTEM = ("/boot", "/dev", "/etc", "/proc", "/run", "/sys", "/usr")
"""Nothing in them can be out of reach for a moment without harm to the machine."""
_PROGRAMS = "/var/lib"
"""Has a directory of each program, whose state is as delicate. Below those may lie what users
would call files, like images of virtual machines."""


MOUNT, SUBVOLUME, VOLUME = "a mount", "a subvolume", "a volume"


class ExcludedDirectory(NamedTuple):
    """Something below a directory that cannot be in a volume: another file system, or a volume.

    ``is_harmless``: no volume, but another user's directory that looks like one. To dedupd it is a
    directory like others.
    """

    path: str
    kind: str
    remedy: str
    is_harmless: bool = False


def in_the_way(root: str, reason: str) -> str:
    """A message about a ``.dedupd`` in a directory that is to be a volume."""
    base = os.path.join(root, BASE_NAME)
    return show_text(
        f"{base}: {reason}, and a volume needs this name; rename the entry, for example `mv -T"
        f" {base} {_free_name(root, BASE_NAME)}`, and run the command again"
    )


def _free_name(directory: str, name: str) -> str:
    """A path for an entry of users whose name is needed."""
    first = os.path.join(directory, f"{name.lstrip('.')}-of-a-user")
    paths = chain([first], (f"{first}-{number}" for number in count(2)))
    return next(path for path in paths if not os.path.lexists(path))


def refuse_base_of_others(root: str, root_fd: int) -> None:
    """Raises UsageError where an entry ``.dedupd`` is another user's, who may have forged it, or no
    directory. Users may write to the directory so far."""
    try:
        with opened(open_base(root_fd)) as base_fd:
            if not is_own(base_fd):
                uid = os.fstat(base_fd).st_uid
                raise UsageError(
                    in_the_way(root, f"belongs to user {uid}, or other users may write to it")
                )
    except FileNotFoundError:
        pass  # it has just been removed
    except OSError as error:
        if not is_no_directory(error):
            raise
        raise UsageError(in_the_way(root, "is not a directory")) from None


def collision(root: str, root_fd: int, data_fd: int, *, is_mountable: bool) -> str:
    """A message, with the way out, about an entry of the tree that has no place in the plain
    directory; empty where each has one.

    ``is_mountable``: the entry can be renamed in the mounted volume. Else no stub is left, and it
    is renamed below.
    """
    kept = left_in_place(root_fd)
    both = sorted({*names_in(data_fd)} & {*names_in(root_fd)}, key=lambda name: name not in kept)
    if not both:
        return ""
    if both[0] not in kept:
        names = shortened([show_path(name) for name in both])
        return (
            f"these names exist both in the volume and next to {BASE_NAME}, where users cannot see"
            f" them: {names}; move those in {root} away, and run the command again"
        )
    name = os.fsdecode(both[0])
    if is_mountable:
        return (
            f"{_taken(name)}: `dedupd mount {root}`, {_renaming(root, data_fd, name)},"
            f" `dedupd umount {root}`; then run the command again"
        )
    tree = os.path.join(root, BASE_NAME, "data")
    return f"{_taken(name)}: {_renaming(tree, data_fd, name)}; then run the command again"


def reserved_entry(point: str, data_fd: int) -> str:
    """A message about an entry ``.dedupd`` in a volume that is mounted at ``point``."""
    renaming = _renaming(point, data_fd, BASE_NAME)
    return f"{_taken(BASE_NAME)}: {renaming}; then run the command again"


def _taken(name: str) -> str:
    whose = "dedupd's store" if name == BASE_NAME else "the checker of the file system"
    return (
        f"the volume has an entry {name}, a name that {whose} uses in the directory itself; rename"
        " the entry in the volume"
    )


def _renaming(top: str, data_fd: int, name: str) -> str:
    """The command that gives another name to an entry of the tree, which is seen at ``top``."""
    free = os.path.basename(_free_name(f"/proc/self/fd/{data_fd}", name))
    return show_text(f"`mv -T {top}/{name} {top}/{free}`")


def refuse_inside_volume(root: str, path: str) -> None:
    """Raises UsageError where ``root`` (absolute, no links) lies in a volume, mounted or not."""
    mount = mount_table.find(root)
    if mount is not None:
        raise UsageError(f"{path}: is inside the mounted volume {mount.point}")
    parent = root
    while parent != "/":
        if os.path.basename(parent) == BASE_NAME:
            raise UsageError(f"{path}: is inside the store of another volume")
        parent = os.path.dirname(parent)
        if is_volume(parent):
            raise UsageError(f"{path}: is inside the volume {parent}; volumes cannot be nested")


def refuse_mounted(is_mounted: bool, path: str) -> None:
    """Raises Busy where a mount covers the volume that was found at ``path``."""
    if is_mounted:
        raise Busy(f"{path}: is mounted; unmount it first: `dedupd umount {path}`")


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
                f"{path}: {'is inside' if lies_in else 'contains'} {place}, which programs of this"
                " machine always need; choose the directory of a share"
            )


def refuse_content(root: str, root_fd: int, path: str) -> None:
    """Raises UsageError where anything below ``root`` could not be moved, or not be part of the
    volume; the message names each, and what to do."""
    found = list(things_inside(root))
    if any(not one.is_harmless for one in found):
        raise UsageError(f"{path}: nothing was changed: {described(found)}")
    if found:
        _log.warning("%s: %s", path, strangers(found))
    protected = [show_path(name) for name in sorted(protected_entries(root_fd))]
    if protected:
        raise UsageError(
            f"{path}: nothing was changed: entries are immutable or append-only, and cannot be"
            f" moved: {shortened(protected)}; remove the flags (`chattr -i -a`), then run the"
            " command again"
        )
    if any(name != os.fsencode(BASE_NAME) for name in names_in(root_fd)):
        refuse_occupants(root)  # which asks every process of the machine


def things_inside(root: str, way: str | None = None) -> Iterator[ExcludedDirectory]:
    """Volumes, mounts and subvolumes of btrfs below a directory (absolute, no links). ``way``: by
    which it is reached where a mount hides it."""
    way = way or root
    device = os.stat(way).st_dev
    mounts = set(mount_table.inside(root))
    for point in sorted(mounts):
        yield ExcludedDirectory(point, MOUNT, f"`umount {point}`")
    for reached, names, _ in os.walk(way):
        directory = root + reached.removeprefix(way)
        if BASE_NAME in names and is_volume(reached):
            yield ExcludedDirectory(directory, VOLUME, f"`dedupd disable {directory}`")
            names.remove(BASE_NAME)
        elif BASE_NAME in names and looks_like_volume(reached):
            yield ExcludedDirectory(directory, VOLUME, "", is_harmless=True)
        for name in tuple(names):
            path = os.path.join(directory, name)
            with suppress(OSError):  # gone meanwhile
                if path in mounts:
                    names.remove(name)
                elif not stat.S_ISLNK(
                    (status := os.lstat(os.path.join(reached, name))).st_mode
                ) and (status.st_dev != device):
                    names.remove(name)
                    yield ExcludedDirectory(
                        path, SUBVOLUME, "replace it by a directory, or a volume of its own"
                    )


def unreachable_inside(root: str, way: str) -> Iterator[ExcludedDirectory]:
    """As :func:`things_inside`, for the tree of a volume: what no user can reach there. A nested
    ``.dedupd`` is a directory like others."""
    return (one for one in things_inside(root, way) if one.kind != VOLUME)


def described(found: list[ExcludedDirectory]) -> str:
    """What there is below a directory, with the remedy of each."""
    obstacles = [one for one in found if not one.is_harmless]
    parts = [show_text(f"{one.path} is {one.kind} ({one.remedy})") for one in obstacles]
    return f"a volume has one file system and no other volume in it, but {shortened(parts)}"


def strangers(found: list[ExcludedDirectory]) -> str:
    """What to tell of directories that look like volumes of other users; empty without any."""
    paths = sorted(show_text(one.path) for one in found if one.is_harmless)
    if not paths:
        return ""
    return (
        f"{shortened(paths)}: {BASE_NAME} in it belongs to another user, and becomes an ordinary"
        " directory; a volume of that user can no longer be mounted"
    )


def shortened(names: list[str]) -> str:
    """Names in a row, as many as a message has room for, and how many more there are."""
    more = f", and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
    return ", ".join(names[:SHOWN_MAX]) + more


def protected_entries(root_fd: int) -> Iterator[bytes]:
    """Entries of a directory that are immutable or append-only."""
    for name in {*names_in(root_fd)} - left_in_place(root_fd):
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
    """Processes that have a part of the directory open would see the stubs in it as zeros. Calls
    that wait for its lock have ``.dedupd`` open for a moment."""
    for found in occupants(root, ignored=os.path.join(root, BASE_NAME)):
        raise UsageError(
            f"{root}: {found}, and would see stubs without their content; stop that use, and run"
            " the command again"
        )
