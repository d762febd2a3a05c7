"""``dedupd run gc``: find unreferenced chunks and free their space."""

from functools import partial

import click

from dedupd.cli.cluster_reports import show_forgotten
from dedupd.cli.job_limits import working
from dedupd.cli.report import finish_files
from dedupd.cli.via_service import job_command
from dedupd_core.shared.fellows import all_held
from dedupd_core.units import counted, format_size
from dedupd_core.volume.volume import Volume
from jobs.cluster.reports import ClusterGcReport
from jobs.gc.gc_job import NOTHING_NEW
from jobs.gc.sweep import GcReport
from jobs.specs import job_of


@job_command(
    "gc",
    click.option(
        "--full",
        is_flag=True,
        help="Read all recipes again; do not reuse the results that the previous run saved.",
    ),
    click.option(
        "--all-garbage",
        is_flag=True,
        help="Collect even if the tree has files but no stubs, which means that all chunks are"
        " garbage. Without this option, gc collects nothing in this case.",
    ),
    click.option("--dry-run", is_flag=True, help="Report the garbage; change nothing."),
)
def command(path: str, full: bool, all_garbage: bool, dry_run: bool, as_json: bool) -> None:
    """Find unreferenced chunks and free their space. Users can keep working."""
    with (
        Volume.open(path) as volume,
        all_held(volume),
        working(volume, "gc", unit="items") as run,
    ):
        job = job_of("gc", volume)(volume, run, full=full, dry_run=dry_run, all_garbage=all_garbage)
        report = job.run() if dry_run else job.recorded()
    finish_files(report, as_json, partial(_show, path=path, dry_run=dry_run))


def _show(report: GcReport | ClusterGcReport, *, path: str, dry_run: bool) -> None:
    if isinstance(report, ClusterGcReport):
        show_forgotten(report)
        return
    chunks = counted(report.orphaned_chunks, "chunk")
    garbage = f"{format_size(report.orphaned_bytes)}, {chunks}"
    back = f"; {format_size(report.freed_bytes)} freed" if report.freed_bytes else ""
    if report.outcome == NOTHING_NEW:
        click.echo(f"{counted(report.stubs, 'stub')}: {report.outcome}{back}")
    elif dry_run:
        click.echo(f"{garbage}, would become garbage; nothing was changed.")
    elif report.outcome != "done":
        click.echo(f"gc: {report.outcome}{back}")
    elif report.orphaned_bytes:
        click.echo(
            f"{garbage}, are no longer needed{back}. To free the rest, run `dedupd run compact"
            f" {path}`."
        )
    else:
        click.echo(
            f"No new garbage: {counted(report.stubs, 'stub')} use {report.chunks_needed:,} of"
            f" {counted(report.chunks, 'chunk')}{back}."
        )
