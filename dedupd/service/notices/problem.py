"""Problems, and notifications of them, as values."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Severity(StrEnum):
    """Severities, in ascending order."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    def is_at_least(self, other: "Severity") -> bool:
        order = list(Severity)
        return order.index(self) >= order.index(other)


@dataclass(frozen=True, slots=True)
class Problem:
    """A state that an administrator should know.

    ``kind`` is a kind of docs/guide/service.md. ``volume`` is the path of a volume, empty for the
    service. ``subject`` distinguishes problems of a kind. The message may change while the problem
    lasts.
    """

    kind: str
    volume: str
    severity: Severity
    message: str
    subject: str = ""

    @property
    def id(self) -> str:
        return "|".join((self.kind, self.volume, self.subject))


class NoticeReason(StrEnum):
    """The reason for a notification."""

    BEGIN = "begin"
    END = "end"
    TEST = "test"
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class Notice:
    """A notification, delivered once through each channel. ``time_s`` is in seconds since 1970."""

    happening: NoticeReason
    problem: Problem
    time_s: float
    host: str
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the form that commands and webhooks get."""
        return {
            "event": self.happening.value,
            "host": self.host,
            "time_s": self.time_s,
            **asdict(self.problem),
            "severity": self.problem.severity.value,
            "details": dict(self.details),
        }

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> "Notice":
        """Raises KeyError, TypeError, ValueError."""
        return cls(
            NoticeReason(value["event"]),
            problem_of(value),
            float(value["time_s"]),
            str(value["host"]),
            dict(value["details"]),
        )

    @property
    def subject(self) -> str:
        """The subject of a mail: one line."""
        problem = self.problem
        words = {
            NoticeReason.BEGIN: f"{problem.severity.value}: {problem.kind}",
            NoticeReason.END: f"resolved: {problem.kind}",
            NoticeReason.TEST: "test",
            NoticeReason.SUMMARY: "summary",
        }
        where = f" of {problem.volume}" if problem.volume else ""
        line = f"dedupd on {self.host}: {words[self.happening]}{where}"
        return "".join(one if one.isprintable() else "?" for one in line)


def problem_of(value: Mapping[str, Any]) -> Problem:
    """Raises KeyError, ValueError."""
    return Problem(
        str(value["kind"]),
        str(value["volume"]),
        Severity(value["severity"]),
        str(value["message"]),
        str(value["subject"]),
    )
