"""The private mount of the file system below, through which only the mount process opens files.

The kernel decides per mount whether reads update access times, and whether changes are allowed. So
a mount process has its own mount, at no place, with the requested options, and opens all files
through it. Other programs see the original mount.
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
    """The private mount of one mount process. ``base_fd``: the ``.dedupd`` in it; ``below_fd``: the
    same in the mount of other programs; ``mount_fd``: None if the process has no private mount."""

    def __init__(self, base_fd: int, below_fd: int, mount_fd: int | None) -> None:
        self.base_fd = base_fd
        self.below_fd = below_fd
        self.mount_fd = mount_fd
        self.options = NO_OPTIONS
        """All options requested since it was mounted."""

    def change(self, options: MountOptions) -> None:
        """Change the access time options. Raises UsageError.

        A process in a unit may not change its mount; the service has already changed it.
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
        """Make it read-only, permanently. No file is open for writing. Raises UsageError."""
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
    """Yield a private mount of the ``.dedupd`` that is open as ``below_fd``.

    It has ``ro`` and the access times of ``options``. If a private mount is impossible and not
    needed, this yields the mount of ``below_fd``. At the end ``below_fd`` is closed; until then the
    file system below cannot be unmounted. Raises UsageError.
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
    """Like :func:`private_mount`, for a mount that another process has made with ``options``.

    Closes both descriptors. ``mount_fd`` stays open until then: after all processes close it, the
    mount cannot be changed.
    """
    with opened(below_fd), opened(mount_fd), opened(_root_of(mount_fd)) as base_fd:
        private = PrivateMount(base_fd, below_fd, mount_fd)
        private.change(options)
        yield private


def _root_of(mount_fd: int) -> int:
    return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=mount_fd)


def times_of(options: MountOptions) -> tuple[int, int]:
    """Return the mount attributes for the access times of ``options``, and their mask."""
    attributes = mask = 0
    if options.access_times is not None:
        attributes |= _TIMES[options.access_times]
        mask |= over_mount.ANY_TIMES
    if options.diratime is not None:
        attributes |= 0 if options.diratime else over_mount.NO_DIRECTORY_TIMES
        mask |= over_mount.NO_DIRECTORY_TIMES
    return attributes, mask


def set_times(mount_fd: int, options: MountOptions) -> None:
    """Set the access times of a private mount as in ``options``. Raises OSError."""
    attributes, mask = times_of(options)
    if mask:
        over_mount.set_attributes(mount_fd, attributes, mask)


def show(mount: str | int, options: MountOptions, below_fd: int) -> None:
    """Make a mount (its point or descriptor) show its access time rule, and follow links or not.
    libfuse has no options for these. Raises UsageError."""
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
    """Return the access time rule of a mount, by its flags from statvfs(3)."""
    if flags & os.ST_NOATIME:
        return AccessTimes.NEVER
    return AccessTimes.RELATIVE if flags & os.ST_RELATIME else AccessTimes.ALWAYS
