"""Jobs on volumes whose chunks are in a cluster, and their reports, shown. It is imported for these
volumes alone."""

from typing import NoReturn

import click

from dedupd.cli.job_limits import working
from dedupd.cli.report import finish_files
from dedupd_core.rados.collection import GRACE_S
from dedupd_core.units import counted, format_size
from dedupd_core.volume.volume import Volume
from jobs.cluster.gc import ClusterGc, ClusterGcReport
from jobs.cluster.optimize import ClusterOptimize, ClusterOptimizeReport
from jobs.cluster.scrub import ClusterScrub, ClusterScrubReport


def optimize(volume: Volume, below: bytes, as_json: bool) -> NoReturn:
    """``below``: where in the tree."""
    with working(volume, "optimize") as run:
        report = ClusterOptimize(volume, run, below).recorded()
    finish_files(report, as_json, show_stored)


def collect(volume: Volume, all_garbage: bool, as_json: bool) -> NoReturn:
    with working(volume, "gc", unit="items") as run:
        report = ClusterGc(volume, run, 0.0 if all_garbage else GRACE_S).recorded()
    finish_files(report, as_json, show_forgotten)


def scrub(volume: Volume, part: float, as_json: bool) -> NoReturn:
    """``part``: of the chunks, from 0 to 1, which are read."""
    with working(volume, "scrub") as run:
        report = ClusterScrub(volume, run, part).recorded()
    finish_files(report, as_json, show_mended, damage=report.left)


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
