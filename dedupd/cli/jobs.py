"""``dedupd jobs``: what runs, what waits, and what ran."""

import time
from collections.abc import Callable
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table

from dedupd.cli.common import PATH, exits, json_option, print_json
from dedupd.cli.terminal import console, headed, show
from dedupd.errors import UsageError
from dedupd.service.client import ServiceClient
from dedupd.units import format_duration, format_size
from dedupd.volume.volume import Volume

REFRESH_S = 1.0

_STARTED = {
    "by_hand": "started by hand",
    "space": "started because space is short",
    "window": "started by its schedule",
    "missed": "started by its schedule, late",
    "background": "started in the background",
}


@click.command("jobs")
@click.argument("path", required=False, type=PATH)
@click.option(
    "--last",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="How many runs to show.",
)
@click.option("--watch", is_flag=True, help="Refresh every second, until Ctrl-C.")
@json_option
@exits
def command(path: str | None, last: int, watch: bool, as_json: bool) -> None:
    """Jobs that run and wait, and the last runs, on the volume PATH or on all of the service's."""
    read = _reader(path, last)
    if as_json:
        print_json(read())
    elif watch:
        _watch(read)
    else:
        show(_shown(read()))


def _reader(path: str | None, last: int) -> Callable[[], dict[str, Any]]:
    """Where the answer comes from: the service, or the volume itself."""
    client = ServiceClient.needed() if path is None else ServiceClient.serving(path)
    if client is not None:
        return lambda: client.jobs(last, path)

    def read() -> dict[str, Any]:
        if path is None:
            raise UsageError("name a volume")
        with Volume.open(path) as volume:
            return {"running": [], "waiting": [], "history": volume.hints.runs(last)}

    return read


def _watch(read: Callable[[], dict[str, Any]]) -> None:
    with Live(_shown(read()), console=console(), auto_refresh=False) as live:
        try:
            while True:
                time.sleep(REFRESH_S)
                live.update(_shown(read()), refresh=True)
        except KeyboardInterrupt:
            pass


def _shown(jobs: dict[str, Any]) -> RenderableType:
    parts = []
    if jobs["running"] or jobs["waiting"]:
        parts.append(_current(jobs["running"] + jobs["waiting"]))
    parts.append(_past(jobs["history"]))
    return Group(*parts)


def _current(jobs: list[dict[str, Any]]) -> Table:
    table = headed("id", "volume", "state", "how far", "")
    for job in jobs:
        progress = job["progress"]
        done, total = progress.get("done", 0), progress.get("total", 0)
        part = f"{done / total:.0%}" if total else ""
        why = job["waits_for"] or (_STARTED[job["urgency"]] if job["started_s"] else "")
        far = f"{progress.get('phase', '')} {part}".strip()
        table.add_row(job["id"], job["path"], job["state"], far, why)
    return table


def _past(runs: list[dict[str, Any]]) -> Table:
    of_several = len({run.get("path") for run in runs}) > 1
    volume = ["volume"] if of_several else []
    table = headed("started", *volume, "job", "took", "files", "bytes", "outcome")
    for run in runs:
        files = run.get("files_optimized", run.get("files_restored", run.get("stubs", 0)))
        table.add_row(
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run["started_s"])),
            *([run["path"]] if of_several else []),
            run["job"],
            format_duration(run["resources"]["wall_s"]),
            str(files),
            format_size(run.get("logical_bytes", 0)),
            run["outcome"],
        )
    return table
