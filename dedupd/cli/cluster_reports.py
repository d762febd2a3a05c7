"""The reports of jobs on volumes whose chunks are in a cluster, shown."""

import click

from dedupd.cli.report import show_messages
from dedupd.units import counted, format_size
from jobs.cluster.gc import ClusterGcReport
from jobs.cluster.optimize import ClusterOptimizeReport
from jobs.cluster.scrub import ClusterScrubReport


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
    show_messages(report.errors, report.messages)


def show_forgotten(report: ClusterGcReport) -> None:
    """After gc."""
    click.echo(
        f"{counted(report.files, 'file')} looked at, {report.files_forgotten:,} are gone; of the"
        f" store's {counted(report.candidates, 'garbage candidate')}, {report.chunks_removed:,}"
        f" were removed, and {report.chunks_waiting:,} wait."
    )
    show_messages(report.errors, report.messages)


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
    show_messages(report.errors, report.messages)
