"""``dedupd run``: one job, by the service if it runs, else in the foreground."""

import sys
from dataclasses import asdict
from typing import Any, Protocol, TypeVar

import click
from rich.table import Table

from dedupd.cli.common import console, exits, json_option, print_json
from dedupd.cli.conduct import Conduct, working
from dedupd.cli.through import through_service
from dedupd.errors import EXIT_DAMAGED, EXIT_DONE, EXIT_FINDINGS, DedupdError, UsageError
from dedupd.units import format_duration, format_size, parse_size
from dedupd.volume import Volume
from jobs.compact import Compact, CompactReport
from jobs.frame import JobRun, record_run
from jobs.gc import Gc, GcReport
from jobs.optimize import Optimize, OptimizeReport
from jobs.rebuild import Rebuild, RebuildReport
from jobs.reconcile import Reconcile, ReconcileReport, Strategy
from jobs.scrub import Depth, Scrub, ScrubReport
from jobs.unoptimize import Unoptimize, UnoptimizeReport
from jobs.verify import Verify, VerifyReport


@click.group("run")
@click.option("--here", is_flag=True, help="In this process, also where the service runs.")
@click.option("--gentle", is_flag=True, help="Slow down and pause while users are at work.")
@click.pass_context
def command(context: click.Context, here: bool, gentle: bool) -> None:
    """Run one job on a volume, or on a part of its tree, at the lowest priority.

    Where the service runs and serves the volume, it runs the job.
    """
    context.obj = Conduct(here or gentle, gentle)


@command.command("optimize")
@click.argument("path", type=click.Path())
@click.option("--dry-run", is_flag=True, help="Only say what would be optimised.")
@json_option
@exits
@through_service("optimize")
def optimize_command(path: str, dry_run: bool, as_json: bool) -> None:
    """Deduplicate the files that the policy takes."""
    volume, below = Volume.locate(path)
    with volume, volume.job_lock():
        if dry_run:
            _dry_run(volume, below, as_json)
            return
        with working(volume, "optimize") as run:
            job = Optimize(volume, run, below)
            report = recorded(volume, run, job)
    _finish(asdict(report), report.errors, as_json, lambda: _show_optimize(report))


def _dry_run(volume: Volume, below: bytes, as_json: bool) -> None:
    from jobs.scan import Skipped, candidates

    skipped, errors = Skipped(), list[str]()
    files = size = 0
    for candidate in candidates(volume, volume.policy(), below, skipped, errors):
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
        click.echo(f"would optimise {files} files, {format_size(size)}")
        for reason, count in skipped.files.items():
            click.echo(f"  left: {count} {reason}")


@command.command("unoptimize")
@click.argument("path", type=click.Path())
@json_option
@exits
@through_service("unoptimize")
def unoptimize_command(path: str, as_json: bool) -> None:
    """Make files plain again: the whole volume PATH, or what lies below PATH in it."""
    volume, below = Volume.locate(path)
    with volume, volume.job_lock(), working(volume, "unoptimize") as run:
        report = recorded(volume, run, Unoptimize(volume, run, below))
    _finish(asdict(report), report.errors, as_json, lambda: _show_unoptimize(report))


@command.command("gc")
@click.argument("path", type=click.Path())
@click.option("--full", is_flag=True, help="Read all recipes, also those that earlier runs have.")
@click.option("--dry-run", is_flag=True, help="Only say what would become an orphan.")
@json_option
@exits
@through_service("gc")
def gc_command(path: str, full: bool, dry_run: bool, as_json: bool) -> None:
    """Find chunks that no file needs any more. Users keep working meanwhile."""
    with Volume.open(path) as volume, volume.job_lock(), working(volume, "gc", unit="items") as run:
        job = Gc(volume, run, full=full, dry_run=dry_run)
        report = job.run() if dry_run else recorded(volume, run, job)
    _finish(asdict(report), report.errors, as_json, lambda: _show_gc(report))


@command.command("compact")
@click.argument("path", type=click.Path())
@click.option("--dry-run", is_flag=True, help="Only say how much there is to be freed.")
@json_option
@exits
@through_service("compact")
def compact_command(path: str, dry_run: bool, as_json: bool) -> None:
    """Give the space of collected chunks back. Users keep working meanwhile."""
    with Volume.open(path) as volume, volume.job_lock(), working(volume, "compact") as run:
        job = Compact(volume, run, dry_run=dry_run)
        report = job.run() if dry_run else recorded(volume, run, job)
    _finish(asdict(report), report.errors, as_json, lambda: _show_compact(report))


