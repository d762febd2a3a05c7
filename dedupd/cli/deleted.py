"""``dedupd deleted``: list recently deleted or overwritten files that can be restored."""

import errno
import json
import os
import time
from collections.abc import Iterator
from typing import Any

import click

from dedupd.cli.common import PATH, answer, exits, json_option, print_json
from dedupd_core.config.policy import Policy
from dedupd_core.deleted.alarm import accept as accept_alarm
from dedupd_core.deleted.dropped import read_counts
from dedupd_core.deleted.expiry import NS
from dedupd_core.deleted.listing import DELETED, lost
from dedupd_core.deleted.log import DeletionLogs
from dedupd_core.system import mount_table
from dedupd_core.system.paths import resolved, show_path
from dedupd_core.units import counted, format_duration, format_moment, format_size, parse_duration
from dedupd_core.volume.volume import Volume

since_option = click.option(
    "--since", metavar="TIME", help="Only deletions within this time, for example 2h."
)

RETRY_S = 0.2

_WORDS = {
    "removed": "removed",
    "replaced": "replaced by another file",
    "cut": "truncated",
    "overwritten": "overwritten",
}


@click.command("deleted")
@click.argument("path", type=PATH)
@since_option
@click.option(
    "--accept",
    is_flag=True,
    help="Resume garbage collection, which stopped because an unusual number of files was deleted"
    " or overwritten.",
)
@json_option
@exits
def command(path: str, since: str | None, accept: bool, as_json: bool) -> None:
    """List recently deleted or overwritten files at PATH, newest first.

    PATH is a volume, a folder or a file. Only optimized files are listed, and only for the time in
    the policy key keep_deleted. On a mounted volume, users see only their own files; root sees
    all.
    """
    if accept:
        with Volume.open(path) as volume:
            alarm = accept_alarm(volume.base_fd, volume.disk)
        text = "Alarm cleared." if alarm is not None else "No alarm is active."
        answer(as_json, {"accepted": alarm is not None}, text)
        return
    rows = deletions(path, since)
    if as_json:
        print_json(rows)
        return
    for row in rows:
        click.echo(_line(row))
    if not rows:
        click.echo("No deleted files to restore here.")
    else:
        size = format_size(sum(row["length_bytes"] for row in rows))
        click.echo(
            f"{counted(len(rows), 'deletion')}, {size}. To restore one, run `dedupd undelete FILE`."
        )


def _line(row: dict[str, Any]) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["time_s"]))
    left = format_duration(max(0.0, row["end_s"] - time.time()))
    text = f"{row['id']:>12}  {when}  {format_size(row['length_bytes']):>10}  "
    text += f"{show_path(os.fsencode(row['path']))}: {_WORDS[row['cause']]}; kept for {left}"
    if row["lost_own_blocks"]:
        text += "; contents of the last optimization, without later writes"
    return text


def deletions(path: str, since: str | None = None) -> list[dict[str, Any]]:
    """Return the deletions of a path and of all paths below it as JSON, the newest first.

    Raises UsageError, OSError and the errors of ``Volume.locate``.
    """
    oldest_s = time.time() - parse_duration(since) if since is not None else 0.0
    mount = mount_table.find(resolved(path))
    rows = _told(path, mount) if mount is not None and os.geteuid() != 0 else _read(path)
    found = [row for row in rows if row["time_s"] >= oldest_s]
    # Each user has separate logs, so the times of logs overlap.
    return sorted(found, key=lambda row: -row["time_s"])


def _read(path: str) -> Iterator[dict[str, Any]]:
    volume, below = Volume.locate(path)
    with volume:
        logs, policy = DeletionLogs(volume), volume.policy()
        try:
            yield from lost(volume, policy, below, logs=logs)
        finally:
            _report_dropped(volume, policy)
            for number, size in logs.lost_bytes.items():
                click.echo(
                    f"dedupd: {show_path(os.fsencode(volume.root))}: {counted(size, 'byte')} of"
                    f" deletion log {number} are damaged; the deletions in them cannot be"
                    " restored",
                    err=True,
                )


def _report_dropped(volume: Volume, policy: Policy) -> None:
    """Print how many deletions are missing because their logs took too much space."""
    for uid, one in sorted(read_counts(volume.base_fd).items()):
        if time.time() > one.last_ns / NS + policy.keep_deleted_s_max:
            continue
        click.echo(
            f"dedupd: {show_path(os.fsencode(volume.root))}: the logs of deletions are full;"
            f" user {uid} lost {counted(one.dropped, 'recorded deletion')}, and"
            f" {counted(one.refused, 'deletion')} could not be recorded, the last"
            f" {format_moment(one.last_ns / NS)}",
            err=True,
        )


def _told(path: str, mount: mount_table.Mount) -> Iterator[dict[str, Any]]:
    """List the deletions that the mount process shows to the calling user."""
    whole = resolved(path)
    directory = whole
    while not os.path.isdir(directory):
        directory = os.path.dirname(directory)
    below = os.path.relpath(whole, mount.point)
    last = ""
    while True:
        try:
            value = os.getxattr(directory, DELETED + (f".{last}".encode() if last else b""))
        except OSError as error:
            if error.errno == errno.ENODATA:
                return
            if error.errno != errno.EAGAIN:
                raise
            time.sleep(RETRY_S)  # the mount process is busy with other listings of this user
            continue
        for line in value.splitlines():
            row: dict[str, Any] = json.loads(line)
            last = row["id"]
            if below == "." or row["path"] == below or row["path"].startswith(f"{below}/"):
                yield row
