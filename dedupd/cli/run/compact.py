"""``dedupd run compact``: rewrite containers to free the space of garbage."""

import click

from dedupd.cli.job_limits import verify_new_headers, working
from dedupd.cli.report import finish_files
from dedupd.cli.via_service import job_command
from dedupd_core.units import counted, format_size
from dedupd_core.volume.volume import Volume
from jobs.compact.compact_job import Compact, CompactReport


@job_command(
    "compact",
    click.option(
        "--dry-run", is_flag=True, help="Report how much space can be freed; change nothing."
    ),
    click.option(
        "--rekey",
        is_flag=True,
        help="Create a new key for the checksums of the store, and rewrite all containers with it.",
    ),
)
def command(path: str, dry_run: bool, rekey: bool, as_json: bool) -> None:
    """Rewrite containers to free the space of garbage. Users can keep working."""
    with Volume.open(path) as volume, volume.job_lock(), working(volume, "compact") as run:
        job = Compact(volume, run, dry_run=dry_run, rekey=rekey)
        report = job.run() if dry_run else job.recorded()
        if not dry_run:
            verify_new_headers(volume, run)
    finish_files(report, as_json, _show)


def _show(report: CompactReport) -> None:
    if not report.dead_bytes and not report.rewritten and report.outcome == "done":
        containers = counted(report.containers, "container")
        click.echo(f"Nothing to free: {containers} without garbage.")
        return
    click.echo(
        f"{format_size(report.dead_bytes)} of {format_size(report.stored_bytes)} in"
        f" {report.containers} containers were garbage. {format_size(report.freed_bytes)} freed:"
        f" {counted(report.punched, 'record')} punched, {counted(report.rewritten, 'container')}"
        f" rewritten, {report.removed} removed, {report.below_threshold} below the threshold"
    )
    if report.left_shared:
        click.echo(
            f"{counted(report.left_shared, 'container')} skipped, because snapshots keep their"
            " blocks (policy key compaction_shared)"
        )
