"""Checks of a machine and of a volume, or of a directory that might become one, explained."""

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from dedupd.errors import ConfigurationError, DedupdError, UnsuitableFileSystem, UsageError
from dedupd.service.client import ServiceClient
from dedupd.service.config import config_path, load_config
from dedupd.system import mount_table
from dedupd.system.disk import Disk
from dedupd.system.path_users import occupants
from dedupd.units import GIB, counted, format_size
from dedupd.volume.enable import nested_volumes
from dedupd.volume.probe import probe
from dedupd.volume.volume import BASE_NAME, Volume
from fuse_stub.mounts.mount_points import covered, is_dead_mount

FREE_BYTES_MIN = 1 * GIB
"""A job writes up to a container ahead of what it frees."""

FREE_SHARE_MIN = 0.05

SHARED_FILE_SYSTEMS = frozenset(
    (
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "ceph",
        "glusterfs",
        "fuse.glusterfs",
        "gfs2",
        "ocfs2",
        "lustre",
    )
)
"""File systems on which another host may change files below a volume, unseen by this one."""


class Verdict(StrEnum):
    FINE = "fine"
    WARNING = "warning"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Check:
    """A thing that was looked at, the result, and a remedy."""

    what: str
    verdict: Verdict
    found: str
    remedy: str = ""


def check_machine() -> list[Check]:
    """Whether the service can run here, and how it does."""
    return [_fuse(), _pressure(), _configuration(), _service()]


def _fuse() -> Check:
    what = "FUSE"
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        return Check(what, Verdict.BAD, "there is no /dev/fuse", "run `modprobe fuse`")
    except OSError as error:
        return Check(
            what, Verdict.BAD, f"/dev/fuse: {error.strerror}", "run this as root, or allow it"
        )
    if shutil.which("fusermount3") is None:
        return Check(what, Verdict.BAD, "no fusermount3", "install the package fuse3")
    return Check(what, Verdict.FINE, "/dev/fuse can be opened")


def _pressure() -> Check:
    what = "pressure information"
    if os.path.exists("/proc/pressure/io"):
        return Check(what, Verdict.FINE, "jobs see who waits for processor, disk and memory")
    return Check(
        what,
        Verdict.WARNING,
        "no /proc/pressure: jobs give way to users and processors only",
        "start the kernel with psi=1",
    )


def _configuration() -> Check:
    what, path = "configuration", config_path()
    try:
        config = load_config(path)
    except ConfigurationError as error:
        return Check(what, Verdict.WARNING, str(error), "correct or make the file")
    return Check(what, Verdict.FINE, f"{path} names {counted(len(config.volumes), 'volume')}")


def _service() -> Check:
    what = "service"
    client = ServiceClient.find()
    if client is None:
        return Check(
            what,
            Verdict.WARNING,
            "does not run: nothing is optimized by itself",
            "run `systemctl enable --now dedupd`",
        )
    try:
        service = client.get("/v1/service")
    except DedupdError as error:
        return Check(what, Verdict.WARNING, str(error), "run this as root")
    if service["problems"]:
        return Check(what, Verdict.BAD, "; ".join(service["problems"]), "see `dedupd status`")
    return Check(what, Verdict.FINE, service["status"])


def check_path(path: str) -> list[Check]:
    """Whether a directory is, or could be, a volume that is safe. Raises UsageError."""
    root = os.path.realpath(path)
    if is_dead_mount(root):
        found = "the process that served it has ended: users get errors"
        return [Check("mount", Verdict.BAD, found, "run `dedupd mount` for the volume again")]
    if not os.path.isdir(root):
        raise UsageError(f"{path}: no such directory")
    mounted = mount_table.find(root)
    checks: list[Callable[[str], Check]] = [_file_system, _free_space]
    if mounted is not None or os.path.isdir(os.path.join(root, BASE_NAME)):
        checks += [_volume, _covered]
    else:
        checks += [_above, _below, _occupied, _probe]
    return [check(root) for check in checks]


def _kind_of(root: str) -> str:
    """The type of the file system below a directory, or below the volume that it lies in."""
    best = ("", "")
    for point, kind, _ in mount_table.all_mounts():
        inside = point == "/" or root == point or root.startswith(point + "/")
        if inside and kind != mount_table.FS_TYPE and len(point) >= len(best[0]):
            best = (point, kind)
    return best[1]


