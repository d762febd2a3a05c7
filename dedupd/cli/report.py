"""The report of a job, shown."""

import sys
from collections.abc import Callable, Iterable, Sized
from typing import NoReturn, TypeVar

import click

from dedupd.cli.common import show_or_json
from dedupd_core.errors import EXIT_DAMAGED, EXIT_DONE, EXIT_FINDINGS
from jobs.check.invariants import Finding
from jobs.frame.job import FileReport, ReportT

FileReportT = TypeVar("FileReportT", bound=FileReport)


def finish(
    report: ReportT,
    as_json: bool,
    show: Callable[[ReportT], None],
    *,
    findings: Sized | int = 0,
    damage: Sized | int = 0,
) -> NoReturn:
    """Print a report, in JSON or as ``show`` does, and leave. The exit status says whether
    there are findings, or something is lost."""
    show_or_json(as_json, report.to_json(), lambda: show(report))
    sys.exit(EXIT_DAMAGED if damage else EXIT_FINDINGS if findings else EXIT_DONE)


def finish_files(
    report: FileReportT,
    as_json: bool,
    show: Callable[[FileReportT], None],
    *,
    damage: Sized | int = 0,
) -> NoReturn:
    """As :func:`finish`, of a job that goes on where something is wrong with a single file: that
    is shown last, and counts as a finding."""

    def show_all(report: FileReportT) -> None:
        show(report)
        show_messages(report.errors, report.messages)

    finish(report, as_json, show_all, findings=report.errors, damage=damage)


def show_findings(findings: Iterable[Finding]) -> None:
    """Which invariants do not hold, and where."""
    for finding in findings:
        click.echo(f"  {finding.invariant}: {finding.where}: {finding.detail}")


def show_messages(count: int, messages: list[str]) -> None:
    """Errors with single files: the messages that were kept, of ``count``."""
    for message in messages:
        click.echo(f"  {message}", err=True)
    if count > len(messages):
        click.echo(f"  and {count - len(messages)} more", err=True)
