"""The report of a job: kept in the history, and shown."""

import sys
from collections.abc import Callable, Iterable, Sized
from dataclasses import Field, asdict
from typing import Any, ClassVar, NoReturn, Protocol, TypeVar

import click

from dedupd.cli.common import print_json
from dedupd.errors import EXIT_DAMAGED, EXIT_DONE, EXIT_FINDINGS, DedupdError
from dedupd.volume.volume import Volume
from jobs.check.invariants import Finding
from jobs.frame.run import Cancelled, JobRun, record_run


class _AnyReport(Protocol):
    """A dataclass that says, among other things, how the job ended."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    outcome: str


_Report = TypeVar("_Report", bound=_AnyReport)
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
        report.outcome = "stopped" if isinstance(error, Cancelled) else str(error)
        record_run(volume, run, asdict(report))
        raise
    record_run(volume, run, asdict(report))
    return report


def finish(
    report: _Report,
    as_json: bool,
    show: Callable[[_Report], None],
    *,
    findings: Sized | int = 0,
    damage: Sized | int = 0,
) -> NoReturn:
    """Print a report, in JSON or as ``show`` does, and leave: there was nothing to be told, there
    are findings, or something is lost."""
    if as_json:
        print_json(asdict(report))
    else:
        show(report)
    sys.exit(EXIT_DAMAGED if damage else EXIT_FINDINGS if findings else EXIT_DONE)


def show_findings(findings: Iterable[Finding]) -> None:
    """Which invariants do not hold, and where."""
    for finding in findings:
        click.echo(f"  {finding.invariant}: {finding.where}: {finding.detail}")


def show_messages(count: int, messages: list[str]) -> None:
    """What went wrong with single files: the messages that were kept, of ``count``."""
    for message in messages:
        click.echo(f"  {message}", err=True)
    if count > len(messages):
        click.echo(f"  and {count - len(messages)} more", err=True)
