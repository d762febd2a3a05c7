"""``dedupd run gc``: chunks that no file needs become garbage."""

import click

from dedupd.cli.job_limits import working
from dedupd.cli.run.report import finish, show_messages
from dedupd.cli.via_service import job_command
from dedupd.units import counted, format_size
from dedupd.volume.volume import Volume
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
    with Volume.open(path) as volume, volume.job_lock(), working(volume, "gc", unit="items") as run:
        job = Gc(volume, run, full=full, dry_run=dry_run, all_garbage=all_garbage)
        report = job.run() if dry_run else job.recorded()
    finish(report, as_json, _show, findings=report.errors)


def _show(report: GcReport) -> None:
    if report.outcome == NOTHING_NEW:
        click.echo(f"{counted(report.stubs, 'stub')}: {report.outcome}{_given_back(report)}")
        show_messages(report.errors, report.messages)
        return
    known = ", the others were known" if report.resumed else ""
    click.echo(
        f"{counted(report.stubs, 'stub')} need {report.chunks_needed}"
        f" of {counted(report.chunks, 'chunk')} ({counted(report.recipes, 'recipe')} read{known});"
        f" {counted(report.orphaned_chunks, 'chunk')} and"
        f" {counted(report.orphaned_recipes, 'recipe')}"
        f" ({format_size(report.orphaned_bytes)}) are garbage now,"
        f" {report.orphans_before} were before: {report.outcome}{_given_back(report)}"
    )
    show_messages(report.errors, report.messages)


def _given_back(report: GcReport) -> str:
    return f"; {format_size(report.freed_bytes)} given back" if report.freed_bytes else ""
