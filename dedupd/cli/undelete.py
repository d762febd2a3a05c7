"""``dedupd undelete``: have files back that were deleted or overwritten."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from dedupd.cli.common import PATH, exits, json_option, message_of, print_json
from dedupd.cli.deleted import deletions, since_option
from dedupd.deleted.undelete import UNDELETE, Undelete, Wanted, attach_below
from dedupd.errors import EXIT_DONE, EXIT_FINDINGS, UsageError
from dedupd.system import mount_table
from dedupd.system.disk import Disk
from dedupd.system.files import opened
from dedupd.system.inherited import lift_limits
from dedupd.system.paths import resolved, show_path, show_text
from dedupd.volume.volume import Volume


@click.command("undelete")
@click.argument("files", nargs=-1, required=True, type=PATH)
@click.option("--id", "one_id", metavar="ID", help="This deletion, of those of the file.")
@click.option(
    "--to", "target", metavar="DIRECTORY", type=PATH, help="Put them there, in the same volume."
)
@since_option
@json_option
@exits
def command(
    files: tuple[str, ...],
    one_id: str | None,
    target: str | None,
    since: str | None,
    as_json: bool,
) -> None:
    """Have FILES back that were deleted or overwritten: the latest version of each.

    Of a folder, everything below it. They come back with owner, mode, attributes and times, at
    once: nothing is copied. Nothing is overwritten: where the name is taken, the file comes back
    beside it. Everybody has back what was theirs, on a mounted volume; root everything.
    """
    lift_limits()
    rows, failed = list[dict[str, Any]](), False
    for path in files:
        found = _chosen(path, one_id, since)
        if not found:
            raise UsageError(f"{path}: nothing of that name can be had back; see `dedupd deleted`")
        with _opened(path, target) as (undelete, top, place):
            wanted = [
                Wanted(
                    *(row["id"], os.fsencode(_placed(row["path"], top, place))),
                    *(row["uid"], row["gid"], row["time_s"]),
                )
                for row in found
            ]
            for row, back in zip(found, undelete.take(wanted), strict=True):
                failed |= back.error is not None
                told = {"error": message_of(back.error)} if back.error is not None else {}
                rows.append({**row, "back": os.fsdecode(back.path), **told})
    if as_json:
        print_json(rows)
    for row in rows if not as_json else []:
        shown = show_path(os.fsencode(row["path"]))
        if "error" in row:
            click.echo(f"dedupd: {shown}: {show_text(row['error'])}", err=True)
        else:
            click.echo(f"{shown}: back as {show_path(os.fsencode(row['back']))}")
    sys.exit(EXIT_FINDINGS if failed else EXIT_DONE)


def _chosen(path: str, one_id: str | None, since: str | None) -> list[dict[str, Any]]:
    """The newest deletion of each file, or the one that was named."""
    newest: dict[str, dict[str, Any]] = {}
    for row in deletions(path, since):
        if one_id in (None, row["id"]):
            newest.setdefault(row["path"], row)
    return list(newest.values())


@contextmanager
def _opened(path: str, target: str | None) -> Iterator[tuple[Undelete, str, str | None]]:
    """What has files back into the tree that ``path`` lies in; the path within the tree, and where
    it is to be put, if elsewhere."""
    whole = resolved(path)
    mount = mount_table.find(whole)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    if mount is not None:
        top = os.path.relpath(whole, mount.point)
        place = None if target is None else _within(target, mount)
        with opened(os.open(mount.point, flags)) as tree_fd:
            yield Undelete(tree_fd, Disk(), _attach), top, place
        return
    volume, below = Volume.locate(path)
    with volume, volume.job_lock(), volume.mount_lock():
        if target is not None:
            raise UsageError("--to: mount the volume first, or name no other directory")
        attach = attach_below(volume)
        yield Undelete(volume.data_fd, volume.disk, attach), os.fsdecode(below), None


def _attach(fd: int, wanted: str) -> None:
    try:
        os.setxattr(fd, UNDELETE, wanted.encode())
    except FileNotFoundError:
        raise UsageError(f"{wanted}: cannot be had back any more") from None


def _within(target: str, mount: mount_table.Mount) -> str:
    whole = resolved(target)
    if mount_table.find(whole) != mount:
        raise UsageError(
            f"{target}: does not lie in the volume at {mount.point}; a file comes back into its own"
            " volume, and can be copied from there"
        )
    return os.path.relpath(whole, mount.point)


def _placed(path: str, top: str, place: str | None) -> str:
    """Where a deletion of ``path``, asked for as ``top`` or a part of it, comes back."""
    if place is None:
        return path
    name = os.path.basename(path) if path == top else os.path.relpath(path, os.path.dirname(top))
    return os.path.normpath(os.path.join(place, name))
