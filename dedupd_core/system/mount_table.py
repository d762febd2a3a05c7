"""The mounts of volumes, from ``/proc/self/mountinfo``."""

import os
import uuid
from dataclasses import dataclass
from typing import NamedTuple

from dedupd_core.system.paths import lies_in, unescaped

FS_TYPE = "fuse.dedupd"
SOURCE_PREFIX = "dedupd:"
SNAPSHOT_FS_TYPE = "fuse.dedupd.snapshot"
"""The type of snapshot mounts: other programs must not treat them as mounts of the volume."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted volume: its uuid and its mount point."""

    volume: str
    point: str


class Row(NamedTuple):
    """A mount of any kind. ``shown``: the directory of the file system that it shows; ``device``:
    ``major:minor`` of the file system; ``options``: those of the file system."""

    mount_id: str
    device: str
    shown: str
    point: str
    kind: str
    source: str
    options: set[str]


def parse_mountinfo(text: str) -> list[Row]:
    """Parse all mounts, in the order of mounting."""
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
    """Return every mount that a process sees."""
    path = f"/proc/{process}/mountinfo"
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return parse_mountinfo(file.read())


def _around(path: str) -> Row | None:
    """Return the mount that contains a path: the innermost, and the last at one place."""
    around = [row for row in all_mounts() if lies_in(path, row.point)]
    return max(reversed(around), key=lambda row: len(row.point), default=None)


def inside(directory: str) -> list[str]:
    """Return the mount points below a directory (absolute, no links), without the directory itself.

    A mount hides the files beneath it.
    """
    return [row.point for row in all_mounts() if row.point.startswith(directory + "/")]


def _volume_of(row: Row) -> Mount | None:
    """Return the volume of a mount; None if it is no mount of a volume, or is not trusted.

    Users choose type and source of their own FUSE mounts, but not ``user_id``, their own id. So
    only mounts of root and of this user count. The uuid must be valid, because it becomes the name
    of a socket.
    """
    if row.kind != FS_TYPE or not row.source.startswith(SOURCE_PREFIX):
        return None
    volume = row.source.removeprefix(SOURCE_PREFIX)
    if not is_uuid(volume) or not row.options & {"user_id=0", f"user_id={os.geteuid()}"}:
        return None
    return Mount(volume, row.point)


def is_uuid(text: str) -> bool:
    """Return whether a text is a uuid in exactly its usual form."""
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


def volumes() -> list[Mount]:
    """Return every mounted volume, except those that users other than root serve."""
    return [mount for row in all_mounts() if (mount := _volume_of(row)) is not None]


def snapshot_points() -> list[str]:
    """Return the mount points of snapshots of volumes."""
    return [row.point for row in all_mounts() if row.kind == SNAPSHOT_FS_TYPE]


def points_of(volume: str) -> list[str]:
    """Return the mount points of a volume (a uuid) and of its copies."""
    return [mount.point for mount in volumes() if mount.volume == volume]


def find(path: str) -> Mount | None:
    """Return the mounted volume that contains ``path`` (absolute, no links)."""
    row = _around(path)
    return None if row is None else _volume_of(row)


def is_automount(path: str) -> bool:
    """Return whether ``path`` (absolute, no links) is an automount. The program that has to mount
    there must not access it, or it would wait forever."""
    row = _around(path)
    return row is not None and row.kind == "autofs" and row.point == path


def place_of(path: str) -> tuple[str, str]:
    """Return device and path, within its file system, of a directory (absolute, no links)."""
    row = _around(path)
    if row is None:
        return "", path
    return row.device, row.shown.rstrip("/") + path[len(row.point.rstrip("/")) :] or "/"


def parts_shown(place: tuple[str, str], process: str) -> list[str]:
    """Return the points where a process has parts of a directory mounted, but not all of it."""
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
    """Return type and options of the file system of a mount, or else of a device (``major:minor``).

    None if there is no such mount either.
    """
    rows = all_mounts()
    of_mount = [row for row in rows if row.mount_id == mount_id]
    found = of_mount or [row for row in rows if row.device == number]
    return (found[-1].kind, found[-1].options) if found else None
