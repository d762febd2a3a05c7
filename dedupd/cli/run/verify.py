"""``dedupd run verify``: check every invariant, offline."""

import click

from dedupd.cli.common import PATH, exits, json_option
from dedupd.cli.job_limits import working
from dedupd.cli.report import finish, show_findings
from dedupd_core.errors import Busy
from dedupd_core.shared.fellows import all_held
from dedupd_core.units import counted
from dedupd_core.volume.volume import Volume
from jobs.check.verify import Verify, VerifyReport


@click.command("verify")
@click.argument("path", type=PATH)
@json_option
@exits
def command(path: str, as_json: bool) -> None:
    """Read all data and metadata, and check that they agree.

    The volume must not be mounted.
    """
    with Volume.open(path) as volume:
        if volume.is_mounted:
            raise Busy(
                f"{path}: verify works offline; unmount the volume first: `dedupd umount {path}`"
            )
        with (
            all_held(volume, reads_only=True),
            volume.mount_lock(reads_only=True),
            working(volume, "verify", unit="files") as run,
        ):
            report = Verify(volume, run).recorded()
    finish(report, as_json, show, findings=report.findings, damage=report.files_hit)


def show(report: VerifyReport) -> None:
    """Print what was checked, and the violations."""
    click.echo(
        f"{counted(report.containers, 'container')}, {counted(report.records, 'record')},"
        f" {counted(report.stubs, 'stub')},"
        f" {counted(report.plain_files, 'plain file')}: {report.outcome}"
    )
    show_findings(report.findings)
