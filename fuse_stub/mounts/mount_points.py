"""Mount points: whether the process that serves one is alive, and taking it away."""

import errno
import os
import subprocess

from dedupd.errors import Busy, UsageError
from dedupd.system import mount_table
from dedupd.system.paths import show_text
from dedupd.volume.volume import BASE_NAME

COVERED_SHOWN = 5
"""So many names are enough to recognise what it is."""


def is_dead(point: str) -> bool:
    """Whether the process that served a mount is gone."""
    try:
        # The kernel would answer a stat from what it remembers.
        os.statvfs(point)
    except OSError as error:
        return error.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    return False


def is_dead_mount(path: str) -> bool:
    """Whether the mount of a killed process is at ``path``."""
    point = os.path.abspath(path)
    return any(mount.point == point for mount in mount_table.volumes()) and is_dead(point)


def clear_dead_mount(path: str) -> None:
    """Take away what killed processes left mounted at ``path``: users see what is below then."""
    while is_dead_mount(path):
        detach(os.path.abspath(path), lazily=True)


def detach(point: str, *, lazily: bool) -> None:
    """Unmount what is at ``point``; lazily, also while it is in use. Raises Busy, UsageError."""
    command = ["umount", *(["-l"] if lazily else []), "--", point]
    if os.geteuid() != 0:
        command = ["fusermount3", "-u", *(["-z"] if lazily else []), "--", point]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    reason = done.stderr.strip().splitlines()
    if "busy" in done.stderr:
        raise Busy(f"{point}: in use; `fuser -vm {point}` shows by whom")
    raise UsageError(f"{point}: cannot be unmounted: {reason[-1] if reason else done.returncode}")


def covered(point: str) -> str:
    """What people are to hear of entries that a mount over the volume itself hides; empty where
    there are none. They came to be while it was not mounted."""
    try:
        names = sorted(set(os.listdir(point)) - {BASE_NAME})
    except OSError:
        return ""  # a dead mount, which hides them already
    if not names:
        return ""
    more = ", …" if len(names) > COVERED_SHOWN else ""
    return show_text(
        f"{point}: written here while the volume was not mounted, and out of sight while it is:"
        f" {', '.join(names[:COVERED_SHOWN])}{more}"
    )
