"""The mount of the file system below by which a mount process alone reaches the files.

Whether a read moves the access time is decided by the kernel for each mount of a file system, and
so is whether it can be changed. So a mount process has one of its own, which is at no place, with
the options that were asked for: what it opens lies in it. Others see the mount that they know.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from dedupd_core.errors import UsageError
from dedupd_core.system.files import opened
from fuse_stub.mounts import over_mount
from fuse_stub.mounts.mount_options import NO_OPTIONS, AccessTimes, MountOptions

_TIMES = {
    AccessTimes.RELATIVE: over_mount.RELATIVE_TIMES,
    AccessTimes.NEVER: over_mount.NO_TIMES,
    AccessTimes.ALWAYS: over_mount.ALL_TIMES,
}


class PrivateMount:
    """That of one mount process. ``base_fd`` is the ``.dedupd`` in it, ``below_fd`` the same in the
    mount that others use; ``mount_fd`` is None where the process has none of its own."""

    def __init__(self, base_fd: int, below_fd: int, mount_fd: int | None) -> None:
        self.base_fd = base_fd
        self.below_fd = below_fd
        self.mount_fd = mount_fd
        self.options = NO_OPTIONS
        """All that was asked for since it was mounted."""

    def change(self, options: MountOptions) -> None:
        """Have the access times of ``options`` from here on. Raises UsageError.

        A process in a unit has no right to change its mount. There others have done it before.
        """
        attributes, mask = times_of(options)
        if mask and not self._is_as(options):
            self._set(attributes, mask, options)
        self.options = self.options.changed_by(options)

    def _is_as(self, options: MountOptions) -> bool:
        flags = os.fstatvfs(self.base_fd).f_flag
        times, diratime = options.access_times, options.diratime
        return (times is None or times is times_shown(flags)) and (
            diratime is None or diratime is not bool(flags & os.ST_NODIRATIME)
        )

    def refuse_changes(self, options: MountOptions) -> None:
        """Have it be read-only, for good. Nothing is open for writing. Raises UsageError."""
        self._set(over_mount.READ_ONLY, over_mount.READ_ONLY, options)

    def _set(self, attributes: int, mask: int, options: MountOptions) -> None:
        try:
            if self.mount_fd is None:
                raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
            over_mount.set_attributes(self.mount_fd, attributes, mask)
        except OSError as error:
            raise UsageError(
                f"{options.text}: a read-only mount, or access times that differ from the file"
                f" system below, need root and Linux 5.12 ({error.strerror})"
            ) from error


@contextmanager
def private_mount(below_fd: int, options: MountOptions) -> Iterator[PrivateMount]:
    """A mount of the ``.dedupd`` that is open as ``below_fd``, with ``ro`` and the access times of
    ``options``; where there can be none, and none is needed, that which ``below_fd`` lies in.

    ``below_fd`` is closed at the end; until then the file system below cannot be unmounted. Raises
    UsageError.
    """
    with opened(below_fd), ExitStack() as stack:
        private = PrivateMount(below_fd, below_fd, None)
        with suppress(OSError):
            mount_fd = stack.enter_context(opened(over_mount.private_mount(below_fd)))
            base_fd = stack.enter_context(opened(_root_of(mount_fd)))
            private = PrivateMount(base_fd, below_fd, mount_fd)
        private.change(options)
        if options.read_only:
            private.refuse_changes(options)
        yield private


@contextmanager
def given_mount(mount_fd: int, below_fd: int, options: MountOptions) -> Iterator[PrivateMount]:
    """As :func:`private_mount`, of a mount that another process has made with ``options``.

    Closes both descriptors. Before that the mount could not be changed any more if ``mount_fd`` was
    closed in all processes.
    """
    with opened(below_fd), opened(mount_fd), opened(_root_of(mount_fd)) as base_fd:
        private = PrivateMount(base_fd, below_fd, mount_fd)
        private.change(options)
        yield private


def _root_of(mount_fd: int) -> int:
    return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=mount_fd)


def times_of(options: MountOptions) -> tuple[int, int]:
    """The attributes of a mount for the access times of ``options``, and the mask of these."""
    attributes = mask = 0
    if options.access_times is not None:
        attributes |= _TIMES[options.access_times]
        mask |= over_mount.ANY_TIMES
    if options.diratime is not None:
        attributes |= 0 if options.diratime else over_mount.NO_DIRECTORY_TIMES
        mask |= over_mount.NO_DIRECTORY_TIMES
    return attributes, mask


def set_times(mount_fd: int, options: MountOptions) -> None:
    """Have a private mount have the access times of ``options``. Raises OSError."""
    attributes, mask = times_of(options)
    if mask:
        over_mount.set_attributes(mount_fd, attributes, mask)


def show(mount: str | int, options: MountOptions, below_fd: int) -> None:
    """Have a mount (its point, or a descriptor of it) say when access times are moved, and follow
    links or not: libfuse knows no words for these. Raises UsageError."""
    attributes, mask = times_of(options)
    if not mask & over_mount.ANY_TIMES:
        attributes |= _TIMES[times_shown(os.fstatvfs(below_fd).f_flag)]
        mask |= over_mount.ANY_TIMES
    if options.symfollow is not None:
        attributes |= 0 if options.symfollow else over_mount.NO_LINKS
        mask |= over_mount.NO_LINKS
    try:
        over_mount.set_attributes(mount, attributes, mask)
    except OSError as error:
        if options.symfollow is False:
            raise UsageError(
                f"{options.text}: `nosymfollow` needs root and Linux 5.12 ({error.strerror})"
            ) from error


def times_shown(flags: int) -> AccessTimes:
    """Those of a mount, by its flags as statvfs(3) shows them."""
    if flags & os.ST_NOATIME:
        return AccessTimes.NEVER
    return AccessTimes.RELATIVE if flags & os.ST_RELATIME else AccessTimes.ALWAYS
