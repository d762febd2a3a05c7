"""``dedupd store rejoin``: register a moved volume, or an older copy of one, again."""

from functools import partial

import click

from dedupd.cli.common import PATH, exits, job_run, json_option
from dedupd.cli.report import finish
from dedupd_core.units import counted
from dedupd_core.volume.volume import Volume
from jobs.rejoin import Rejoin, RejoinReport


@click.command("rejoin")
@click.argument("path", type=PATH)
@click.option(
    "--accept-losses", is_flag=True, help="Register the volume even if chunks are missing."
)
@json_option
@exits
def command(path: str, accept_losses: bool, as_json: bool) -> None:
    """Register the volume PATH with its store again.

    This is necessary after the volume was moved or renamed, or after the volume or the store was
    restored from an older copy. The command first checks that all chunks exist.
    """
    with Volume.open(path) as volume, job_run("rejoin", unit="stubs") as run:
        report = Rejoin(volume, run, accepts_losses=accept_losses).run()
    finish(report, as_json, partial(_show, path=path), damage=report.losses)


def _show(report: RejoinReport, *, path: str) -> None:
    for loss in report.losses:
        click.echo(f"  {loss.path}: bytes {loss.start} to {loss.end}: {loss.reason}", err=True)
    click.echo(f"{path}: {counted(report.stubs, 'stub')}: {report.outcome}")
