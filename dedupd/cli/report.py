"""The output of the report of a job."""

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
    """Print a report, as JSON or with ``show``, and exit. The exit status shows whether there are
    findings or lost data."""
    show_or_json(as_json, report.to_json(), lambda: show(report))
    sys.exit(EXIT_DAMAGED if damage else EXIT_FINDINGS if findings else EXIT_DONE)


def finish_files(
    report: FileReportT,
    as_json: bool,
    show: Callable[[FileReportT], None],
    *,
    damage: Sized | int = 0,
) -> NoReturn:
    """Like :func:`finish`, for a job that skips files with errors: each error is a finding, printed
    last."""

    def show_all(report: FileReportT) -> None:
        show(report)
        show_messages(report.errors, report.messages)

    finish(report, as_json, show_all, findings=report.errors, damage=damage)


def show_findings(findings: Iterable[Finding]) -> None:
    """Print each violated invariant and its place."""
    for finding in findings:
        click.echo(f"  {finding.invariant}: {finding.where}: {finding.detail}")


def show_messages(count: int, messages: list[str]) -> None:
    """Print the messages that were kept of ``count`` errors with single files."""
    for message in messages:
        click.echo(f"  {message}", err=True)
    if count > len(messages):
        click.echo(f"  and {count - len(messages)} more", err=True)
