"""The room on a disk: what is free beyond the reserve."""

import os
from pathlib import Path

from dedupd_core.config.reserve import Reserve
from tests.support.lab import write_out


def reserve_bytes(disk: Path) -> int:
    """The default reserve of a disk."""
    space = os.statvfs(disk)
    return Reserve().bytes_of(space.f_blocks * space.f_frsize)


def room_bytes(disk: Path) -> int:
    """Negative where the reserve was touched."""
    space = os.statvfs(disk)
    return space.f_bavail * space.f_frsize - reserve_bytes(disk)


def leave_room(disk: Path, left_bytes: int) -> Path:
    """Somebody takes all space of a disk but the reserve and so much: that one's file."""
    write_out(disk)
    path, taken_bytes = disk / "somebody's", room_bytes(disk) - left_bytes
    with open(path, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, taken_bytes)
    return path
