"""``dedupd run scrub``: find and repair damage."""

import click

from dedupd.cli.cluster_reports import show_mended
from dedupd.cli.job_limits import limits, working
from dedupd.cli.report import finish, finish_files, show_findings, show_messages
from dedupd.cli.run.verify import show as show_verified
from dedupd.cli.via_service import job_command
from dedupd_core.errors import UsageError
from dedupd_core.shared.fellows import all_held
from dedupd_core.units import counted, format_size, parse_percentage
from dedupd_core.volume.volume import Volume
from jobs.check.verify import VerifyReport
from jobs.cluster.reports import ClusterScrubReport
from jobs.scrub.scrub_job import Depth, ScrubReport
from jobs.specs import job_of


@job_command(
    "scrub",
    click.option("--full", is_flag=True, help="Read every byte, not only headers and metadata."),
    click.option(
        "--share",
        metavar="PERCENT",
        help="Check only this percentage of the store, for example 5%. The next run continues"
        " where this run stopped.",
    ),
    click.option(
        "--report-only", is_flag=True, help="Read every byte and report damage; repair nothing."
    ),
)
def command(path: str, full: bool, share: str | None, report_only: bool, as_json: bool) -> None:
    """Find damage and repair it. Users can keep working."""
    if report_only and (full or share):
        raise UsageError(
            "--report-only: excludes --full and --share, because it always reads the entire store"
        )
    part = None if share is None else parse_percentage(share)
    depth = Depth.FULL if full or part is not None else Depth.QUICK
    rate = limits().bytes_per_s or None
    with Volume.open(path) as volume, all_held(volume), working(volume, "scrub") as run:
        if report_only:
            slow = volume.policy().scrub_rate_bytes_per_s if rate is None else rate
            job = job_of("verify", volume)(volume, run, slow)
        else:
            job = job_of("scrub", volume)(volume, run, depth, rate, share=part)
        report = job.recorded()
    if isinstance(report, ClusterScrubReport):
        finish_files(report, as_json, show_mended, damage=report.left)
    if isinstance(report, VerifyReport):
        finish(report, as_json, show_verified, findings=report.findings, damage=report.files_hit)
    finish(report, as_json, _show, findings=report.findings, damage=report.losses)


def _show(report: ScrubReport) -> None:
    click.echo(
        f"{report.depth}: {counted(report.containers, 'container')},"
        f" {counted(report.records, 'record')},"
        f" {format_size(report.read_bytes)} read, {counted(report.stubs, 'stub')}: {report.outcome}"
    )
    if report.left_bytes:
        click.echo(f"  {format_size(report.left_bytes)} remain for later runs")
    for source, count in report.repaired.items():
        if count:
            click.echo(f"  {counted(count, 'record')} repaired {source}")
    if report.released:
        click.echo(f"  released from quarantine: {counted(report.released, 'intact record')}")
    if report.collected:
        click.echo(
            f"  collected or lost: {counted(report.collected, 'unreferenced record')}; the next gc"
            " makes them tombstones"
        )
    if report.quarantined:
        click.echo(
            "  lost until a file with the same bytes is optimized:"
            f" {counted(report.quarantined, 'record')}"
        )
    if report.copies_written or report.copies_dropped:
        click.echo(
            f"  second copies: {report.copies_written} written"
            f" ({format_size(report.copies_written_bytes)}), {report.copies_dropped} deleted"
        )
    show_findings(report.findings)
    show_messages(len(report.messages), report.messages)
