"""``dedupd umount``: unmount a volume."""

import os

import click

from dedupd.cli.common import PATH, answer, exits, json_option
from dedupd.service.client import ServiceClient
from dedupd_core.errors import Busy, UnknownFormat, UsageError
from dedupd_core.format.volume_parameters import uuid_of
from dedupd_core.system import mount_table
from dedupd_core.system.paths import refuse_part
from dedupd_core.volume.base_directory import BASE_NAME
from dedupd_core.volume.detached_mount import detached_mount
from dedupd_core.volume.volume import Volume
from fuse_stub.mounts.mount_process import unmount


@click.command("umount")
@click.argument("path", type=PATH)
@json_option
@exits
def command(path: str, as_json: bool) -> None:
    """Unmount the volume PATH, or the mount at PATH.

    The service keeps the volume unmounted until `dedupd mount PATH` or the next start of the
    service.
    """
    client = ServiceClient.serving(path)
    if client is not None:
        # The service unmounts it: otherwise it would mount the volume again.
        point = client.act(path, "unmount")["mountpoint"]
    else:
        point = mounted_point(path, "unmount")
        unmount(point)
    value = {"path": path, "mountpoint": point, "unmounted": True}
    answer(as_json, value, f"{point} is unmounted.")


def mounted_point(path: str, what: str) -> str:
    """Find the mount point of the volume at ``path``, or of the mount at ``path``. ``what``: the
    action, for messages. Raises UsageError."""
    if os.path.abspath(path) in mount_table.snapshot_points():
        return os.path.abspath(path)
    mount = mount_table.find(os.path.abspath(path)) or mount_table.find(os.path.realpath(path))
    if mount is not None:
        refuse_part(path, (mount.point,), what)
        return mount.point
    try:
        with Volume.open(path) as volume:
            points = mount_table.points_of(volume.parameters.uuid)
            if (detached := detached_mount(volume)) is not None:
                raise Busy(detached.message)
    except UnknownFormat:
        # A process of that other version serves the mount, and exits after the unmount.
        points = mount_table.points_of(_uuid_of(path))
    if not points:
        raise UsageError(f"{path}: not mounted")
    return points[0]


def _uuid_of(path: str) -> str:
    """Return the uuid of a volume of any version. Raises UnknownFormat, OSError."""
    where = os.path.join(os.path.realpath(path), BASE_NAME, "volume.json")
    with open(where, "rb") as file:
        data = file.read()
    try:
        return uuid_of(data)
    except ValueError:
        raise UnknownFormat(f"{where}: not a volume file of any version of dedupd") from None
