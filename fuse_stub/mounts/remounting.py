"""Changes the options of a running mount (``mount -o remount``)."""

import errno
import os
from contextlib import suppress
from dataclasses import dataclass

from dedupd_core.errors import Busy, UsageError
from dedupd_core.system import mount_table
from dedupd_core.system.control_socket import QUESTION_TIMEOUT_S, ControlClient, socket_path
from dedupd_core.system.files import opened
from fuse_stub.mounts import over_mount
from fuse_stub.mounts.mount_options import AccessTimes, MountOptions
from fuse_stub.mounts.private_mount import set_times, times_shown


@dataclass(frozen=True, slots=True)
class _Flag:
    """One property of a mount, in the forms of statvfs(3) and mount(2)."""

    shown: int
    set: int


_ST_NOSYMFOLLOW = 0x2000
"""Python has no name for it."""

_READ_ONLY = _Flag(os.ST_RDONLY, 1)
_NO_SUID = _Flag(os.ST_NOSUID, 2)
_NO_DEV = _Flag(os.ST_NODEV, 4)
_NO_EXEC = _Flag(os.ST_NOEXEC, 8)
_SYNC = _Flag(os.ST_SYNCHRONOUS, 16)
_NO_LINKS = _Flag(_ST_NOSYMFOLLOW, 256)
_NO_DIRECTORY_TIMES = _Flag(os.ST_NODIRATIME, 2048)
_TIMES = {
    AccessTimes.NEVER: _Flag(os.ST_NOATIME, 1024),
    AccessTimes.RELATIVE: _Flag(os.ST_RELATIME, 1 << 21),
    AccessTimes.ALWAYS: _Flag(0, 1 << 24),
}


def remount(point: str, options: MountOptions, *, is_complete: bool = False) -> None:
    """Change those options of the mount at ``point`` that are in ``options``.

    ``is_complete``: reset options that are not listed to their defaults, as mount(8) does; it still
    keeps access times.

    Raises UsageError for options that cannot change while it runs, Busy if files are open for
    writing, and the errors of requests to the mount process.
    """
    if options.cache_bytes is not None or options.snapshot or options.force:
        raise UsageError(
            f"{point}: `cache`, `snapshot` and `force` cannot be changed while it is mounted;"
            " unmount it, then mount it with these options"
        )
    if point in mount_table.snapshot_points():
        _require_writable(point, options, is_read_only=True)
        _set_flags(point, options, os.statvfs(point).f_flag)
        return
    found = [mount for mount in mount_table.volumes() if mount.point == point]
    if not found:
        raise UsageError(f"{point}: no volume is mounted here")
    with ControlClient(socket_path(found[-1].volume), QUESTION_TIMEOUT_S) as client:
        _require_writable(point, options, is_read_only=client.call("status").get("read_only"))
        shown = os.statvfs(point).f_flag
        _set_flags(point, options, _by_default(client, shown) if is_complete else shown)
        _change_private(client, options)
        client.call("remount", options=options.text)


def _change_private(client: ControlClient, options: MountOptions) -> None:
    """Change the private mount of the mount process, which may not be allowed to do so itself. If
    this fails too, the process reports the reason."""
    _, fds = client.call_for_fds("own_mounts")
    try:
        with suppress(OSError):
            if fds:
                set_times(fds[-1], options)
    finally:
        for fd in fds:
            os.close(fd)


def _by_default(client: ControlClient, shown: int) -> int:
    """Return the default flags of a mount: those of the file system below, with unchanged access
    times."""
    base_fd = client.volume_fd()
    with opened(base_fd):
        below = os.fstatvfs(base_fd).f_flag
    changed = os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC
    return (shown & ~(changed | os.ST_SYNCHRONOUS | _ST_NOSYMFOLLOW)) | (below & changed)


def _require_writable(point: str, options: MountOptions, *, is_read_only: bool | None) -> None:
    if is_read_only and options.read_only is False:
        raise UsageError(
            f"{point}: was mounted read-only, without files open for writing; unmount it, then"
            " mount it again"
        )


def _set_flags(point: str, options: MountOptions, otherwise: int) -> None:
    """``otherwise``: the flags for options that are not requested."""
    asked = {
        _READ_ONLY: options.read_only,
        _NO_SUID: _not(options.suid),
        _NO_DEV: _not(options.dev),
        _NO_EXEC: _not(options.exec),
        _SYNC: options.sync,
        _NO_LINKS: _not(options.symfollow),
        _NO_DIRECTORY_TIMES: _not(options.diratime),
    }
    flags = 0
    for flag, value in asked.items():
        if value or (value is None and otherwise & flag.shown):
            flags |= flag.set
    flags |= _TIMES[options.access_times or times_shown(otherwise)].set
    try:
        over_mount.remount(point, flags)
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise Busy(
                f"{point}: files are open for writing; `fuser -vm {point}` lists the processes"
            ) from error
        raise


def _not(value: bool | None) -> bool | None:
    return None if value is None else not value
