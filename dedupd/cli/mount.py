"""``dedupd mount``: mount a volume."""

import click

from dedupd.cli.common import PATH, answer, exits, force_option, json_option
from dedupd.cli.mounting import MountRequest, bring_up
from dedupd_core.units import parse_size
from fuse_stub.mounts.mount_options import parse_options


@click.command("mount")
@click.argument("path", type=PATH)
@click.argument("mountpoint", required=False, type=PATH)
@click.option(
    "-o",
    "options",
    metavar="OPTIONS",
    multiple=True,
    help="Mount options: ro, rw, (no)suid, (no)dev, (no)exec, (a)sync, (no)symfollow, noatime,"
    " relatime, strictatime, (no)diratime, cache=SIZE. The option remount changes the options of"
    " an active mount.",
)
@click.option(
    "-f",
    "--foreground",
    is_flag=True,
    help="Stay in the foreground: serve the mount in this process, not in a background process.",
)
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
    help="PATH is the directory of the volume in a read-only snapshot of its file system.",
)
@force_option
@json_option
@exits
def command(
    path: str,
    mountpoint: str | None,
    options: tuple[str, ...],
    foreground: bool,
    cache: str,
    snapshot: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Mount the volume PATH over PATH itself, or at MOUNTPOINT.

    With `-o ro`, or on a read-only file system, the mount is read-only and nothing is written. A
    snapshot can be mounted with --snapshot while the volume itself is mounted. Jobs ignore the
    snapshot. mount(8) and /etc/fstab support the file system type `dedupd`: `mount -t dedupd PATH
    MOUNTPOINT`.
    """
    asked = parse_options(",".join(options))
    mounted = bring_up(
        MountRequest(
            path,
            mountpoint,
            asked,
            asked.cache_bytes or parse_size(cache),
            is_snapshot=snapshot or asked.snapshot,
            is_forced=force or asked.force,
            in_foreground=foreground,
        )
    )
    if mounted is None:
        return
    how = ""
    if mounted.is_read_only:
        how = ", read-only"
        if mounted.is_replica:
            how += ": it is a replica, which only `dedupd receive` changes"
        elif not (asked.read_only or snapshot):
            how += ": its file system is read-only"
    what = f"{path}, a snapshot," if mounted.is_snapshot else path
    answer(as_json, mounted.to_json(path), f"{what} is mounted at {mounted.point}{how}.")
    if mounted.hidden:
        click.echo(f"dedupd: {mounted.hidden}; unmount the volume to move them away", err=True)
