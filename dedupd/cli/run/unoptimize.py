"""``dedupd run unoptimize``: stubs become plain files again."""

import sys
import time
from dataclasses import asdict

import click

from dedupd.cli.common import print_json
from dedupd.cli.job_limits import working
from dedupd.cli.report import finish_files
from dedupd.cli.via_service import job_command
from dedupd_core.errors import EXIT_FINDINGS
from dedupd_core.units import counted, format_duration, format_size, parse_moment
from dedupd_core.volume.volume import Volume
from jobs.unoptimize import Plan, Unoptimize, UnoptimizeReport


@job_command(
    "unoptimize",
    click.option("--dry-run", is_flag=True, help="Only say how much space and time it would take."),
    click.option(
        "--since",
        metavar="TIME",
        help="Only files that were optimized, or changed, since then: 2d ago, or a date.",
    ),
)
def command(path: str, dry_run: bool, since: str | None, as_json: bool) -> None:
    """Make files plain again, in a volume or below PATH in it. Users keep working meanwhile."""
    volume, below = Volume.locate_existing(path)
    with (
        volume,
        volume.tree_lock(reads_only=dry_run),
        working(volume, "unoptimize") as run,
    ):
        since_s = None if since is None else parse_moment(since, time.time())
        job = Unoptimize(volume, run, below, since_s)
        if dry_run:
            _tell(job.plan(), as_json)
            return
        report = job.recorded()
    finish_files(report, as_json, _show)


def _tell(plan: Plan, as_json: bool) -> None:
    if as_json:
        value = {"job": "unoptimize", "dry_run": True, **asdict(plan)}
        print_json({**value, "missing_bytes": plan.missing_bytes, "expected_s": plan.expected_s})
    else:
        click.echo(
            f"would make {counted(plan.files, 'file')} plain, in about"
            f" {format_duration(plan.expected_s)};"
            f" needs {format_size(plan.need_bytes)}, and {format_size(plan.room_bytes)} are free"
            " beyond the reserve"
        )
        if plan.missing_bytes:
            click.echo(f"  missing: {format_size(plan.missing_bytes)}")
    if plan.missing_bytes:
        sys.exit(EXIT_FINDINGS)


def _show(report: UnoptimizeReport) -> None:
    click.echo(
        f"{report.files_restored} files are plain again, {format_size(report.logical_bytes)}"
    )
