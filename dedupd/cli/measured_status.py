"""The output of ``dedupd status`` if the command scans the tree itself."""

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
from jobs.usage.volume_figures import VolumeFigures, volume_figures


def show_measured(path: str | None, gives_way: bool, as_json: bool) -> None:
    """Print the savings of one or all mounted volumes. ``gives_way``: at low priority."""
    if gives_way:
        give_way()
    if path is not None:
        with Volume.open(path) as volume:
            found = volume_figures(volume)
        show_or_json(as_json, _as_the_service(found), lambda: _show(found))
        return
    _show_all([mount.point for mount in mount_table.volumes()], as_json)


def _show_all(points: list[str], as_json: bool) -> None:
    """Print all mounted volumes, and errors for those that do not answer."""
    rows: list[dict[str, Any]] = []
    failures: list[DedupdError | OSError] = []
    for point in points:
        try:
            with Volume.open(point) as volume:
                found = volume_figures(volume)
        except (DedupdError, OSError) as error:
            failures.append(error)
            rows.append({"path": point, "error": message_of(error)})
            if not as_json:
                click.echo(f"dedupd: {show_text(message_of(error))}", err=True)
        else:
            rows.append(_as_the_service(found))
            if not as_json:
                _show(found)
    if as_json:
        print_json({"service": None, "volumes": rows})
    elif not rows:
        click.echo("No volume is mounted; run `dedupd status PATH`.")
    sys.exit(max((status_of(error) for error in failures), default=EXIT_DONE))


def _as_the_service(found: VolumeFigures) -> dict[str, Any]:
    """Add the other fields of the service's answer, so that programs find the same fields."""
    row, point = found.to_json(), found.mounted_at
    state = "unmounted" if point is None else "mounted"
    return row | {
        "mountpoint": point or found.path,
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


def _show(found: VolumeFigures) -> None:
    table, row = figures(), found.to_json()
    table.add_row("mounted at", found.mounted_at or "not mounted")
    add_savings(table, {**row, **(row["causes"] or {})})
    if found.logical_bytes > found.plain_bytes:
        holes = format_size(found.logical_bytes - found.plain_bytes)
        table.add_row("holes", f"{holes} in sparse files, not counted as savings")
    if found.lost_bytes:
        table.add_row(
            "lost",
            f"{format_size(found.lost_bytes)}: run `dedupd run gc`, then `dedupd run compact`",
        )
    add_backlog(table, row)
    if found.held_bytes_max:
        held = format_size(found.held_bytes_max)
        table.add_row(
            "kept by snapshots", f"up to {held}, by snapshots or copies of the file system below"
        )
    if found.shared_left.files:
        left = format_size(found.shared_left.bytes)
        table.add_row(
            "skipped", f"{counted(found.shared_left.files, 'file')}, {left}: {SHARED_BELOW}"
        )
    where = f" {found.shared_store}, shared" if found.shared_store else ""
    table.add_row("store", f"{format_size(sum(found.store_bytes.values()))}{where}")
    if found.redundancy_bytes:
        table.add_row("second copies", format_size(found.redundancy_bytes))
    garbage = found.garbage
    if garbage.compaction_frees_bytes:
        table.add_row(
            "garbage",
            f"{format_size(garbage.compaction_frees_bytes)}; to free it, run `dedupd run"
            f" compact {found.path}`",
        )
    add_quarantined(table, row["garbage"])
    table.add_row("free", format_size(found.free_bytes))
    for files in found.classes:
        kind = f"{files.top or '.'}/**/*{'.' + files.type if files.type else ''}"
        # The savings count blocks, the bytes read count content.
        saves = min(1.0, files.saved_bytes / files.read_bytes) if files.read_bytes else 0.0
        table.add_row("class", f"{kind}: saves {saves:.0%} of {format_size(files.read_bytes)}")
    run = found.last_run
    if run:
        took = format_duration(run["resources"]["wall_s"])
        table.add_row("last run", f"{run['job']}: {run['outcome']}, {took}")
    show(table, title=found.path)
    for message in found.messages:
        click.echo(f"  {message}", err=True)
