"""The mounts of volumes, from ``/proc/self/mountinfo``."""

import os
from collections.abc import Iterator
from dataclasses import dataclass

FS_TYPE = "fuse.dedupd"
SOURCE_PREFIX = "dedupd:"


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted volume: its uuid and where it is mounted."""

    volume: str
    point: str


def _unescape(text: str) -> str:
    raw = text.encode("utf-8", "surrogateescape")
    for code in (b"040", b"011", b"012", b"134"):
        raw = raw.replace(b"\\" + code, bytes([int(code, 8)]))
    return os.fsdecode(raw)


def parse_mountinfo(text: str) -> list[tuple[str, str, str]]:
    """(mount point, type, source) of every mount, in the order in which they were made."""
    rows = []
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        fields, tail = left.split(" "), right.split(" ")
        if len(fields) >= 5 and len(tail) >= 2:
            rows.append((_unescape(fields[4]), tail[0], _unescape(tail[1])))
    return rows


def all_mounts() -> list[tuple[str, str, str]]:
    """(mount point, type, source) of every mount that this process sees."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return parse_mountinfo(file.read())


def inside(directory: str) -> list[str]:
    """The mount points below a directory (absolute, no links), without the directory itself.

    A mount hides the files beneath it.
    """
    return [point for point, _, _ in all_mounts() if point.startswith(directory + "/")]


def volumes() -> list[Mount]:
    """Every mounted volume."""
    return [
        Mount(source.removeprefix(SOURCE_PREFIX), point)
        for point, kind, source in all_mounts()
        if kind == FS_TYPE and source.startswith(SOURCE_PREFIX)
    ]


def points_of(volume: str) -> list[str]:
    """Where a volume (a uuid), or a copy of it, is mounted."""
    return [mount.point for mount in volumes() if mount.volume == volume]


def find(path: str) -> Mount | None:
    """The mounted volume that ``path`` (absolute, no links) lies in."""
    best: tuple[str, str, str] | None = None
    for row in all_mounts():
        point = row[0].rstrip("/") or "/"
        inside = path == point or path.startswith(point if point == "/" else point + "/")
        if inside and (best is None or len(row[0]) >= len(best[0])):
            best = row
    if best is None or best[1] != FS_TYPE:
        return None
    return Mount(best[2].removeprefix(SOURCE_PREFIX), best[0])


def _rows_of(process: str) -> Iterator[tuple[str, str, str]]:
    """(device, directory of the file system that is shown, mount point) of each mount."""
    path = f"/proc/{process}/mountinfo"
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            fields = line.split(" ")
            yield fields[2], _unescape(fields[3]), _unescape(fields[4])


def place_of(path: str) -> tuple[str, str]:
    """Device and path, within its file system, of a directory (absolute, no links)."""
    best = ("", "/", "/")
    for row in _rows_of("self"):
        point = row[2].rstrip("/")
        if (path + "/").startswith(point + "/") and len(row[2]) >= len(best[2]):
            best = row
    device, shown, point = best
    return device, shown.rstrip("/") + path[len(point.rstrip("/")) :] or "/"


def parts_shown(place: tuple[str, str], process: str) -> list[str]:
    """The points where a process has parts of a directory mounted, but not the whole directory."""
    device, directory = place
    return [
        point
        for other, shown, point in _rows_of(process)
        if other == device
        and shown != directory
        and shown.startswith(directory.rstrip("/") + "/")
        and not shown.endswith("//deleted")
    ]


def file_system(mount_id: str, number: str) -> tuple[str, set[str]] | None:
    """Type and options of the file system of a mount, or else of a device (``major:minor``).

    None where no mount is either.
    """
    by_device: tuple[str, set[str]] | None = None
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            left, _, right = line.partition(" - ")
            fields, tail = left.split(" "), right.split()
            if len(fields) < 5 or len(tail) < 3:
                continue
            found = tail[0], set(tail[-1].split(","))
            if fields[0] == mount_id:
                return found
            if fields[2] == number:
                by_device = found
    return by_device
