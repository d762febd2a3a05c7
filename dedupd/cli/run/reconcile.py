"""``dedupd run reconcile``: merge duplicate chunks of different partitions."""

import click

from dedupd.cli.job_limits import working
from dedupd.cli.report import finish_files
from dedupd.cli.via_service import job_command
from dedupd_core.units import counted, format_size
from dedupd_core.volume.volume import Volume
from jobs.reconcile.reconcile_job import Reconcile, ReconcileReport, Strategy


@job_command(
    "reconcile",
    click.option(
        "--strategy",
        type=click.Choice([strategy.value for strategy in Strategy]),
        default=Strategy.ALL.value,
        help="all: all partitions; selective: partitions with enough duplicates in a sample;"
        " delayed: all, while the machine is idle.",
    ),
    click.option(
        "--dry-run",
        is_flag=True,
        help="Report the chunks that are stored in more than one partition; change nothing.",
    ),
)
def command(path: str, strategy: str, dry_run: bool, as_json: bool) -> None:
    """Merge duplicate chunks of different partitions. Users can keep working."""
    with (
        Volume.open(path) as volume,
        volume.job_lock(),
        working(volume, "reconcile", unit="records") as run,
    ):
        job = Reconcile(volume, run, Strategy(strategy), dry_run=dry_run)
        report = job.run() if dry_run else job.recorded()
    finish_files(report, as_json, _show)


def _show(report: ReconcileReport) -> None:
    from dedupd.cli.terminal import headed, show

    table = headed("partition", "types", "files", "stored", "elsewhere too")
    for row in report.partitions:
        share = row.duplicate_raw_bytes / row.raw_bytes if row.raw_bytes else 0.0
        table.add_row(
            str(row.partition),
            row.domain or row.types,
            format_size(row.logical_bytes),
            format_size(row.raw_bytes),
            f"{format_size(row.duplicate_raw_bytes)} ({share:.1%})",
        )
    show(table)
    click.echo(
        f"savings {report.savings_partitioned:.1%} within partitions, {report.savings_global:.1%}"
        f" across them; {counted(report.merged.chunks, 'chunk')}"
        f" ({format_size(report.merged.stored_bytes)}) merged in {report.rounds} rounds:"
        f" {report.outcome}"
    )
