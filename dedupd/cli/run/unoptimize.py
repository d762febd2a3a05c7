"""``dedupd run unoptimize``: expand all stubs into plain files."""

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
    click.option(
        "--dry-run",
        is_flag=True,
        help="Report the space and time that this would take; change nothing.",
    ),
    click.option(
        "--since",
        metavar="TIME",
        help="Only files optimized or changed since TIME: a duration such as 2d, or a date.",
    ),
)
def command(path: str, dry_run: bool, since: str | None, as_json: bool) -> None:
    """Expand all stubs in a volume, or below PATH. Users can keep working."""
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
            f"would expand {counted(plan.files, 'file')} in about"
            f" {format_duration(plan.expected_s)}; needs {format_size(plan.need_bytes)},"
            f" {format_size(plan.room_bytes)} are free beyond the reserve"
        )
        if plan.missing_bytes:
            click.echo(f"  missing: {format_size(plan.missing_bytes)}")
    if plan.missing_bytes:
        sys.exit(EXIT_FINDINGS)


def _show(report: UnoptimizeReport) -> None:
    click.echo(
        f"{counted(report.files_restored, 'file')} expanded, {format_size(report.logical_bytes)}"
    )
