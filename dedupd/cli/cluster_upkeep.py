"""Jobs that one host does for all hosts of a store in a cluster, and their reports, shown. It is
imported for volumes on such a store alone."""

from typing import NoReturn

import click

from dedupd.cli.job_limits import working
from dedupd.cli.report import finish_files
from dedupd_core.units import counted, format_moment
from dedupd_core.volume.volume import Volume
from jobs.cluster.upkeep import (
    ELSEWHERE,
    ClusterAudit,
    ClusterAuditReport,
    ClusterRecover,
    RecoverReport,
    TurnReport,
)


def recover(volume: Volume, *, if_due: bool, as_json: bool) -> NoReturn:
    with working(volume, "recover", unit="items") as run:
        report = ClusterRecover(volume, run, if_due=if_due).recorded()
    finish_files(report, as_json, show_recovered)


def audit(volume: Volume, *, reads_chunks: bool, if_due: bool, as_json: bool) -> NoReturn:
    with working(volume, "audit", unit="items") as run:
        job = ClusterAudit(volume, run, reads_chunks=reads_chunks, if_due=if_due)
        report = job.recorded()
    damage = report.dangling + report.damaged
    finish_files(report, as_json, show_audited, damage=damage)


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
