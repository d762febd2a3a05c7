"""``dedupd adopt``: verify a copied volume and put it into use."""

import click

from dedupd.cli.common import PATH, exits, job_run, json_option, trust_holes_option
from dedupd.cli.report import finish_files
from dedupd_core.units import counted
from dedupd_core.volume.enabling.place import refuse_mounted
from jobs.adopt.adopt_job import Adopt, AdoptReport
from jobs.adopt.proof import VolumeCopy


@click.command("adopt")
@click.argument("path", type=PATH)
@trust_holes_option
@json_option
@exits
def command(path: str, trust_holes: bool, as_json: bool) -> None:
    """Verify the volume PATH, which was copied file by file, and put it into use.

    Check each stub, and report the damaged ones, which stay unreadable. If PATH is not a copy but
    the original volume, the command verifies only the stubs that were copied into it, and puts them
    into use.
    """
    with VolumeCopy.open(path) as volume:
        refuse_mounted(volume.is_mounted, path)
        with volume.tree_lock(), volume.mount_lock(), job_run("adopt", unit="stubs") as run:
            report = Adopt(volume, run, trust_holes=trust_holes).recorded()
    finish_files(report, as_json, _show)


def _show(report: AdoptReport) -> None:
    text = f"{counted(report.stubs, 'stub')}, {counted(report.adopted, 'stub')} adopted"
    if report.untrusted:
        text += f", {report.untrusted} unverified"
    if report.spoilt:
        text += f", {report.spoilt} corrupted in copying"
    click.echo(f"{text}: {report.outcome}")
