"""``dedupd import``: copy a directory into a volume and deduplicate it on the fly."""

import os

import click

from dedupd.cli.common import (
    PATH,
    exits,
    job_run,
    json_option,
    other_owners_option,
    privileges_option,
)
from dedupd.cli.report import finish_files
from dedupd_core.errors import UsageError
from dedupd_core.units import counted, format_size
from dedupd_core.volume.volume import Volume
from jobs.importing import Import, ImportReport


@click.command("import")
@click.argument("source", type=PATH)
@click.argument("path", type=PATH)
@click.argument("folder", default="")
@privileges_option
@other_owners_option
@json_option
@exits
def command(
    source: str, path: str, folder: str, privileges: bool, force: bool, as_json: bool
) -> None:
    """Copy the directory SOURCE into the volume PATH, below FOLDER, and deduplicate on the fly.

    Owners, modes, ACLs, attributes, times, links and holes are kept. Privileges are kept only with
    --privileges. The import copies and deduplicates in batches, and keeps the reserve of the policy
    free, so SOURCE can be larger than the free space. To continue an interrupted import, run the
    command again.
    """
    if not os.path.isdir(source):
        raise UsageError(f"{source}: no such directory to import")
    if os.path.isabs(folder) or ".." in folder.split("/"):
        raise UsageError(f"{folder}: not a path within the volume; use a form such as projects/old")
    with Volume.open(path) as volume, volume.append_lock(), job_run("import") as run:
        job = Import(
            *(volume, run, source, os.fsencode(folder)), privileges=privileges, force=force
        )
        report = job.run()
    finish_files(report, as_json, _show)


def _show(report: ImportReport) -> None:
    text = f"{counted(report.files, 'file')} imported, {format_size(report.length_bytes)}"
    if report.already:
        text += f"; {report.already:,} already present"
    grown = report.room_bytes_before - report.room_bytes_after
    click.echo(f"{text}; free space decreased by {format_size(max(0, grown))}")
