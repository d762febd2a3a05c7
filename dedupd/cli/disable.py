"""``dedupd disable``: turn a volume back into a plain directory."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import click

from dedupd.cli.common import PATH, answer, exits, job_run, json_option
from dedupd.service.client import ServiceClient
from dedupd.service.config import config_path
from dedupd.service.volume_registry import forget, is_named, unnamed
from dedupd_core.errors import DedupdError, UsageError
from dedupd_core.system import mount_table
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import is_there
from dedupd_core.system.paths import refuse_part, show_path
from dedupd_core.units import counted
from dedupd_core.volume.base_directory import BASE_NAME, VOLUME_FILE
from dedupd_core.volume.enabling.base import RESERVED_NAME, LockedBase, held_to_disable
from dedupd_core.volume.enabling.enable import begin_disable, disable_held, refuse_collisions
from dedupd_core.volume.enabling.place import reserved_entry
from dedupd_core.volume.volume import Volume
from jobs.specs import LEAVING
from jobs.tree.walk import walk
from jobs.unoptimize import Unoptimize


@click.command("disable")
@click.argument("path", type=PATH)
@click.option("--unoptimize", "first", is_flag=True, help="Expand all files first.")
@click.option(
    "--remove-from-config",
    "unname",
    is_flag=True,
    help="Also remove the volume from the configuration of the service.",
)
@json_option
@exits
def command(path: str, first: bool, unname: bool, as_json: bool) -> None:
    """Turn the volume PATH back into a plain directory, and remove .dedupd."""
    mounted = mount_table.find(os.path.realpath(path))
    if mounted is not None:
        refuse_part(path, (mounted.point,), "disable")
    elif not os.path.lexists(path):
        raise UsageError(f"{path}: no such directory")
    with _out_of_service(path, first, unname), held_to_disable(path) as held:
        uuid = None
        if is_there(held.base_fd, VOLUME_FILE):
            uuid = _begin(held, first)
            forget(uuid)
        disable_held(held, disk=Disk())
        if uuid is not None:
            forget(uuid)  # the call that enabled the volume may have registered it late
        if unname:
            unnamed(os.path.realpath(path))
    answer(as_json, {"path": path, "disabled": True}, f"{path} is a plain directory again.")


@contextmanager
def _out_of_service(path: str, first: bool, unname: bool) -> Iterator[None]:
    """Make the service unmount the volume, and deregister it after it is disabled.

    All checks run before the files become inaccessible. After a failure, the service mounts the
    volume again. Raises Busy if files are in use.
    """
    client = ServiceClient.serving(path)
    if client is None:
        yield
        return
    root = client.volume(path)["path"]
    refuse_part(path, (root,), "disable")
    if is_named(os.path.realpath(path)) and not unname:
        raise UsageError(
            f"{path}: is listed in {config_path()}; run `dedupd disable --remove-from-config"
            f" {path}`"
        )
    was_mounted = client.volume(path)["mount"]["state"] == "mounted"
    if was_mounted:
        with Volume.open(path) as volume:
            _refuse_reserved_name(volume, path)
            if not first:
                _refuse_stubs(volume, path)
    client.act(path, "unmount")
    try:
        yield
    finally:
        if not os.path.exists(os.path.join(path, BASE_NAME, "volume.json")):
            client.post("/v1/reload")
        elif was_mounted:
            client.act(path, "mount")


def _begin(held: LockedBase, first: bool) -> str:
    """Mark the volume as being disabled. Refuses stubs, or expands them before if ``first`` is set.

    Returns the volume's uuid.
    """
    path = held.path
    with Volume.open(path) as volume, volume.tree_lock():
        if volume.is_mounted:
            raise UsageError(f"{path}: unmount the volume first: `dedupd umount {path}`")
        refuse_collisions(held, disk=volume.disk)
        if first:
            _refuse_mounts(volume, path)
            with job_run("unoptimize") as run:
                report = Unoptimize(volume, run).run()
            if report.errors:
                raise DedupdError(
                    f"{path}: {counted(report.errors, 'file')} could not be expanded, the first:"
                    f" {report.messages[0]}"
                )
        with volume.mount_lock():
            _refuse_stubs(volume, path)
            refuse_collisions(held, disk=volume.disk)
            with job_run("disable") as run:
                if LEAVING.named(volume.store_kind):
                    LEAVING.of(volume, "disable")(volume, run)
            # Under the same locks, so that no job can make a stub between the check and the marker.
            begin_disable(volume.base_fd, volume.disk)
        return volume.parameters.uuid


def _refuse_reserved_name(volume: Volume, path: str) -> None:
    """Raises UsageError if the tree of a mounted volume has an entry that cannot move out."""
    if is_there(volume.data_fd, RESERVED_NAME):
        raise UsageError(f"{path}: {reserved_entry(volume.root, volume.data_fd)}")


def _refuse_mounts(volume: Volume, path: str) -> None:
    for point in mount_table.inside(os.readlink(f"/proc/self/fd/{volume.data_fd}")):
        raise UsageError(f"{path}: {point} is mounted over files of the volume; unmount it first")


def _refuse_stubs(volume: Volume, path: str) -> None:
    """Check that the entire tree is readable and has no stubs."""
    _refuse_mounts(volume, path)
    unseen: list[str] = []
    stub = next((found for found in walk(volume, errors=unseen) if found.is_stub), None)
    if stub is not None:
        raise UsageError(
            f"{path}: {show_path(stub.path)} and possibly other files are still stubs; run `dedupd"
            f" disable --unoptimize {path}`"
        )
    if unseen:
        raise DedupdError(
            f"{path}: {unseen[0]} cannot be read and may contain stubs; fix that, then run the"
            " command again"
        )
