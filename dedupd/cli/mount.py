"""``dedupd mount``: show a volume's files."""

import os

import click

from dedupd.cli.common import PATH, answer, exits, force_option, json_option
from dedupd.errors import Busy, ServiceUnreachable, UsageError
from dedupd.service.client import ServiceClient
from dedupd.system import mount_table
from dedupd.system.control_socket import QUESTION_TIMEOUT_S, ControlClient, socket_path
from dedupd.units import parse_size
from dedupd.volume.probe import accept
from fuse_stub.mounts.mount_points import covered, is_dead_mount
from fuse_stub.process import mount_in_background, open_volume, serve
from fuse_stub.snapshot import mount_snapshot_in_background, open_snapshot, serve_snapshot


@click.command("mount")
@click.argument("path", type=PATH)
@click.argument("mountpoint", required=False, type=PATH)
@click.option("-f", "--foreground", is_flag=True, help="Serve the mount in this process.")
@click.option(
    "--cache",
    metavar="SIZE",
    default="64m",
    show_default=True,
    help="Memory for decompressed chunks.",
)
@click.option(
    "--snapshot",
    is_flag=True,
    help="PATH is the volume's directory in a read-only snapshot of its file system.",
)
@click.option("--debug", is_flag=True, help="Log every operation.")
@force_option
@json_option
@exits
def command(
    path: str,
    mountpoint: str | None,
    foreground: bool,
    cache: str,
    snapshot: bool,
    debug: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Show the files of the volume PATH over PATH itself, or at MOUNTPOINT.

    Where its file system is read-only, so is the mount, and nothing is written. With --snapshot it
    shows beside the volume itself, and as many others, and no job knows of it.
    """
    if snapshot:
        _mount_snapshot(path, mountpoint, parse_size(cache), foreground, debug, as_json)
        return
    if force:
        with open_volume(path) as volume:
            accept(volume)
    client = None if foreground or mountpoint else ServiceClient.serving(path)
    if client is not None:
        _mount_by_service(client, path, as_json)
        return
    point = os.path.realpath(mountpoint or path)
    takes_over = is_dead_mount(point)
    if not takes_over and not os.path.isdir(point):
        raise UsageError(f"{point}: no such directory to mount at")
    mounted = mount_table.find(point)
    if mounted is not None and not takes_over and mountpoint is None and mounted.point == point:
        with ControlClient(socket_path(mounted.volume), QUESTION_TIMEOUT_S) as server:
            _tell(path, point, server.call("status")["pid"], as_json)
        return
    if mounted is not None and not takes_over:
        raise Busy(f"{point}: lies in a volume that is mounted at {mounted.point} already")
    if foreground:
        with open_volume(path) as volume:
            serve(volume, point, ready=None, cache_bytes=parse_size(cache), debug=debug)
        return
    hidden = covered(point) if point == os.path.realpath(path) else ""
    pid = mount_in_background(os.path.realpath(path), point, cache_bytes=parse_size(cache))
    _tell(path, point, pid, as_json)
    if hidden:
        click.echo(f"dedupd: {hidden}; unmount it to move them away", err=True)


def _mount_snapshot(
    path: str,
    mountpoint: str | None,
    cache_bytes: int,
    foreground: bool,
    debug: bool,
    as_json: bool,
) -> None:
    if mountpoint is None:
        raise UsageError("--snapshot needs a directory to show the snapshot at: MOUNTPOINT")
    point = os.path.realpath(mountpoint)
    if not is_dead_mount(point) and not os.path.isdir(point):
        raise UsageError(f"{point}: no such directory to mount at")
    around = mount_table.find(point)
    if around is not None:
        raise UsageError(
            f"{point}: lies in the volume that is mounted at {around.point}, which could not be"
            " unmounted then; choose a directory beside it"
        )
    if foreground:
        with open_snapshot(path) as volume:
            serve_snapshot(volume, point, ready=None, cache_bytes=cache_bytes, debug=debug)
        return
    pid = mount_snapshot_in_background(os.path.realpath(path), point, cache_bytes=cache_bytes)
    value = {"path": path, "mountpoint": point, "pid": pid, "read_only": True, "snapshot": True}
    answer(as_json, value, f"{path}, a snapshot, is mounted at {point}, read-only.")


def _mount_by_service(client: ServiceClient, path: str, as_json: bool) -> None:
    volume = client.act(path, "mount")
    mount = volume["mount"]
    if mount["state"] != "mounted":
        raise ServiceUnreachable(f"{path}: {mount['problem'] or 'not mounted yet'}")
    _tell(path, volume["mountpoint"], mount["pid"], as_json)


def _tell(path: str, point: str, pid: int, as_json: bool) -> None:
    is_read_only = bool(os.statvfs(point).f_flag & os.ST_RDONLY)
    value = {"path": path, "mountpoint": point, "pid": pid, "read_only": is_read_only}
    how = ", read-only: its file system takes no changes" if is_read_only else ""
    answer(as_json, value, f"{path} is mounted at {point}{how}.")
