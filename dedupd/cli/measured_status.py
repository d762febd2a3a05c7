"""The output of ``dedupd status`` where the tree is walked for it."""

import sys
import time
from typing import Any

import click

from dedupd.cli.common import message_of, print_json, show_or_json, status_of
from dedupd.cli.service_status import add_backlog, add_quarantined, add_savings
from dedupd.cli.terminal import figures, show
from dedupd.service.history import Savings
from dedupd_core.errors import EXIT_DONE, DedupdError
from dedupd_core.system import mount_table
from dedupd_core.system.paths import show_text
from dedupd_core.system.processes import give_way
from dedupd_core.units import counted, format_duration, format_size
from dedupd_core.volume.volume import Volume
from jobs.tree.candidates import SHARED_BELOW
from jobs.usage.volume_figures import volume_figures


def show_measured(path: str | None, gives_way: bool, as_json: bool) -> None:
    """Show what a volume saves, or every mounted one. ``gives_way``: to all other programs."""
    if gives_way:
        give_way()
    if path is not None:
        with Volume.open(path) as volume:
            row = volume_figures(volume)
        show_or_json(as_json, row | _as_the_service(row), lambda: _show(row))
        return
    _show_all([mount.point for mount in mount_table.volumes()], as_json)


def _show_all(points: list[str], as_json: bool) -> None:
    """Every mounted volume, also where one of them does not answer."""
    rows: list[dict[str, Any]] = []
    failures: list[DedupdError | OSError] = []
    for point in points:
        try:
            with Volume.open(point) as volume:
                rows.append(volume_figures(volume))
        except (DedupdError, OSError) as error:
            failures.append(error)
            rows.append({"path": point, "error": message_of(error)})
    if as_json:
        told = [row if "error" in row else row | _as_the_service(row) for row in rows]
        print_json({"service": None, "volumes": told})
    elif not rows:
        click.echo("No volume is mounted; run `dedupd status PATH`.")
    else:
        for row in rows:
            if "error" in row:
                click.echo(f"dedupd: {show_text(row['error'])}", err=True)
            else:
                _show(row)
    sys.exit(max((status_of(error) for error in failures), default=EXIT_DONE))


def _as_the_service(row: dict[str, Any]) -> dict[str, Any]:
    """The fields that the service tells of a volume, so that programs find them with it and without
    it."""
    point = row["mounted_at"]
    state = "unmounted" if point is None else "mounted"
    return {
        "mountpoint": point or row["path"],
        "mount": {"state": state, "problem": "", "pid": None, "since_s": None, "restarts": 0},
        "paused": None,
        "policy_problem": "",
        "job": None,
        "waiting": [],
        "tasks": {},
        "space": None,
        "flow": None,
        "savings": Savings.of_figures(row, time.time()).to_json(),
    }


def _show(row: dict[str, Any]) -> None:
    table = figures()
    table.add_row("mounted at", row["mounted_at"] or "not mounted")
    add_savings(table, {**row, **(row["causes"] or {})})
    if row["logical_bytes"] > row["plain_bytes"]:
        holes = format_size(row["logical_bytes"] - row["plain_bytes"])
        table.add_row("holes", f"{holes} in sparse files, not counted as savings")
    if row["lost_bytes"]:
        table.add_row(
            "lost",
            f"{format_size(row['lost_bytes'])}: run `dedupd run gc`, then `dedupd run compact`",
        )
    add_backlog(table, row)
    if row["held_bytes_max"]:
        held = format_size(row["held_bytes_max"])
        table.add_row(
            "kept by snapshots", f"up to {held}, by snapshots or copies of the file system below"
        )
    if row["shared_left"]["files"]:
        left = format_size(row["shared_left"]["bytes"])
        table.add_row(
            "skipped", f"{counted(row['shared_left']['files'], 'file')}, {left}: {SHARED_BELOW}"
        )
    where = f" {row['shared_store']}, shared" if row["shared_store"] else ""
    table.add_row("store", f"{format_size(sum(row['store_bytes'].values()))}{where}")
    if row["redundancy_bytes"]:
        table.add_row("second copies", format_size(row["redundancy_bytes"]))
    garbage = row["garbage"]
    if garbage["compaction_frees_bytes"]:
        table.add_row(
            "garbage",
            f"{format_size(garbage['compaction_frees_bytes'])}; to free it, run `dedupd run"
            f" compact {row['path']}`",
        )
    add_quarantined(table, garbage)
    table.add_row("free", format_size(row["free_bytes"]))
    for one in row["classes"]:
        kind = f"{one['top'] or '.'}/**/*{'.' + one['type'] if one['type'] else ''}"
        # Blocks are saved, and bytes are read.
        saves = min(1.0, one["saved_bytes"] / one["read_bytes"]) if one["read_bytes"] else 0.0
        table.add_row("class", f"{kind}: saves {saves:.0%} of {format_size(one['read_bytes'])}")
    run = row["last_run"]
    if run:
        took = format_duration(run["resources"]["wall_s"])
        table.add_row("last run", f"{run['job']}: {run['outcome']}, {took}")
    show(table, title=row["path"])
    for message in row["messages"]:
        click.echo(f"  {message}", err=True)
