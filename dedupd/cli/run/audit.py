"""``dedupd run audit``: audit the cluster store of a volume."""

import click

from dedupd.cli.cluster_reports import show_audited
from dedupd.cli.job_limits import working
from dedupd.cli.report import finish_files
from dedupd.cli.via_service import job_command
from dedupd_core.shared.fellows import all_held
from dedupd_core.volume.volume import Volume
from jobs.specs import job_of


@job_command(
    "audit",
    click.option("--read", is_flag=True, help="Read the content of all chunks too."),
    click.option("--if-due", is_flag=True, help="Do nothing if another host did this recently."),
)
def command(path: str, read: bool, if_due: bool, as_json: bool) -> None:
    """Audit the cluster store of the volume.

    Report missing and damaged objects, and delete unreferenced ones. It is enough that one host
    audits. All hosts can keep writing.
    """
    with Volume.open(path) as volume, all_held(volume):
        job = job_of("audit", volume)
        with working(volume, "audit", unit="items") as run:
            report = job(volume, run, reads_chunks=read, if_due=if_due).recorded()
    finish_files(report, as_json, show_audited, damage=report.dangling + report.damaged)
