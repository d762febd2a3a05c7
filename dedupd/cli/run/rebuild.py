"""``dedupd run rebuild``: rebuild the catalogue and the tables."""

import click

from dedupd.cli.job_limits import working
from dedupd.cli.report import finish
from dedupd.cli.via_service import job_command
from dedupd_core.shared.fellows import all_held
from dedupd_core.units import counted
from dedupd_core.volume.volume import Volume
from jobs.rebuild import Rebuild, RebuildReport


@job_command("rebuild")
def command(path: str, as_json: bool) -> None:
    """Rebuild the catalogue and the tables from the containers.

    The stubs of the tree are read, too.
    """
    with Volume.open(path) as volume, all_held(volume), working(volume, "rebuild") as run:
        report = Rebuild(volume, run).recorded()
    finish(report, as_json, _show, damage=report.losses)


def _show(report: RebuildReport) -> None:
    click.echo(
        f"{report.tables_rebuilt} of {counted(report.tables, 'table')} rebuilt;"
        f" {counted(report.records, 'record')}"
        f" for {counted(report.stubs, 'stub')}: {report.outcome}"
    )
    for item in report.not_rebuilt:
        click.echo(f"  not rebuilt: {item}")
