"""The open problems and the pending notifications, kept across restarts.

A problem causes one notification when it starts, and one when it has been absent for a while. A
problem that disappears for less than this time counts as one problem.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace

from dedupd.service.notices.problem import Notice, Problem, problem_of

WAITING_MAX = 1000
"""The limit for pending notifications of all channels. Beyond it, the oldest are dropped."""


@dataclass(frozen=True, slots=True)
class OpenProblem:
    """A problem that is not resolved."""

    problem: Problem
    seen_s: float


@dataclass(frozen=True, slots=True)
class PendingNotice:
    """A notification that one channel has not delivered yet."""

    way: str
    notice: Notice
    tries: int = 0


@dataclass(slots=True)
class Ledger:
    """The state of all notifications. Times are seconds since 1970."""

    open: dict[str, OpenProblem] = field(default_factory=dict)
    waiting: list[PendingNotice] = field(default_factory=list)
    summary_s: float = 0.0
    """The time of the last summary."""

    def update(
        self, problems: Iterable[Problem], now_s: float, calm_s: float
    ) -> tuple[list[Problem], list[Problem]]:
        """Update the open problems. Returns the new problems and the resolved problems."""
        begun, over = [], []
        for problem in problems:
            if problem.id not in self.open:
                begun.append(problem)
            self.open[problem.id] = OpenProblem(problem, now_s)
        for name, one in list(self.open.items()):
            if one.seen_s > now_s:  # the clock was set back
                self.open[name] = replace(one, seen_s=now_s)
            elif now_s - one.seen_s > calm_s:
                del self.open[name]
                over.append(one.problem)
        return begun, over

    def queue(self, notice: Notice, ways: Sequence[str]) -> None:
        """Queue a notification for each channel."""
        self.waiting += [PendingNotice(way, notice) for way in ways]
        del self.waiting[:-WAITING_MAX]

    def next_of(self, way: str) -> PendingNotice | None:
        """Return the oldest pending notification of a channel."""
        return next((one for one in self.waiting if one.way == way), None)

    def settle(self, done: PendingNotice, again: bool) -> None:
        """Remove a notification after an attempt to deliver it, or keep it for another attempt."""
        if done not in self.waiting:
            return  # it was dropped during the attempt
        at = self.waiting.index(done)
        if again:
            self.waiting[at] = replace(done, tries=done.tries + 1)
        else:
            del self.waiting[at]

    def to_json(self) -> bytes:
        return json.dumps(
            {
                "open": [asdict(one.problem) for one in self.open.values()],
                "waiting": [
                    {"way": one.way, "tries": one.tries, "notice": one.notice.to_json()}
                    for one in self.waiting
                ],
                "summary_s": self.summary_s,
            }
        ).encode()

    @classmethod
    def of_json(cls, data: bytes, now_s: float) -> "Ledger":
        """Load a ledger; an invalid one becomes empty. Problems count as seen now, because no check
        has run since it was written."""
        try:
            value = json.loads(data)
            problems = [problem_of(one) for one in value["open"]]
            waiting = [
                PendingNotice(str(one["way"]), Notice.of_json(one["notice"]), int(one["tries"]))
                for one in value["waiting"]
            ]
            summary_s = float(value["summary_s"])
        except (KeyError, TypeError, ValueError):
            return cls()
        return cls({one.id: OpenProblem(one, now_s) for one in problems}, waiting, summary_s)
