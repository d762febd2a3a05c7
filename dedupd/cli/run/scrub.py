"""``dedupd run scrub``: damage is found and repaired."""

import click

from dedupd.cli.job_limits import working
from dedupd.cli.run.report import finish, show_findings, show_messages
from dedupd.cli.via_service import job_command
from dedupd.units import counted, format_size, parse_size
from dedupd.volume.volume import Volume
from jobs.scrub.job import Depth, Scrub, ScrubReport


@job_command(
    "scrub",
    click.option("--full", is_flag=True, help="Read every byte; else headers and metadata only."),
    click.option(
        "--rate", metavar="SIZE", help="Bytes to read in a second, like 50M; 0 is no limit."
    ),
)
def command(path: str, full: bool, rate: str | None, as_json: bool) -> None:
    """Find damage and repair it. Users keep working meanwhile."""
    depth = Depth.FULL if full else Depth.QUICK
    bytes_per_s = None if rate is None else parse_size(rate)
    with Volume.open(path) as volume, volume.job_lock(), working(volume, "scrub") as run:
        job = Scrub(volume, run, depth, bytes_per_s)
        report = job.recorded()
    finish(report, as_json, _show, findings=report.findings, damage=report.losses)


def _show(report: ScrubReport) -> None:
    click.echo(
        f"{report.depth}: {counted(report.containers, 'container')},"
        f" {counted(report.records, 'record')},"
        f" {format_size(report.read_bytes)} read, {counted(report.stubs, 'stub')}: {report.outcome}"
    )
    for source, count in report.repaired.items():
        if count:
            click.echo(f"  {counted(count, 'record')} repaired {source}")
    if report.released:
        click.echo(f"  right after all: {counted(report.released, 'quarantined record')}")
    if report.quarantined:
        click.echo(
            f"  lost: {counted(report.quarantined, 'record')}; the next optimize that meets"
            " the same bytes brings them back"
        )
    if report.copies_written or report.copies_dropped:
        click.echo(
            f"  second copies: {report.copies_written} written"
            f" ({format_size(report.copies_written_bytes)}), {report.copies_dropped} given up"
        )
    show_findings(report.findings)
    show_messages(len(report.messages), report.messages)
