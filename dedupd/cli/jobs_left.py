"""``dedupd jobs --left``: list the files that are not optimized, with the reasons."""

import os
from itertools import islice
from typing import Any

import click

from dedupd.cli.common import print_json
from dedupd_core.system.paths import show_text
from dedupd_core.units import format_size
from dedupd_core.volume.volume import Volume
from jobs.frame.run import JobRun
from jobs.optimize.outcomes import named_left
from jobs.tree.explanation import left_files


def show_left(
    place: str, run: dict[str, Any] | None, after: str, count: int, as_json: bool
) -> None:
    """Print a page of ``count`` files of the volume at ``place``, after the path ``after`` in it.

    If ``run`` is the last run of optimize, the first page starts with the files that it skipped.
    """
    with Volume.open(place) as volume:
        noted = named_left(volume, 0.0 if run is None else run["started_s"])
        found = left_files(volume, volume.policy(), os.fsencode(after), JobRun("left").safe_point)
        page = list(islice(found, count + 1))
        root = volume.root
    more = len(page) > count
    rows = [_row(path, reason, None) for path, reason in noted.items() if not after]
    rows += [_row(file.path, file.reason, file.size_bytes) for file in page[:count]]
    following = os.fsdecode(page[count - 1].path) if more else None
    if as_json:
        print_json({"volume": root, "run": run, "left": rows, "next": following})
        return
    for row in rows:
        size = "" if row["size_bytes"] is None else f" ({format_size(row['size_bytes'])})"
        by_run = ", in the last run" if row["by_run"] else ""
        click.echo(show_text(f"{row['path']}{size}: {row['reason']}{by_run}"))
    if not rows:
        click.echo("All files are optimized." if not after else "No more files.")
    if following is not None:
        click.echo(show_text(f"To continue, use --after '{following}'"), err=True)


def _row(path: bytes, reason: str, size_bytes: int | None) -> dict[str, Any]:
    """Describe a skipped file. Its size is None if the last run reported the file."""
    by_run = size_bytes is None
    return {"path": os.fsdecode(path), "reason": reason, "size_bytes": size_bytes, "by_run": by_run}