@command.command("reconcile")
@click.argument("path", type=click.Path())
@click.option(
    "--strategy",
    type=click.Choice([strategy.value for strategy in Strategy]),
    default=Strategy.ALL.value,
    help="all; selective: partitions that a sample says are worth it; delayed: while idle.",
)
@click.option("--dry-run", is_flag=True, help="Only say what partitions have in common.")
@json_option
@exits
@through_service("reconcile")
def reconcile_command(path: str, strategy: str, dry_run: bool, as_json: bool) -> None:
    """Merge chunks that several partitions have. Users keep working meanwhile."""
    with (
        Volume.open(path) as volume,
        volume.job_lock(),
        working(volume, "reconcile", unit="records") as run,
    ):
        job = Reconcile(volume, run, Strategy(strategy), dry_run=dry_run)
        report = job.run() if dry_run else recorded(volume, run, job)
    _finish(asdict(report), report.errors, as_json, lambda: _show_reconcile(report))


@command.command("scrub")
@click.argument("path", type=click.Path())
@click.option("--full", is_flag=True, help="Read every byte; else headers and metadata only.")
@click.option("--rate", metavar="SIZE", help="Bytes to read in a second, like 50M; 0 is no limit.")
@json_option
@exits
@through_service("scrub")
def scrub_command(path: str, full: bool, rate: str | None, as_json: bool) -> None:
    """Find damage and repair it. Users keep working meanwhile."""
    depth = Depth.FULL if full else Depth.QUICK
    bytes_per_s = None if rate is None else parse_size(rate)
    with Volume.open(path) as volume, volume.job_lock(), working(volume, "scrub") as run:
        job = Scrub(volume, run, depth, bytes_per_s)
        report = recorded(volume, run, job)
    if as_json:
        print_json(asdict(report))
    else:
        _show_scrub(report)
    sys.exit(EXIT_DAMAGED if report.losses else EXIT_FINDINGS if report.findings else EXIT_DONE)


@command.command("rebuild")
@click.argument("path", type=click.Path())
@json_option
@exits
@through_service("rebuild")
def rebuild_command(path: str, as_json: bool) -> None:
    """Make catalogue and tables anew from the containers and the stubs alone."""
    with Volume.open(path) as volume, volume.job_lock(), working(volume, "rebuild") as run:
        report = recorded(volume, run, Rebuild(volume, run))
    if as_json:
        print_json(asdict(report))
    else:
        click.echo(
            f"{report.tables_rebuilt} of {report.tables} tables made anew; {report.records} records"
            f" for {report.stubs} stubs: {report.outcome}"
        )
        for what in report.not_rebuilt:
            click.echo(f"  not rebuilt: {what}")
    sys.exit(EXIT_DAMAGED if report.losses else EXIT_DONE)


@command.command("verify")
@click.argument("path", type=click.Path())
@json_option
@exits
def verify_command(path: str, as_json: bool) -> None:
    """Read everything and check every invariant. The volume must not be mounted."""
    with Volume.open(path) as volume:
        if volume.base.startswith("/proc/"):
            raise UsageError(f"{path}: verify works offline; unmount the volume first")
        with volume.job_lock(), volume.mount_lock(), working(volume, "verify", unit="files") as run:
            report = recorded(volume, run, Verify(volume, run))
    if as_json:
        print_json(asdict(report))
    else:
        _show_verify(report)
    sys.exit(EXIT_DAMAGED if report.files_hit else EXIT_FINDINGS if report.findings else EXIT_DONE)


_Report = TypeVar(
    "_Report",
    CompactReport,
    GcReport,
    OptimizeReport,
    RebuildReport,
    ReconcileReport,
    ScrubReport,
    UnoptimizeReport,
    VerifyReport,
)


_Said_co = TypeVar("_Said_co", covariant=True)


class _Job(Protocol[_Said_co]):
    """What every job is: something to run, that can say at any time how far it got."""

    def run(self) -> _Said_co: ...
    def report(self) -> _Said_co: ...


def recorded(volume: Volume, run: JobRun, job: _Job[_Report]) -> _Report:
    """Run a job and keep its report in the history, also where it stops half way."""
    try:
        report = job.run()
    except DedupdError as error:
        report = job.report()
        report.outcome = str(error)
        record_run(volume, run, asdict(report))
        raise
    record_run(volume, run, asdict(report))
    return report


def _finish(report: dict[str, Any], errors: int, as_json: bool, show: Any) -> None:
    if as_json:
        print_json(report)
    else:
        show()
    sys.exit(EXIT_FINDINGS if errors else EXIT_DONE)


def _show_messages(count: int, messages: list[str]) -> None:
    for message in messages:
        click.echo(f"  {message}", err=True)
    if count > len(messages):
        click.echo(f"  and {count - len(messages)} more", err=True)


