"""``dedupd run optimize``: turn the files that the policy selects into stubs."""

from functools import partial

import click

from dedupd.cli.cluster_reports import show_stored
from dedupd.cli.common import print_json
from dedupd.cli.job_limits import limits, verify_new_headers, working
from dedupd.cli.left_out import RunPlace, left_out, outcome_of
from dedupd.cli.report import finish, finish_files, show_messages
from dedupd.cli.via_service import job_command
from dedupd_core.config.policy import Policy
from dedupd_core.units import counted, format_duration, format_size
from dedupd_core.volume.volume import Volume
from jobs.cluster.reports import ClusterOptimizeReport
from jobs.optimize.optimize_report import OptimizeReport
from jobs.specs import job_of
from jobs.tree.candidates import JudgedFiles, SkippedFiles, candidates
from jobs.tree.judged_files import load_ledger


@job_command(
    "optimize",
    click.option(
        "--dry-run",
        is_flag=True,
        help="Report the files that would be optimized; change nothing.",
    ),
)
def command(path: str, dry_run: bool, as_json: bool) -> None:
    """Deduplicate the files that the policy selects."""
    volume, below = Volume.locate_existing(path)
    volume.limits = limits().keys
    if dry_run:
        with volume, volume.tree_lock(reads_only=True):
            _dry_run(volume, below, as_json)
        return
    with volume, volume.append_lock():
        with working(volume, "optimize") as run:
            report = job_of("optimize", volume)(volume, run, below).recorded()
            verify_new_headers(volume, run)
        policy, place = Policy() if as_json else volume.policy(), RunPlace(path, volume.root)
    if isinstance(report, ClusterOptimizeReport):
        finish_files(report, as_json, show_stored)
    finish(report, as_json, partial(_show, policy=policy, place=place), findings=report.errors)


def _dry_run(volume: Volume, below: bytes, as_json: bool) -> None:
    skipped, errors = SkippedFiles(), list[str]()
    files = size = 0
    policy = volume.policy()
    judged = JudgedFiles(load_ledger(volume, policy))
    for candidate in candidates(volume, policy, below, skipped, errors, judged=judged):
        files += 1
        size += candidate.work_bytes
    report = {
        "job": "optimize",
        "dry_run": True,
        "files": files,
        "bytes": size,
        "files_skipped": skipped.files,
        "messages": errors,
    }
    if as_json:
        print_json(report)
    else:
        click.echo(f"would optimize {counted(files, 'file')}, {format_size(size)}")
        for line in left_out(
            policy, RunPlace(volume.root, volume.root), skipped.files, skipped.size_bytes
        ):
            click.echo(f"  {line}")


def _show(report: OptimizeReport, *, policy: Policy, place: RunPlace) -> None:
    if report.sums.raw_bytes or report.files_optimized or report.files_made_plain:
        _show_work(report)
    show_messages(report.errors, report.messages)
    for line in outcome_of(report, policy, place):
        click.echo(line)


def _show_work(report: OptimizeReport) -> None:
    from dedupd.cli.terminal import figures, show

    sums, used = report.sums, report.resources
    table = figures()
    raw = sums.raw_bytes
    table.add_row("files optimized", f"{report.files_optimized}")
    table.add_row("read", format_size(raw))
    table.add_row("zeros and holes", format_size(sums.zero_bytes))
    table.add_row("duplicates", format_size(sums.duplicate_bytes))
    table.add_row(
        "new",
        f"{format_size(sums.new_raw_bytes)} in {counted(sums.new_chunks, 'chunk')}",
    )
    table.add_row("stored", f"{format_size(sums.stored_bytes + report.recipe_bytes)}")
    freed = format_size(report.freed_bytes)
    if report.shared_taken_bytes:
        freed += (
            f", up to {format_size(report.shared_taken_bytes)} of it kept by snapshots or copies"
            " below"
        )
    table.add_row("blocks freed", freed)
    before, after = format_size(report.free_bytes_before), format_size(report.free_bytes_after)
    table.add_row("free", f"{before} before, {after} after")
    if report.cut_bytes:
        table.add_row("discarded", format_size(report.cut_bytes))
    if report.shared_left_bytes:
        table.add_row("skipped, shared blocks", format_size(report.shared_left_bytes))
    if report.files_made_plain:
        table.add_row(
            "expanded",
            f"{counted(report.files_made_plain, 'file')} in use and mostly rewritten,"
            f" {format_size(report.filled_bytes)}",
        )
    table.add_row("time", format_duration(used["wall_s"]))
    if raw and used["wall_s"]:
        table.add_row("throughput", f"{raw / used['wall_s'] / 1e6:.0f} MB/s")
    show(table)
