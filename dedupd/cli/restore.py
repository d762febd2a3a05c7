"""``dedupd restore``: restore files from an unmounted volume or a copy of one."""

import os

import click

from dedupd.cli.common import (
    PATH,
    exits,
    job_run,
    json_option,
    other_owners_option,
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
    help="Directory of a volume, of a copy of a volume, or of a copy of its .dedupd.",
)
@click.option(
    "--to",
    "target",
    metavar="DIRECTORY",
    required=True,
    type=PATH,
    help="Target directory. Existing files are kept.",
)
@trust_holes_option
@privileges_option
@other_owners_option
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
    """Restore PATHS (files or folders) from an unmounted volume, or from a copy of a volume.

    PATHS are relative to the root of the volume; . means the entire volume. The volume is not
    changed. Every byte is verified; damaged files are reported and skipped. Owners are restored
    only if root runs the command, and privileges only with --privileges.
    """
    if not os.path.isdir(target):
        raise UsageError(f"{target}: no such directory to restore to; create it first")
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
        text += f"; {report.already} already present"
    if report.damaged:
        text += f"; {counted(report.damaged, 'file')} damaged and skipped"
    click.echo(text)
