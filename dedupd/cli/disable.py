"""``dedupd disable``: back to a plain directory."""

import os

import click

from dedupd import mounts
from dedupd.cli.common import exits, job_run, json_option, print_json
from dedupd.disk import Disk
from dedupd.enable import begin_disable, disable
from dedupd.errors import DedupdError, UsageError
from dedupd.fsutil import show_path
from dedupd.service.client import ServiceClient
from dedupd.service.config import config_path
from dedupd.service.registry import forget, is_named
from dedupd.volume import BASE_NAME, Volume
from jobs.scan import walk
from jobs.unoptimize import Unoptimize


@click.command("disable")
@click.argument("path", type=click.Path())
@click.option("--unoptimize", "first", is_flag=True, help="Make every file plain first.")
@json_option
@exits
def command(path: str, first: bool, as_json: bool) -> None:
    """Make the volume PATH a plain directory again, leaving nothing behind."""
    _take_from_service(path)
    base = os.path.join(path, BASE_NAME)
    if os.path.exists(os.path.join(base, "volume.json")):
        _begin(path, first)
    disable(path, disk=Disk())
    if as_json:
        print_json({"path": path, "disabled": True})
    else:
        click.echo(f"{path} is a plain directory again.")


def _take_from_service(path: str) -> None:
    """Have the service unmount the volume and forget it. Raises Busy where files are in use."""
    client = ServiceClient.serving(path)
    if client is None:
        return
    if is_named(os.path.realpath(path)):
        raise UsageError(
            f"{path}: {config_path()} names it; take it out there, and run"
            " `systemctl reload dedupd`, first"
        )
    volume = client.act(path, "unmount")
    if forget(volume["uuid"]):
        client.post("/v1/reload")


def _begin(path: str, first: bool) -> None:
    """Mark the volume as going; refuse while anything is still a stub, or make it plain first."""
    with Volume.open(path) as volume, volume.job_lock():
        if volume.base.startswith("/proc/"):
            raise UsageError(f"{path}: unmount the volume first: `dedupd umount {path}`")
        if first:
            with job_run("unoptimize") as run:
                report = Unoptimize(volume, run).run()
            if report.errors:
                raise DedupdError(
                    f"{path}: {report.errors} files could not be made plain, the first:"
                    f" {report.messages[0]}"
                )
        with volume.mount_lock():
            _refuse_stubs(volume, path)
            # Under the same locks: no job can make a stub between the check and the marker.
            begin_disable(volume.base_fd, volume.disk)


def _refuse_stubs(volume: Volume, path: str) -> None:
    """Make sure that all of the tree can be seen, and that no stub is in it."""
    for point in mounts.inside(os.readlink(f"/proc/self/fd/{volume.data_fd}")):
        raise UsageError(f"{path}: {point} is mounted over files of the volume; unmount it first")
    unseen: list[str] = []
    stub = next((found for found in walk(volume, errors=unseen) if found.is_stub), None)
    if stub is not None:
        raise UsageError(
            f"{path}: {show_path(stub.path)} and maybe others are still in the store; run"
            f" `dedupd disable --unoptimize {path}`"
        )
    if unseen:
        raise DedupdError(
            f"{path}: files may still be in the store where nobody can see them, the first place:"
            f" {unseen[0]}; make it readable, and run the command again"
        )
