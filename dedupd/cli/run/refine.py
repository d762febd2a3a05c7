"""``dedupd run refine``: recompress cold chunks as differences to similar chunks."""

import click

from dedupd.cli.job_limits import verify_new_headers, working
from dedupd.cli.report import finish_files
from dedupd.cli.via_service import job_command
from dedupd_core.config.policy import RefineMode
from dedupd_core.units import counted, format_size
from dedupd_core.volume.volume import Volume
from jobs.refine.refine_job import Refine, RefineReport

_MODES = [mode.value for mode in RefineMode if mode is not RefineMode.OFF]


@job_command(
    "refine",
    click.option(
        "--mode",
        type=click.Choice(_MODES),
        help="How much work to do. Default: the mode in the policy.",
    ),
)
def command(path: str, mode: str | None, as_json: bool) -> None:
    """Recompress cold chunks as differences to similar chunks. Users can keep working."""
    with Volume.open(path) as volume, volume.job_lock(), working(volume, "refine") as run:
        job = Refine(volume, run, None if mode is None else RefineMode(mode))
        report = job.recorded()
        verify_new_headers(volume, run)
    finish_files(report, as_json, _show)


def _show(report: RefineReport) -> None:
    click.echo(
        f"{report.outcome}: {counted(report.rewritten, 'container')} of"
        f" {report.containers_waiting} rewritten, {report.not_worth_it} not worthwhile,"
        f" {report.containers_young} too young; {counted(report.new_deltas, 'chunk')} stored as"
        f" differences, {counted(report.new_with_dictionary, 'chunk')} with a dictionary;"
        f" {format_size(report.saved_bytes)} saved of {format_size(report.looked_bytes)}"
    )
