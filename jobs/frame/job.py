"""The base of all jobs, and of their reports."""

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field
from typing import Any, Generic, TypeVar

from dedupd_core.errors import DedupdError
from dedupd_core.volume.volume import Volume
from jobs.frame.run import Cancelled, JobRun, record_run


@dataclass(slots=True)
class Report:
    """The results of a run. Each job adds its own fields."""

    job: str = ""
    outcome: str = "done"
    resources: dict[str, float] = field(default_factory=dict)
    started_s: float = 0.0

    def complete(self, run: JobRun) -> None:
        """Copy the counters of the run itself."""
        self.resources = run.resources()

    def to_json(self) -> dict[str, Any]:
        """Return job and outcome first, then the job's own fields, then the common ones."""
        values = asdict(self)
        return values | {name: values.pop(name) for name in _LAST if name in values}


_LAST = "errors", "messages", "resources", "started_s"


@dataclass(slots=True)
class FileReport(Report):
    """The report of a job that continues after an error of a single file."""

    errors: int = 0
    messages: list[str] = field(default_factory=list)

    def complete(self, run: JobRun) -> None:
        Report.complete(self, run)
        self.errors, self.messages = run.findings.count, run.findings.messages


ReportT = TypeVar("ReportT", bound=Report)


class Job(ABC, Generic[ReportT]):
    """One run of a job over one volume. Needs the volume's job lock.

    If it ``needs_containers``, it raises UsageError for a volume whose store has no containers.
    """

    needs_containers = True

    def __init__(self, volume: Volume, run: JobRun, report: ReportT) -> None:
        if self.needs_containers:
            volume.require_containers(run.job)
        self._volume = volume
        self._run = run
        self._report = report
        report.started_s = run.started_s

    @abstractmethod
    def run(self) -> ReportT:
        """Do the work. Raises Cancelled."""

    def report(self) -> ReportT:
        """Return the report of the work so far. It is valid even if ``run`` has raised an error."""
        self._report.complete(self._run)
        return self._report

    def recorded(self) -> ReportT:
        """Run, and keep the report in the volume's history, even if the job is stopped."""
        try:
            report = self.run()
        except DedupdError as error:
            report = self.report()
            report.outcome = "stopped" if isinstance(error, Cancelled) else str(error)
            record_run(self._volume, self._run, report.to_json())
            raise
        record_run(self._volume, self._run, report.to_json())
        return report
