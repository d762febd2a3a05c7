"""The mounts of volumes, from ``/proc/self/mountinfo``."""

import os
import uuid
from dataclasses import dataclass
from typing import NamedTuple

from dedupd_core.system.paths import lies_in, unescaped

FS_TYPE = "fuse.dedupd"
SOURCE_PREFIX = "dedupd:"
SNAPSHOT_FS_TYPE = "fuse.dedupd.snapshot"
"""Of a snapshot beside the volume: no mount of the volume, so that nothing takes it for one."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted volume: its uuid and where it is mounted."""

    volume: str
    point: str


class Row(NamedTuple):
    """A mount of any kind. ``shown`` is the directory of the file system that it shows, ``device``
    ``major:minor`` of that file system, of which ``options`` are, too."""

    mount_id: str
    device: str
    shown: str
    point: str
    kind: str
    source: str
    options: set[str]


def parse_mountinfo(text: str) -> list[Row]:
    """Every mount, in the order in which they were made."""
    rows = []
    for line in text.split("\n"):
        left, _, right = line.partition(" - ")
        fields, tail = left.split(" "), right.split(" ")
        if len(fields) >= 5 and len(tail) >= 3:
            (mount_id, _, device, *paths), (kind, source, options) = fields[:5], tail[:3]
            shown, point, source = map(unescaped, (*paths, source))
            rows.append(Row(mount_id, device, shown, point, kind, source, {*options.split(",")}))
    return rows


def all_mounts(process: str = "self") -> list[Row]:
    """Every mount that a process sees."""
    path = f"/proc/{process}/mountinfo"
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return parse_mountinfo(file.read())


def _around(path: str) -> Row | None:
    """The mount that a path lies in: the innermost one, and the last of several at one place."""
    around = [row for row in all_mounts() if lies_in(path, row.point)]
    return max(reversed(around), key=lambda row: len(row.point), default=None)


def inside(directory: str) -> list[str]:
    """The mount points below a directory (absolute, no links), without the directory itself.

    A mount hides the files beneath it.
    """
    return [row.point for row in all_mounts() if row.point.startswith(directory + "/")]


def _volume_of(row: Row) -> Mount | None:
    """The volume that a mount shows; None where it is no mount of a volume, or of a stranger.

    Users choose type and source of their own FUSE mounts, but not ``user_id``, which is theirs. So
    those of root and of this user count, with a uuid as volumes have it: a socket has its name.
    """
    if row.kind != FS_TYPE or not row.source.startswith(SOURCE_PREFIX):
        return None
    volume = row.source.removeprefix(SOURCE_PREFIX)
    if not is_uuid(volume) or not row.options & {"user_id=0", f"user_id={os.geteuid()}"}:
        return None
    return Mount(volume, row.point)


def is_uuid(text: str) -> bool:
    """Whether a text is a uuid in its usual form, to the letter."""
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


def volumes() -> list[Mount]:
    """Every mounted volume, but those that other users than root serve."""
    return [mount for row in all_mounts() if (mount := _volume_of(row)) is not None]


def snapshot_points() -> list[str]:
    """Where snapshots of volumes are mounted."""
    return [row.point for row in all_mounts() if row.kind == SNAPSHOT_FS_TYPE]


def points_of(volume: str) -> list[str]:
    """Where a volume (a uuid), or a copy of it, is mounted."""
    return [mount.point for mount in volumes() if mount.volume == volume]


def find(path: str) -> Mount | None:
    """The mounted volume that ``path`` (absolute, no links) lies in."""
    row = _around(path)
    return None if row is None else _volume_of(row)


def is_automount(path: str) -> bool:
    """Whether ``path`` (absolute, no links) is a place where something is mounted as soon as
    somebody looks there: looking from the program that is to mount it would wait for ever."""
    row = _around(path)
    return row is not None and row.kind == "autofs" and row.point == path


def place_of(path: str) -> tuple[str, str]:
    """Device and path, within its file system, of a directory (absolute, no links)."""
    row = _around(path)
    if row is None:
        return "", path
    return row.device, row.shown.rstrip("/") + path[len(row.point.rstrip("/")) :] or "/"


def parts_shown(place: tuple[str, str], process: str) -> list[str]:
    """The points where a process has parts of a directory mounted, but not the whole directory."""
    device, directory = place
    return [
        row.point
        for row in all_mounts(process)
        if row.device == device
        and row.shown != directory
        and lies_in(row.shown, directory)
        and not row.shown.endswith("//deleted")
    ]


def file_system(mount_id: str, number: str) -> tuple[str, set[str]] | None:
    """Type and options of the file system of a mount, or else of a device (``major:minor``).

    None where no mount is either.
    """
    rows = all_mounts()
    of_mount = [row for row in rows if row.mount_id == mount_id]
    found = of_mount or [row for row in rows if row.device == number]
    return (found[-1].kind, found[-1].options) if found else None
