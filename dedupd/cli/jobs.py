"""``dedupd jobs``: list running, queued and finished jobs."""

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table

from dedupd.cli.common import PATH, exits, json_option, print_json
from dedupd.cli.service_status import how_far
from dedupd.cli.terminal import console, figures, headed, show
from dedupd.service.client import ServiceClient
from dedupd_core.errors import DedupdError, UsageError
from dedupd_core.system import mount_table
from dedupd_core.units import format_duration, format_size
from dedupd_core.volume.volume import Volume

REFRESH_S = 1.0
RUNS_SHOWN = 20
FILES_A_PAGE = 100

_STARTED = {
    "by_hand": "started manually",
    "space": "started because free space is low",
    "window": "started by its schedule",
    "missed": "started by its schedule, late",
    "background": "started in the background",
}


_RUN_ID = re.compile(r"([a-z]+)-([0-9]+)")
_JOB_ID = re.compile(r"[a-z]+-[0-9]+-[0-9]+")

RUNS_LOOKED_AT = 2000
"""How many past runs to search for an ID: the number that is kept."""


@click.command("jobs")
@click.argument("which", metavar="[PATH|ID]", required=False, type=PATH)
@click.option(
    "--last",
    type=click.IntRange(min=1),
    help="Number of runs to list (default 20). With --left: number of files to list (default 100).",
)
@click.option("--watch", is_flag=True, help="Refresh every second, until Ctrl-C.")
@click.option(
    "--left", is_flag=True, help="List the files that are not optimized, each with the reason."
)
@click.option("--after", metavar="FILE", default="", help="With --left: start after this file.")
@json_option
@exits
def command(
    which: str | None, last: int | None, watch: bool, left: bool, after: str, as_json: bool
) -> None:
    """For the volume PATH, or for all volumes, list the running and queued jobs and the last runs.

    With an ID, show the full report of that job or run. With --left, list the files that are not
    optimized: those that still wait, and those that the last run of optimize skipped.
    """
    job_id = "" if which is None or os.path.lexists(which) else which
    is_id = bool(_RUN_ID.fullmatch(job_id) or _JOB_ID.fullmatch(job_id))
    if after and not left:
        raise UsageError("--after: needs --left")
    if left or is_id:
        place, run = _of_id(job_id) if is_id else _last_optimize(which)
        if left:
            from dedupd.cli.jobs_left import show_left

            show_left(place, run, after, last or FILES_A_PAGE, as_json)
        elif as_json:
            print_json({"path": place, **run} if run else {"path": place})
        else:
            show(_one(place, run or {}))
        return
    read = _reader(which, last or RUNS_SHOWN)
    if as_json:
        print_json(read())
    elif watch:
        _watch(read)
    else:
        show(_shown(read()))


def _of_id(job_id: str) -> tuple[str, dict[str, Any] | None]:
    """Return the volume of a job or a run, and its report. Raises UsageError."""
    client = ServiceClient.find()
    if _JOB_ID.fullmatch(job_id):
        if client is None:
            raise UsageError(f"{job_id}: is a job of the service, which is not running")
        job = client.job(job_id)
        return job["path"], job["report"] or {name: job[name] for name in _OF_A_JOB}
    if client is not None:
        runs = client.jobs(RUNS_LOOKED_AT)["history"]
    else:
        runs = []
        for mount in mount_table.volumes():
            with suppress(DedupdError, OSError):  # skip dead mounts, and those of other users
                runs += _history(mount.point)
    for run in runs:
        if run_id(run) == job_id:
            return run["path"], run
    raise UsageError(f"{job_id}: no such job or run; `dedupd jobs` lists them")


_OF_A_JOB = ("id", "job", "state", "progress", "to_go_s", "started_s", "outcome")


def _last_optimize(path: str | None) -> tuple[str, dict[str, Any] | None]:
    """Return a volume and its last run of optimize, if any. Raises UsageError."""
    if path is None:
        raise UsageError("--left: needs a volume, or the ID of a run; `dedupd jobs` lists the IDs")
    runs = (run for run in _history(path) if run["job"] == "optimize")
    return path, next(runs, None)


def _history(path: str) -> list[dict[str, Any]]:
    with Volume.open(path) as volume:
        return [{"path": path, **run} for run in volume.hints.runs(RUNS_LOOKED_AT)]


def run_id(run: dict[str, Any]) -> str:
    """Return the ID of a run of the history."""
    return f"{run['job']}-{int(run['started_s'])}"


def _one(place: str, run: dict[str, Any]) -> Table:
    """Format everything that a run reported, one figure per line."""
    table = figures()
    table.add_row("volume", place)
    for name, value in _flat(run):
        table.add_row(name, value)
    return table


def _flat(values: dict[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        label = f"{above}{name}".replace("_", " ")
        if isinstance(value, dict):
            yield from _flat(value, f"{label}: ")
        elif isinstance(value, list):
            yield from ((label, str(one)) for one in value)
        elif name == "started_s" and value:
            yield "started", _moment(value)
        elif name.endswith("_bytes") and isinstance(value, (int, float)):
            yield label.removesuffix(" bytes"), format_size(value)
        elif value not in ("", None, 0):
            yield label, str(value)


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _reader(path: str | None, last: int) -> Callable[[], dict[str, Any]]:
    """Return a reader of the answer: from the service, or else from the volume itself."""
    client = ServiceClient.needed() if path is None else ServiceClient.serving(path)
    if client is not None:
        return lambda: client.jobs(last, path)

    def read() -> dict[str, Any]:
        if path is None:
            raise UsageError("no volume is given; name its PATH")
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
    table = headed("id", "volume", "state", "progress", "")
    for job in jobs:
        why = job["waits_for"] or (_STARTED[job["urgency"]] if job["started_s"] else "")
        far = how_far(job) if job["started_s"] else ""
        table.add_row(job["id"], job["path"], job["state"], far, why)
    return table


def _past(runs: list[dict[str, Any]]) -> Table:
    of_several = len({run.get("path") for run in runs}) > 1
    volume = ["volume"] if of_several else []
    table = headed("id", "started", *volume, "took", "files", "bytes", "outcome")
    for run in runs:
        files = run.get("files_optimized", run.get("files_restored", run.get("stubs", 0)))
        table.add_row(
            run_id(run),
            _moment(run["started_s"]),
            *([run["path"]] if of_several else []),
            format_duration(run["resources"]["wall_s"]),
            str(files),
            format_size(run.get("logical_bytes", run.get("freed_bytes", 0))),
            run["outcome"],
        )
    return table
