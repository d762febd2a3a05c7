"""``dedupd undelete``: restore deleted or overwritten files."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import click

from dedupd.cli.common import PATH, exits, json_option, message_of, print_json
from dedupd.cli.deleted import deletions, since_option
from dedupd_core.deleted.log import DeletionId, DeletionLogs
from dedupd_core.deleted.undelete import (
    UNDELETE,
    Attach,
    DeletedFile,
    Undelete,
    UndeleteRequest,
    attach_below,
)
from dedupd_core.errors import EXIT_DONE, EXIT_FINDINGS, UsageError
from dedupd_core.system import mount_table
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import opened
from dedupd_core.system.inherited import lift_limits
from dedupd_core.system.paths import resolved, show_path, show_text
from dedupd_core.system.tree.takeover import keep_group
from dedupd_core.units import counted
from dedupd_core.volume.volume import Volume


@click.command("undelete")
@click.argument("files", nargs=-1, required=True, type=PATH)
@click.option(
    "--id", "one_id", metavar="ID", help="Restore this version; `dedupd deleted` lists the IDs."
)
@click.option(
    "--to",
    "target",
    metavar="DIRECTORY",
    type=PATH,
    help="Restore into this directory of the same volume.",
)
@since_option
@click.option(
    "--privileges",
    is_flag=True,
    help="Restore set-user-ID bits, file capabilities and security labels (root only).",
)
@click.option(
    "--force",
    is_flag=True,
    help="Also restore into directories of other users, and from deletion logs of earlier"
    " releases (root only).",
)
@json_option
@exits
def command(
    files: tuple[str, ...],
    one_id: str | None,
    target: str | None,
    since: str | None,
    privileges: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Restore the latest deleted or overwritten version of each of FILES.

    For a folder, everything below it is restored. Restoring copies no data, and keeps owner, mode,
    attributes and times. If the name is in use, the restored file gets a new name. If the volume is
    mounted, users can restore their own files. Root can restore any file.
    """
    lift_limits()
    if os.geteuid() != 0 and (privileges or force):
        raise UsageError("--privileges, --force: only root can use these; use sudo")
    chosen = [(path, _chosen(path, one_id, since)) for path in files]
    for path, found in chosen:
        if not found:
            raise UsageError(
                f"{path}: no deleted version of this file exists; list them with `dedupd deleted`"
            )
    terms = _Terms(privileges, force)
    rows = list[dict[str, Any]]()
    for path, found in chosen:
        for row in _restored(path, target, found, terms):
            rows.append(row)
            if not as_json:
                _show(row, privileges)
    failed = sum("error" in row for row in rows)
    if as_json:
        print_json(rows)
    elif failed:
        text = f"{counted(len(rows) - failed, 'file')} restored, {failed} not restored"
        click.echo(f"dedupd: {text}", err=True)
    sys.exit(EXIT_FINDINGS if failed else EXIT_DONE)


class _Terms(NamedTuple):
    """The restrictions that root turns off for this command."""

    privileges: bool
    force: bool


def _restored(
    path: str, target: str | None, found: list[dict[str, Any]], terms: _Terms
) -> Iterator[dict[str, Any]]:
    """Restore deletions; yield each with the path of its file, or with an error."""
    with _opened(path, target, terms) as (undelete, top, place):
        wanted = [
            DeletedFile(
                *(row["id"], os.fsencode(_placed(row["path"], top, place))),
                *(row["uid"], row["gid"], row["time_s"]),
            )
            for row in found
        ]
        for row, back in zip(found, undelete.take(wanted), strict=True):
            told = {"error": message_of(back.error)} if back.error is not None else {}
            yield {**row, "back": os.fsdecode(back.path), **told}


def _show(row: dict[str, Any], privileges: bool) -> None:
    shown = show_path(os.fsencode(row["path"]))
    if "error" in row:
        click.echo(f"dedupd: {shown}: {show_text(row['error'])}", err=True)
        return
    text = f"{shown}: restored as {show_path(os.fsencode(row['back']))}"
    if row["privileged"] and not privileges:
        text += "; without set-user-ID bits and capabilities (root: --privileges)"
    click.echo(text)


def _chosen(path: str, one_id: str | None, since: str | None) -> list[dict[str, Any]]:
    """Return the newest deletion of each file, or the selected deletion."""
    newest: dict[str, dict[str, Any]] = {}
    for row in deletions(path, since):
        if one_id in (None, row["id"]):
            newest.setdefault(row["path"], row)
    return list(newest.values())


@contextmanager
def _opened(
    path: str, target: str | None, terms: _Terms
) -> Iterator[tuple[Undelete, str, str | None]]:
    """Yield an Undelete for the tree that contains ``path``, the path in the tree, and the target:
    None restores files to their old places."""
    whole = resolved(path)
    mount = mount_table.find(whole)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    if mount is not None:
        top = os.path.relpath(whole, mount.point)
        place = None if target is None else _within(target, mount)
        with opened(os.open(mount.point, flags)) as tree_fd:
            disk = Disk()
            attach = _attach_by_mount(path, disk, terms)
            yield Undelete(tree_fd, disk, attach, force=terms.force), top, place
        return
    volume, below = Volume.locate(path)
    with volume, volume.job_lock(), volume.mount_lock():
        if target is not None:
            raise UsageError(
                "--to: the volume is not mounted; mount it first, or restore without --to"
            )
        attach = attach_below(volume, privileges=terms.privileges, force=terms.force)
        undelete = Undelete(volume.data_fd, volume.disk, attach, force=terms.force)
        yield undelete, os.fsdecode(below), None


def _attach_by_mount(path: str, disk: Disk, terms: _Terms) -> Attach:
    def attach(fd: int, one: DeletedFile) -> None:
        keep_group(disk, fd, one.gid)
        order = UndeleteRequest(DeletionId.parse(one.id), terms.privileges, terms.force)
        try:
            os.setxattr(fd, UNDELETE, str(order).encode())
        except FileNotFoundError:
            if os.geteuid() == 0:  # the mount hides the reason from users
                _require_deletion(path, order)
            raise UsageError(f"{one.id}: this version has expired") from None

    return attach


def _require_deletion(path: str, order: UndeleteRequest) -> None:
    """Raise UsageError if the volume's log does not have the deletion."""
    volume, _ = Volume.locate(path)
    with volume:
        DeletionLogs(volume).get(order.id, unproven=order.force)


def _within(target: str, mount: mount_table.Mount) -> str:
    whole = resolved(target)
    if mount_table.find(whole) != mount:
        raise UsageError(
            f"{target}: is not in the volume at {mount.point}; restore the file into its own"
            " volume, then copy it"
        )
    return os.path.relpath(whole, mount.point)


def _placed(path: str, top: str, place: str | None) -> str:
    """Return the target of the deletion of ``path``, which is ``top`` or a part of it."""
    if place is None:
        return path
    name = os.path.basename(path) if path == top else os.path.relpath(path, os.path.dirname(top))
    return os.path.normpath(os.path.join(place, name))
