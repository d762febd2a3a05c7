"""``dedupd jobs``: what ran on a volume."""

import time

import click
from rich.table import Table

from dedupd.cli.common import console, exits, json_option, print_json
from dedupd.units import format_duration, format_size
from dedupd.volume import Volume
from jobs.frame import history


@click.command("jobs")
@click.argument("path", type=click.Path())
@click.option("--last", default=20, show_default=True, help="How many runs to show.")
@json_option
@exits
def command(path: str, last: int, as_json: bool) -> None:
    """The last runs of jobs on the volume PATH."""
    with Volume.open(path) as volume:
        runs = history(volume, last)
    if as_json:
        print_json(runs)
        return
    table = Table("started", "job", "took", "files", "bytes", "outcome", box=None)
    for run in runs:
        files = run.get("files_optimised", run.get("files_restored", run.get("stubs", 0)))
        table.add_row(
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run["started_s"])),
            run["job"],
            format_duration(run["resources"]["wall_s"]),
            str(files),
            format_size(run.get("logical_bytes", 0)),
            run["outcome"],
        )
    console().print(table)
