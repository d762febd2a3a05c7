"""``dedupd run unoptimize``: stubs become plain files again."""

import click

from dedupd.cli.job_limits import working
from dedupd.cli.run.report import finish, show_messages
from dedupd.cli.via_service import job_command
from dedupd.units import format_size
from dedupd.volume.volume import Volume
from jobs.unoptimize import Unoptimize, UnoptimizeReport


@job_command("unoptimize")
def command(path: str, as_json: bool) -> None:
    """Make files plain again, in a volume or below PATH in it."""
    volume, below = Volume.locate_existing(path)
    with volume, volume.job_lock(), working(volume, "unoptimize") as run:
        report = Unoptimize(volume, run, below).recorded()
    finish(report, as_json, _show, findings=report.errors)


def _show(report: UnoptimizeReport) -> None:
    click.echo(
        f"{report.files_restored} files are plain again, {format_size(report.logical_bytes)}"
    )
    show_messages(report.errors, report.messages)
