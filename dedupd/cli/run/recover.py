"""``dedupd run recover``: roll back unfinished work of dead hosts on the same cluster store."""

import click

from dedupd.cli.cluster_reports import show_recovered
from dedupd.cli.job_limits import working
from dedupd.cli.report import finish_files
from dedupd.cli.via_service import job_command
from dedupd_core.shared.fellows import all_held
from dedupd_core.volume.volume import Volume
from jobs.specs import job_of


@job_command(
    "recover",
    click.option("--if-due", is_flag=True, help="Do nothing if another host did this recently."),
)
def command(path: str, if_due: bool, as_json: bool) -> None:
    """Roll back the unfinished work of dead hosts.

    The command handles all dead hosts that use the same cluster store as the volume. They are
    fenced first. It is enough to run it on one host.
    """
    with Volume.open(path) as volume, all_held(volume):
        job = job_of("recover", volume)
        with working(volume, "recover", unit="items") as run:
            report = job(volume, run, if_due=if_due).recorded()
    finish_files(report, as_json, show_recovered)