def _file_system(root: str) -> Check:
    what, kind = "file system", _kind_of(root)
    if kind in SHARED_FILE_SYSTEMS:
        return Check(
            what,
            Verdict.BAD,
            f"{kind}: another host can change files behind this one's back",
            "put the volume on a file system that this machine alone has mounted",
        )
    if kind in ("ext4", "xfs", "btrfs"):
        return Check(what, Verdict.FINE, kind)
    return Check(what, Verdict.WARNING, f"{kind}: not tried out", "use ext4, XFS or btrfs")


def _free_space(root: str) -> Check:
    space = os.statvfs(root)
    free, whole = space.f_bavail * space.f_frsize, space.f_blocks * space.f_frsize
    found = f"{format_size(free)} of {format_size(whole)} free"
    if free < FREE_BYTES_MIN:
        remedy = f"free {format_size(FREE_BYTES_MIN)}: jobs write before they give space back"
        return Check("free space", Verdict.BAD, found, remedy)
    if free < FREE_SHARE_MIN * whole:
        return Check("free space", Verdict.WARNING, found, "file systems slow down when full")
    return Check("free space", Verdict.FINE, found)


def _volume(root: str) -> Check:
    """A volume that can be opened has a format that this version knows."""
    what = "volume"
    try:
        with Volume.open(root) as volume:
            volume.policy()
            chunking = volume.parameters.chunking
            found = f"{volume.parameters.uuid}, chunks of up to {format_size(chunking.max_bytes)}"
    except (DedupdError, OSError) as error:
        return Check(what, Verdict.BAD, str(error), "see docs/format.md and docs/policy.md")
    points = [mount.point for mount in mount_table.volumes() if mount.volume in found]
    if not points:
        return Check(what, Verdict.WARNING, f"{found}, not mounted", f"run `dedupd mount {root}`")
    return Check(what, Verdict.FINE, f"{found}, mounted at {points[0]}")


def _covered(root: str) -> Check:
    what = "directory below it"
    if mount_table.find(root) is not None:
        return Check(what, Verdict.FINE, "out of sight while the volume is mounted")
    hidden = covered(root)
    if hidden:
        return Check(what, Verdict.WARNING, hidden, "move them away, or into the mounted volume")
    return Check(what, Verdict.FINE, "nothing but the closed .dedupd")


def _above(root: str) -> Check:
    what, parent = "volumes around it", os.path.dirname(root)
    while True:
        if os.path.exists(os.path.join(parent, BASE_NAME, "volume.json")):
            return Check(
                what, Verdict.BAD, f"lies in the volume {parent}", "volumes cannot be nested"
            )
        if parent == "/":
            return Check(what, Verdict.FINE, "none")
        parent = os.path.dirname(parent)


def _below(root: str) -> Check:
    what = "volumes and mounts in it"
    inside = mount_table.inside(root)
    if inside:
        remedy = "unmount it, or choose a directory without mounts"
        return Check(what, Verdict.BAD, f"{inside[0]} is mounted inside", remedy)
    nested = next(nested_volumes(root), None)
    if nested is not None:
        remedy = f"disable it first: `dedupd disable {nested}`"
        return Check(what, Verdict.BAD, f"{nested} is a volume", remedy)
    return Check(what, Verdict.FINE, "none")


def _occupied(root: str) -> Check:
    what = "who uses it"
    found = next(occupants(root), None)
    if found is not None:
        return Check(what, Verdict.BAD, found, "end that before you make it a volume")
    return Check(what, Verdict.FINE, "nobody")


def _probe(root: str) -> Check:
    """Try out the features that stubs rely on, and leave no trace."""
    what = "holes and attributes"
    before = os.stat(root)
    try:
        directory = tempfile.mkdtemp(prefix=".dedupd-doctor-", dir=root)
    except OSError as error:
        return Check(what, Verdict.WARNING, f"not tried: {error.strerror}", "run this as root")
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        attribute = probe(fd, root, Disk())
    except UnsuitableFileSystem as error:
        return Check(what, Verdict.BAD, str(error), "use ext4, XFS or btrfs")
    except OSError as error:
        return Check(what, Verdict.BAD, f"{root}: {error.strerror}", "free some space")
    finally:
        os.close(fd)
        shutil.rmtree(directory)
        os.utime(root, ns=(before.st_atime_ns, before.st_mtime_ns))
    return Check(what, Verdict.FINE, f"as they should be; stubs are marked by {attribute}")
