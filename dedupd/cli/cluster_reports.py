"""The output of jobs on volumes whose chunks are in a cluster."""

import click

from dedupd_core.units import counted, format_moment, format_size
from jobs.cluster.reports import (
    ELSEWHERE,
    ClusterAuditReport,
    ClusterGcReport,
    ClusterOptimizeReport,
    ClusterScrubReport,
    RecoverReport,
    TurnReport,
    gone_text,
)


def show_stored(report: ClusterOptimizeReport) -> None:
    """Print the report of optimize."""
    files = counted(report.files_optimized, "file")
    click.echo(
        f"{files} optimized, {format_size(report.logical_bytes)};"
        f" {format_size(report.freed_bytes)} freed on this host."
    )
    chunks = ", ".join(f"{count:,} {name}" for name, count in sorted(report.arrivals.items()))
    if chunks:
        click.echo(f"  chunks: {chunks}")
    for reason, count in sorted(report.files_left.items()):
        click.echo(f"  skipped: {counted(count, 'file')}, {reason}")


def show_forgotten(report: ClusterGcReport) -> None:
    """Print the report of gc."""
    click.echo(
        f"{counted(report.files, 'file')} checked, {report.files_forgotten:,} of them deleted."
        f" {counted(report.candidates, 'garbage candidate')} in the store:"
        f" {report.chunks_removed:,} removed, {report.chunks_waiting:,} waiting."
    )


def show_mended(report: ClusterScrubReport) -> None:
    """Print the report of scrub."""
    click.echo(
        f"{counted(report.chunks, 'chunk')} read, {format_size(report.read_bytes)};"
        f" {counted(report.damaged, 'chunk')} of the store damaged"
    )
    for source, count in sorted(report.repaired.items()):
        click.echo(f"  repaired {source}: {counted(count, 'chunk')}")
    if report.left:
        click.echo(
            f"  not repaired: {counted(report.left, 'chunk')}; another host may have the data"
        )


def _done_by(report: TurnReport) -> str:
    return f"{report.done_by}, {format_moment(report.done_s)}" if report.done_by else "no host yet"


def show_recovered(report: RecoverReport) -> None:
    """Print the report of recover."""
    if report.volumes:
        click.echo(
            f"{counted(report.volumes, 'volume')} checked,"
            f" {counted(report.versions_retired, 'file version')} rolled back. Interrupted"
            f" sessions that only their own host can settle: {counted(report.waiting, 'volume')}."
        )
    else:
        click.echo(f"Last checked by {_done_by(report)}.")
    for one in report.gone:
        click.echo(f"  {gone_text(one)}")


def show_audited(report: ClusterAuditReport) -> None:
    """Print the report of audit."""
    if report.outcome == ELSEWHERE:
        click.echo(f"Last audited by {_done_by(report)}.")
        return
    click.echo(
        f"{counted(report.files, 'file')}, {counted(report.chunks, 'chunk')},"
        f" {counted(report.references, 'reference')}; {counted(report.pinned, 'pinned chunk')},"
        f" {counted(report.candidates, 'garbage candidate')}; {report.dangling:,} missing,"
        f" {report.damaged:,} damaged, {report.let_go:,} unreferenced and deleted."
    )
