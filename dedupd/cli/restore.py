"""``dedupd restore``: files and folders out of a copy of a volume."""

import os

import click

from dedupd.cli.common import (
    PATH,
    exits,
    force_option,
    job_run,
    json_option,
    privileges_option,
    trust_holes_option,
)
from dedupd.cli.report import finish_files
from dedupd_core.errors import UsageError
from dedupd_core.units import counted, format_size
from jobs.backup.restore import Restore, RestoreReport
from jobs.backup.source import BackupSource


@click.command("restore")
@click.argument("paths", nargs=-1, required=True)
@click.option(
    "--from",
    "source",
    metavar="VOLUME",
    required=True,
    type=PATH,
    help="The directory of a volume or of a copy of it, or a copy of its .dedupd.",
)
@click.option(
    "--to",
    "target",
    metavar="DIRECTORY",
    required=True,
    type=PATH,
    help="Where the files are to be put; nothing there is overwritten.",
)
@trust_holes_option
@privileges_option
@force_option
@json_option
@exits
def command(
    paths: tuple[str, ...],
    source: str,
    target: str,
    trust_holes: bool,
    privileges: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Take PATHS, files or folders, out of a volume that is not mounted, or a copy of one.

    PATHS begin at the root of the volume; . stands for all of it. Nothing in the volume is changed.
    Every byte is checked: a file that is damaged is named and left out. Root restores owners, and
    restores nothing that gives rights without --privileges.
    """
    if not os.path.isdir(target):
        raise UsageError(f"{target}: no such directory to restore to; make it")
    with BackupSource.found(source) as volume, job_run("restore") as run:
        restore = Restore(
            *(volume, run, target),
            trust_holes=trust_holes,
            privileges=privileges,
            force=force,
        )
        report = restore.run([os.fsencode(path.lstrip("/")) for path in paths])
    finish_files(report, as_json, _show, damage=report.damaged)


def _show(report: RestoreReport) -> None:
    text = f"{counted(report.files, 'file')} restored, {format_size(report.length_bytes)}"
    if report.already:
        text += f"; {report.already} were there already"
    if report.damaged:
        text += f"; {counted(report.damaged, 'file')} damaged, and left out"
    click.echo(text)
