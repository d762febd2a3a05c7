"""The reports of jobs on volumes whose chunks are in a cluster, shown."""

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
)


def show_stored(report: ClusterOptimizeReport) -> None:
    """After optimize."""
    files = counted(report.files_optimized, "file")
    click.echo(
        f"{files} optimized, {format_size(report.logical_bytes)};"
        f" {format_size(report.freed_bytes)} freed here."
    )
    chunks = ", ".join(f"{count:,} {name}" for name, count in sorted(report.arrivals.items()))
    if chunks:
        click.echo(f"  chunks: {chunks}")
    for reason, count in sorted(report.files_left.items()):
        click.echo(f"  left: {counted(count, 'file')}, {reason}")


def show_forgotten(report: ClusterGcReport) -> None:
    """After gc."""
    click.echo(
        f"{counted(report.files, 'file')} looked at, {report.files_forgotten:,} are gone; of the"
        f" store's {counted(report.candidates, 'garbage candidate')}, {report.chunks_removed:,}"
        f" were removed, and {report.chunks_waiting:,} wait."
    )


def show_mended(report: ClusterScrubReport) -> None:
    """After scrub."""
    click.echo(
        f"{counted(report.chunks, 'chunk')} read, {format_size(report.read_bytes)};"
        f" {counted(report.damaged, 'chunk')} of the store damaged"
    )
    for source, count in sorted(report.repaired.items()):
        click.echo(f"  repaired {source}: {counted(count, 'chunk')}")
    if report.left:
        click.echo(f"  left: {counted(report.left, 'chunk')}, which another host may have")


def _done_by(report: TurnReport) -> str:
    return f"{report.done_by}, {format_moment(report.done_s)}" if report.done_by else "no host yet"


def show_recovered(report: RecoverReport) -> None:
    """After recover."""
    if report.volumes:
        click.echo(
            f"{counted(report.volumes, 'volume')} looked at:"
            f" {counted(report.versions_retired, 'file version')} taken back,"
            f" {counted(report.waiting, 'volume')} left by a session that broke off may still be"
            " ended by their own hosts."
        )
    else:
        click.echo(f"Looked at last by {_done_by(report)}.")
    for one in report.gone:
        click.echo(f"  {gone_text(one['host'], one['path'], one['since_s'], one['left'])}")


def gone_text(host: str, path: str, since_s: float, left: int) -> str:
    """Of a volume whose host has not come back."""
    since = format_moment(since_s)
    text = f"{host}:{path}: not seen since {since}; what it had begun was taken back"
    return text + (f", but for {counted(left, 'file')} that wait for it" if left else "")


def show_audited(report: ClusterAuditReport) -> None:
    """After audit."""
    if report.outcome == ELSEWHERE:
        click.echo(f"Done last by {_done_by(report)}.")
        return
    click.echo(
        f"{counted(report.files, 'file')}, {counted(report.chunks, 'chunk')},"
        f" {counted(report.references, 'reference')}; {counted(report.pinned, 'pinned chunk')},"
        f" {counted(report.candidates, 'garbage candidate')}: {report.dangling:,} missing,"
        f" {report.damaged:,} damaged, {report.let_go:,} that nothing needs were let go of."
    )
