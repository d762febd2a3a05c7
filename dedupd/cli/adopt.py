"""``dedupd adopt``: take over a copy of a volume."""

import sys

import click

from dedupd.cli.common import PATH, exits, job_run, json_option, print_json
from dedupd.errors import EXIT_DONE, EXIT_FINDINGS, Busy
from dedupd.units import counted
from jobs.adopt.job import Adopt, AdoptReport
from jobs.adopt.volume_copy import VolumeCopy


@click.command("adopt")
@click.argument("path", type=PATH)
@click.option(
    "--trust-holes",
    is_flag=True,
    help="Take stubs with blocks of their own, too: the program that made the copy kept holes.",
)
@json_option
@exits
def command(path: str, trust_holes: bool, as_json: bool) -> None:
    """Take over PATH, a copy of a volume that was made file by file.

    Each stub is checked first. One that is not as it was is named, and cannot be read. On the
    volume itself, stubs are taken over that were copied into it.
    """
    with VolumeCopy.open(path) as volume:
        if volume.base.startswith("/proc/"):
            raise Busy(f"{path}: it is mounted; unmount it first: `dedupd umount {path}`")
        with volume.job_lock(), volume.mount_lock(), job_run("adopt", unit="stubs") as run:
            report = Adopt(volume, run, trust_holes=trust_holes).recorded()
    if as_json:
        print_json(report.to_json())
    else:
        _show(report)
    sys.exit(EXIT_FINDINGS if report.errors else EXIT_DONE)


def _show(report: AdoptReport) -> None:
    text = f"{counted(report.stubs, 'stub')}, {counted(report.adopted, 'stub')} taken over"
    if report.untrusted:
        text += f", {report.untrusted} not proved"
    if report.spoilt:
        text += f", {report.spoilt} spoilt in copying"
    click.echo(f"{text}: {report.outcome}")
    for message in report.messages:
        click.echo(f"  {message}", err=True)
    if report.errors > len(report.messages):
        click.echo(f"  and {report.errors - len(report.messages)} more", err=True)
