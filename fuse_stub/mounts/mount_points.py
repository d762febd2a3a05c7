"""Mount points: checking whether the mount process is alive, and unmounting."""

import errno
import os
import subprocess
import time
from contextlib import suppress

from dedupd_core.errors import Busy, UsageError
from dedupd_core.system import mount_table
from dedupd_core.system.files import opened
from dedupd_core.system.paths import show_text
from dedupd_core.volume.enabling.base import left_in_place

COVERED_SHOWN = 5
"""Names in a message: enough to recognise the files."""


_BUSY_POLL_S = 0.05
_BUSY_TRIES = 10
"""The number of attempts to unmount a busy mount: half a second in total."""

_CANCELED_POLL_S = 0.001
_CANCELED_MAX = 1000
"""When a process dies, the kernel removes its rings before it ends the mount."""


def is_dead(point: str) -> bool:
    """Return whether the process that served a mount is dead."""
    for _ in range(_CANCELED_MAX):
        try:
            # The kernel would answer a stat from its cache.
            os.statvfs(point)
        except OSError as error:
            if error.errno != errno.ECANCELED:
                return error.errno in (errno.ENOTCONN, errno.ECONNABORTED)
            # A ring that was about to get the request was removed: retry.
            time.sleep(_CANCELED_POLL_S)
        else:
            return False
    return True


def is_dead_mount(path: str) -> bool:
    """Return whether the mount of a killed process is at ``path``."""
    point = os.path.abspath(path)
    points = [mount.point for mount in mount_table.volumes()] + mount_table.snapshot_points()
    return point in points and is_dead(point)


def clear_dead_mount(path: str) -> None:
    """Unmount all mounts of killed processes at ``path``; then users see the directory below."""
    while is_dead_mount(path):
        detach(os.path.abspath(path), lazily=True)


def detach(point: str, *, lazily: bool) -> None:
    """Unmount ``point``; ``lazily`` even while it is in use. Raises Busy, UsageError.

    Monitoring tools use every mount for a moment, so this retries before it raises Busy.
    """
    for _ in range(_BUSY_TRIES):
        reason = _refusal(point, lazily=lazily)
        if not reason:
            return
        if "busy" not in reason:
            raise UsageError(f"{point}: cannot be unmounted: {reason.splitlines()[-1]}")
        time.sleep(_BUSY_POLL_S)
    raise Busy(f"{point}: in use; `fuser -vm {point}` lists the processes")


def _refusal(point: str, *, lazily: bool) -> str:
    """Try to unmount ``point`` once. Returns the reason of a refusal, or an empty string."""
    command = ["umount", *(["-l"] if lazily else []), "--", point]
    if os.geteuid() != 0:
        command = ["fusermount3", "-u", *(["-z"] if lazily else []), "--", point]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ""
    return done.stderr.strip() or str(done.returncode)


def covered(point: str) -> str:
    """Return a message about files next to ``.dedupd`` that a mount would hide, or "". Such files
    were made while the volume was not mounted."""
    try:
        with opened(os.open(point, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
            names = sorted(set(os.listdir(fd)) - set(map(os.fsdecode, left_in_place(fd))))
    except OSError:
        return ""  # a dead mount already hides them
    if not names:
        return ""
    more = ", …" if len(names) > COVERED_SHOWN else ""
    return show_text(
        f"{point}: written here while the volume was not mounted, and hidden while it is mounted:"
        f" {', '.join(names[:COVERED_SHOWN])}{more}"
    )


READ_AHEAD_KIB = 1024
"""Read-ahead of the kernel, and the size of its requests. Its default is 128 KiB; a request costs
some 30 µs, for any length."""


def device_of(path: str) -> str:
    """Return the device of a mount, as ``major:minor``. Raises OSError."""
    device = os.stat(path).st_dev
    return f"{os.major(device)}:{os.minor(device)}"


def read_ahead_more(device: str) -> None:
    """Raise the read-ahead of a mount. Without the right to do that, the default stays."""
    path = f"/sys/class/bdi/{device}/read_ahead_kb"
    with suppress(OSError), open(path, "w") as file:
        file.write(str(READ_AHEAD_KIB))
