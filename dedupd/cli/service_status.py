"""The output of ``dedupd status`` if the service is running."""

import time
from collections.abc import Mapping
from typing import Any

import click
from rich.table import Table

from dedupd.cli.common import print_json
from dedupd.cli.terminal import clock, figures, show
from dedupd.service.client import ServiceClient
from dedupd_core.units import counted, format_duration, format_moment, format_size
from jobs.specs import TASKS


def show_service(path: str | None, as_json: bool) -> bool:
    """Print the service's figures of one or all volumes. Returns False if the service has none."""
    client = ServiceClient.find() if path is None else ServiceClient.serving(path)
    if client is None:
        return False
    volumes = client.get("/v1/volumes") if path is None else [client.volume(path)]
    service = client.get("/v1/service")
    if as_json:
        print_json({"service": service, "volumes": volumes} if path is None else volumes[0])
        return True
    for volume in volumes:
        _show(volume)
    for problem in service["problems"]:
        click.echo(f"  {problem}", err=True)
    if path is None:
        click.echo(f"dedupd {service['version']}: {service['status']}")
    return True


def _show(volume: dict[str, Any]) -> None:
    table = figures()
    mount = volume["mount"]
    place = f" at {volume['mountpoint']}" if mount["state"] == "mounted" else ""
    table.add_row("mount", f"{mount['state']}{place}")
    _add_savings(table, volume["savings"])
    _add_flow(table, volume.get("flow"))
    _add_space(table, volume.get("space"))
    job = volume["job"]
    if job is not None:
        why = f": {job['waits_for']}" if job["waits_for"] else ""
        table.add_row("job", f"{job['job']} ({how_far(job)}), {job['state']}{why}")
    for waiting in volume["waiting"]:
        table.add_row("queued", f"{waiting['job']} ({waiting['id']})")
    if volume["paused"]:
        table.add_row("paused", f"until `dedupd resume {volume['path']}`")
    for name, task in volume["tasks"].items():
        known = TASKS.get(name)
        label, about = (known.label, f"{known.about}: ") if known else (name, "")
        table.add_row(label, f"{about}{_when(task)}")
    show(table, title=volume["path"])


def _add_savings(table: Table, savings: dict[str, Any] | None) -> None:
    if savings is None:
        table.add_row("saved", "not measured yet")
        return
    add_savings(table, savings, f"; measured {_time(savings['time_s'])}")
    add_backlog(table, savings)
    table.add_row("free", format_size(savings["free_bytes"]))
    add_quarantined(table, savings)


def _add_flow(table: Table, flow: dict[str, Any] | None) -> None:
    """Add how much data becomes eligible per day, and how much is optimized."""
    if flow is not None:
        coming, going = (format_size(flow[f"{way}_bytes_per_day"]) for way in ("in", "out"))
        table.add_row("per day", f"{coming} newly eligible, {going} optimized")


def how_far(job: Mapping[str, Any]) -> str:
    """Describe the phase, the progress and the remaining time of a job."""
    progress = job["progress"]
    parts = [progress.get("phase", "starting")]
    if progress.get("total", 0):
        parts[0] += f" {min(1.0, progress['done'] / progress['total']):.0%}"
    if job.get("to_go_s") is not None:
        parts.append(f"about {clock(job['to_go_s'])} remaining")
    return ", ".join(parts)


def _add_space(table: Table, space: dict[str, Any] | None) -> None:
    """Add the free space, the time when it runs out, and the jobs that would free some."""
    if space is None:
        return
    free = f"{format_size(space['free_bytes'])} of {format_size(space['total_bytes'])} free"
    level = "" if space["level"] == "enough" else f": {space['level']}"
    until = "" if space["full_s"] is None else f"; full about {_time(space['full_s'])}"
    table.add_row("space", f"{free}{level}{until}")
    for one in space["reclaimable"]:
        if one["bytes"]:
            took = "" if one["length_s"] is None else f", in {format_duration(one['length_s'])}"
            table.add_row("", f"{one['job']} would free {format_size(one['bytes'])}{took}")


_BACKLOG = (
    ("waiting", "pending", "the next run optimizes them"),
    ("young", "too young", "newer than min_age"),
    ("saves_little", "saves too little", "skipped"),
    ("small", "below min_size", "skipped"),
    ("excluded", "excluded", "skipped"),
    ("other", "skipped for other reasons", "list them with `dedupd jobs PATH --left`"),
)


def add_backlog(table: Table, row: Mapping[str, Any]) -> None:
    """Add the plain files by the reason why they are plain."""
    for kind, label, meaning in _BACKLOG:
        if row[f"{kind}_files"]:
            files, size = row[f"{kind}_files"], format_size(row[f"{kind}_bytes"])
            text = f"{files:,} file{'' if files == 1 else 's'}, {size}: {meaning}"
            if kind == "waiting" and row["oldest_waiting_s"]:
                text += f"; the oldest changed {_time(row['oldest_waiting_s'])}"
            table.add_row(label, text)


def add_quarantined(table: Table, row: Mapping[str, Any]) -> None:
    """Add the number of damaged records."""
    if row["quarantined_records"]:
        table.add_row(
            "quarantined",
            f"{counted(row['quarantined_records'], 'record')}: run `dedupd run scrub`",
        )


def add_savings(table: Table, row: Mapping[str, Any], measured: str = "") -> None:
    """Add the size, the space and the savings of files, by cause, and the local blocks of stubs.
    ``measured``: the time of these figures."""
    table.add_row("files", f"{row['files']:,}, {row['files_optimized']:,} of them optimized")
    table.add_row("logical size", format_size(row["logical_bytes"]))
    table.add_row("occupied", format_size(row["occupied_bytes"]))
    plain = format_size(row["plain_bytes"])
    # In blocks: the size that the files would have if they were plain, minus their actual size.
    saved = f"{format_size(row['saved_bytes'])} ({row['saved_fraction']:.1%} of {plain})"
    table.add_row("saved", f"{saved}{measured}")
    causes = {
        "duplicates": row.get("duplicates_bytes", 0),
        "compression": row.get("compression_bytes", 0),
        "refine": row.get("refined_bytes", 0),
    }
    most_first = sorted(causes.items(), key=lambda item: -item[1])
    text = ", ".join(f"{name} {format_size(size)}" for name, size in most_first if size)
    if text and row["saved_bytes"]:
        table.add_row("saved by", text)
    if row["local_bytes"]:
        table.add_row("written since", f"{format_size(row['local_bytes'])} in local blocks")


def _when(task: dict[str, Any]) -> str:
    if task["off"]:
        return "off"
    last, text = task["last"], ""
    if last is not None:
        how = "" if last["completed"] else ", failed" if last["failures"] else ", not finished"
        text = f"last {_time(last['started_s'])}{how}; "
    return f"{text}next {_time(task['next_s'])}"


def _time(seconds: float) -> str:
    if seconds <= time.time() and time.time() - seconds < 2:
        return "now"
    return format_moment(seconds)