def _show_optimize(report: OptimizeReport) -> None:
    sums, used = report.sums, report.resources
    table = Table(show_header=False, box=None, pad_edge=False)
    raw = sums["raw_bytes"]
    table.add_row("files optimised", f"{report.files_optimised}")
    table.add_row("read", format_size(raw))
    table.add_row("zeros", format_size(sums["zero_bytes"]))
    table.add_row("duplicates", format_size(sums["duplicate_bytes"]))
    table.add_row("new", f"{format_size(sums['new_raw_bytes'])} in {sums['new_chunks']} chunks")
    table.add_row("stored", f"{format_size(sums['stored_bytes'] + report.recipe_bytes)}")
    index = report.index
    table.add_row(
        "index",
        f"{report.index_entries} chunks; {index.lookups} look-ups, {index.hits} found,"
        f" {index.false_positives} false, {index.disk_reads} reads",
    )
    table.add_row("time", format_duration(used["wall_s"]))
    if raw and used["wall_s"]:
        table.add_row("throughput", f"{raw / used['wall_s'] / 1e6:.0f} MB/s")
    for reason, count in {**report.files_skipped, **report.files_left}.items():
        table.add_row("left", f"{count} {reason}")
    console().print(table)
    _show_messages(report.errors, report.messages)


def _show_unoptimize(report: UnoptimizeReport) -> None:
    click.echo(
        f"{report.files_restored} files are plain again, {format_size(report.logical_bytes)}"
    )
    _show_messages(report.errors, report.messages)


def _show_gc(report: GcReport) -> None:
    known = ", the others were known" if report.resumed else ""
    click.echo(
        f"{report.stubs} stubs need {report.chunks_needed} of {report.chunks} chunks"
        f" ({report.recipes} recipes read{known});"
        f" {report.orphaned_chunks} chunks and {report.orphaned_recipes} recipes"
        f" ({format_size(report.orphaned_bytes)}) are garbage now,"
        f" {report.orphans_before} were before: {report.outcome}"
    )
    _show_messages(report.errors, report.messages)


def _show_compact(report: CompactReport) -> None:
    click.echo(
        f"{format_size(report.dead_bytes)} of {format_size(report.stored_bytes)} in"
        f" {report.containers} containers were garbage; {format_size(report.freed_bytes)} freed:"
        f" {report.rewritten} containers rewritten, {report.removed} removed,"
        f" {report.below_threshold} left below the threshold"
    )
    _show_messages(report.errors, report.messages)


def _show_reconcile(report: ReconcileReport) -> None:
    table = Table(
        "partition", "types", "files", "stored", "elsewhere too", box=None, pad_edge=False
    )
    for row in report.partitions:
        share = row.duplicate_raw_bytes / row.raw_bytes if row.raw_bytes else 0.0
        table.add_row(
            str(row.partition),
            row.types,
            format_size(row.logical_bytes),
            format_size(row.raw_bytes),
            f"{format_size(row.duplicate_raw_bytes)} ({share:.1%})",
        )
    console().print(table)
    click.echo(
        f"savings {report.savings_partitioned:.1%} within partitions,"
        f" {report.savings_global:.1%} without; {report.merged.chunks} chunks"
        f" ({format_size(report.merged.stored_bytes)}) merged in {report.rounds} rounds:"
        f" {report.outcome}"
    )
    _show_messages(report.errors, report.messages)


def _show_scrub(report: ScrubReport) -> None:
    click.echo(
        f"{report.depth}: {report.containers} containers, {report.records} records,"
        f" {format_size(report.read_bytes)} read, {report.stubs} stubs: {report.outcome}"
    )
    for source, count in report.repaired.items():
        if count:
            click.echo(f"  {count} records repaired {source}")
    if report.released:
        click.echo(f"  {report.released} records that were quarantined are right after all")
    if report.quarantined:
        click.echo(
            f"  {report.quarantined} records are lost; the next optimise that meets their bytes"
            " brings them back"
        )
    if report.copies_written or report.copies_dropped:
        click.echo(
            f"  {report.copies_written} second copies written"
            f" ({format_size(report.copies_written_bytes)}), {report.copies_dropped} given up"
        )
    for finding in report.findings:
        click.echo(f"  {finding.invariant}: {finding.where}: {finding.detail}")
    for message in report.messages:
        click.echo(f"  {message}", err=True)


def _show_verify(report: VerifyReport) -> None:
    click.echo(
        f"{report.containers} containers, {report.records} records, {report.stubs} stubs,"
        f" {report.plain_files} plain files: {report.outcome}"
    )
    for finding in report.findings:
        click.echo(f"  {finding.invariant}: {finding.where}: {finding.detail}")
