"""``dedupd analyze``: estimate the savings for any directory."""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from dedupd.cli.common import PATH, exits, job_run, json_option, print_json
from dedupd.cli.terminal import figures, show
from dedupd_core.config.policy import Policy
from dedupd_core.errors import EXIT_DONE, EXIT_FINDINGS, UsageError
from dedupd_core.units import format_size

if TYPE_CHECKING:
    from analysis.collection.chunk_log import Log, Spec
    from analysis.report.advice import Advice
    from analysis.study import Study

LOG_DIRECTORY = "log"


@click.command("analyze")
@click.argument("paths", nargs=-1, type=PATH)
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="NAME=PATH",
    help="Study the tree PATH, and call it NAME in the report. If names have the form"
    " PLACE/WORKLOAD, the report groups the trees by both parts.",
)
@click.option(
    "--out",
    default="dedupd-analysis",
    show_default=True,
    type=PATH,
    help="Directory for the chunk log and the report. If this directory contains an interrupted"
    " study, the study continues.",
)
@click.option(
    "--sample",
    default="100%",
    show_default=True,
    help="Estimate from this fraction of the distinct chunks, for example 1%.",
)
@click.option(
    "--merge",
    multiple=True,
    type=PATH,
    metavar="DIR",
    help="Also analyze the log of an earlier study; DIR is the output directory of that study.",
)
@click.option(
    "--chunking",
    "chunkings",
    multiple=True,
    help="Include only this method of chunking in the comparison. Repeatable; default: all.",
)
@click.option(
    "--no-compression",
    is_flag=True,
    help="Skip the measurement of compression, which takes most of the time.",
)
@json_option
@exits
def command(
    paths: tuple[str, ...],
    labels: tuple[str, ...],
    out: str,
    sample: str,
    merge: tuple[str, ...],
    chunkings: tuple[str, ...],
    no_compression: bool,
    as_json: bool,
) -> None:
    """Study the files below each PATH, and report savings, chunk sizes, partitions and advice.

    The study needs no volume. It writes only to the directory of the report.
    """
    from analysis.collection.chunk_log import Log
    from analysis.collection.collector import collect
    from analysis.report.findings import findings
    from analysis.report.study_report import HTML, write_report
    from analysis.report.study_report import as_json as report_json
    from analysis.study import run_study
    from dedupd_core.system.processes import give_way

    logs = [Log.open(os.path.join(path, LOG_DIRECTORY)) for path in merge]
    if paths or labels:
        level = 0 if no_compression else Policy().compression_level
        spec = _spec(paths, labels, parse_fraction(sample), chunkings, level)
        log = open_log(os.path.join(out, LOG_DIRECTORY), spec)
        give_way()
        with job_run("analyze") as run:
            collect(log, out, run)
        logs.insert(0, log)
    elif not logs:
        raise UsageError("no directory is given; name one, or an earlier study with --merge")
    os.makedirs(out, exist_ok=True)
    with job_run("analyze", unit="queries") as run:
        study = run_study(
            logs, os.path.join(out, "database"), lambda query: run.update(phase=query)
        )
    advice = write_report(study, out)
    if as_json:
        print_json(report_json(study, advice, {} if study.empty else findings(study)))
    else:
        _show(study, advice, os.path.join(out, HTML))
    sys.exit(EXIT_FINDINGS if study.failures.by_reason else EXIT_DONE)


def parse_fraction(text: str) -> float:
    """Parse a fraction, for example ``1%`` or ``0.01``. Raises UsageError."""
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        value = -1.0
    if text.strip().endswith("%"):
        value /= 100
    if not 0 < value <= 1:
        raise UsageError(f"--sample {text}: not a share; use more than 0 % and at most 100 %")
    return value


def _spec(
    paths: Sequence[str], labels: Sequence[str], sample: float, chunkings: Sequence[str], level: int
) -> "Spec":
    from analysis.collection.chunk_log import Dataset, Spec
    from analysis.collection.chunkings import ALL, cutter
    from analysis.collection.tree_walk import check_datasets
    from analysis.report.study_report import printable

    datasets = [Dataset(printable(_name(path)), os.path.abspath(path)) for path in paths]
    for label in labels:
        name, equals, path = label.partition("=")
        if not equals:
            raise UsageError(f"--label {label}: has no name; use NAME=PATH")
        datasets.append(Dataset(printable(name.strip()), os.path.abspath(path)))
    check_datasets(tuple(datasets))
    for name in chunkings:
        cutter(name)
    chosen = tuple(name for name in ALL if not chunkings or name in chunkings)
    return Spec(tuple(datasets), chosen, sample, compression_level=level)


def _name(path: str) -> str:
    return os.path.basename(os.path.realpath(path)) or "root"


def open_log(path: str, spec: "Spec") -> "Log":
    """Open or create the log at ``path``. Raises UsageError for the log of another study."""
    from analysis.collection.chunk_log import Log

    if not Log.exists(path):
        return Log.create(path, spec)
    log = Log.open(path)
    if log.spec != spec:
        raise UsageError(
            f"{path}: contains a collection of other paths or settings; choose another --out"
        )
    return log


def _show(study: "Study", advice: "Advice | None", report: str) -> None:
    if advice is None:
        click.echo("No file with content is readable: there is nothing to analyze.")
    else:
        _show_advice(study, advice)
    for reason, count in study.failures.by_reason.items():
        click.echo(f"  not read: {count} {reason}", err=True)
    click.echo(f"Report: {report}")


def _show_advice(study: "Study", advice: "Advice") -> None:
    """Print the savings of the recommended settings, and the commands to apply them."""
    row = study.savings(study.collection.default_chunking)
    assert row is not None
    table = figures()
    outcome = advice.outcome
    table.add_row("data", format_size(row.data_bytes))
    table.add_row(
        "expected size",
        f"{format_size(outcome.disk_bytes)}:"
        f" {outcome.saved_later:.1%}{_margin(outcome.margin_later)} saved with these settings",
    )
    what = "deduplication and compression" if study.collection.compressed else "deduplication"
    most, margin = row.saved_compressed, row.saved_compressed_margin
    table.add_row(
        "upper limit", f"{most:.1%}{_margin(margin)} by {what}, if all files were optimized"
    )
    for setting in advice.settings:
        table.add_row(setting.name, f"{setting.value} ({setting.reason})")
    show(table)
    if not advice.worth_it:
        click.echo("The savings are too small to justify dedupd.")
    for lines in advice.commands:
        click.echo("To apply these settings:")
        for line in lines:
            click.echo(f"  {line}")
    for text in (advice.confidence, advice.better):
        if text:
            click.echo(text)


def _margin(margin: float) -> str:
    return f" ± {100 * margin:.1f}" if margin else ""
