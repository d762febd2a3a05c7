"""``dedupd run gc``: chunks that no file needs become garbage."""

from functools import partial

import click

from dedupd.cli.job_limits import working
from dedupd.cli.report import finish_files
from dedupd.cli.via_service import job_command
from dedupd_core.errors import UsageError
from dedupd_core.shared.fellows import all_held
from dedupd_core.units import counted, format_size
from dedupd_core.volume.volume import Volume
from jobs.gc.job import NOTHING_NEW, Gc, GcReport


@job_command(
    "gc",
    click.option(
        "--full", is_flag=True, help="Read all recipes, also those that earlier runs have."
    ),
    click.option(
        "--all-garbage",
        is_flag=True,
        help="Collect also where there are files, and none of them is a stub.",
    ),
    click.option("--dry-run", is_flag=True, help="Only say what would become an orphan."),
)
def command(path: str, full: bool, all_garbage: bool, dry_run: bool, as_json: bool) -> None:
    """Find chunks that no file needs any more. Users keep working meanwhile."""
    with Volume.open(path) as volume, all_held(volume):
        if volume.cluster is not None:
            if dry_run:
                raise UsageError(f"{path}: `dedupd cluster status` shows the garbage of its store")
            from dedupd.cli import cluster_jobs

            cluster_jobs.collect(volume, all_garbage, as_json)
        with working(volume, "gc", unit="items") as run:
            job = Gc(volume, run, full=full, dry_run=dry_run, all_garbage=all_garbage)
            report = job.run() if dry_run else job.recorded()
    shown = partial(_show, path=path, dry_run=dry_run)
    finish_files(report, as_json, shown)


def _show(report: GcReport, *, path: str, dry_run: bool) -> None:
    chunks = counted(report.orphaned_chunks, "chunk")
    garbage = f"{format_size(report.orphaned_bytes)}, {chunks}"
    back = f"; {format_size(report.freed_bytes)} given back" if report.freed_bytes else ""
    if report.outcome == NOTHING_NEW:
        click.echo(f"{counted(report.stubs, 'stub')}: {report.outcome}{back}")
    elif dry_run:
        click.echo(f"{garbage}, would become garbage; nothing was changed.")
    elif report.outcome != "done":
        click.echo(f"gc: {report.outcome}{back}")
    elif report.orphaned_bytes:
        click.echo(
            f"{garbage}, are no longer needed{back}."
            f" `dedupd run compact {path}` gives the rest of the space back."
        )
    else:
        click.echo(
            f"No new garbage: {counted(report.stubs, 'stub')} need {report.chunks_needed:,} of"
            f" {counted(report.chunks, 'chunk')}{back}."
        )
